"""Runs the router's server, in this process or in several worker processes."""

import os
import socket
import tempfile
from pathlib import Path
from typing import Final

from router.access_log import set_up_logging
from router.app import build
from router.server import make_server
from router.settings import Settings
from router.supervisor import Supervisor

METRICS_DIR_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable in which prometheus_client expects the directory that workers share."""


def listen(settings: Settings) -> socket.socket:
    """Raises OSError if the address is in use."""
    family = socket.AF_INET6 if ":" in settings.router.host else socket.AF_INET
    # Only with the protocol named does asyncio recognise TCP and set TCP_NODELAY on accepted connections.
    listen_socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listen_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listen_socket.bind((settings.router.host, settings.router.port))
        listen_socket.listen(4096)
        listen_socket.set_inheritable(True)  # for the worker processes
    except OSError:
        listen_socket.close()
        raise
    return listen_socket


def run(settings: Settings, config_file: Path, listen_socket: socket.socket) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. SIGHUP reloads `config_file`."""
    set_up_logging(settings.router.log_format)
    config_file = config_file.resolve()
    if settings.router.workers == 1:
        return make_server(settings, build(settings), config_file).serve_until_stopped(listen_socket)
    with tempfile.TemporaryDirectory(prefix="roundhouse-metrics-") as metrics_dir:
        # Before any worker starts: prometheus_client reads it when it is imported.
        os.environ[METRICS_DIR_VARIABLE] = metrics_dir
        return Supervisor(settings, config_file, listen_socket, metrics_dir).run()
