"""Runs the router's server, in this process or in several worker processes."""

import asyncio
import logging
import os
import socket
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from router.api.prompt_log import prompt_log_warning
from router.app import build
from router.flow.tenant_rules import unmatched_models
from router.log_output import set_up_logging
from router.server import make_server
from router.settings import Settings
from router.shared.redis import ask_server
from router.start_report import log_ready, log_start
from router.supervisor import Supervisor

log = logging.getLogger("roundhouse.server")

REDIS_TIMEOUT: Final = 1.0
"""Seconds that Redis has to reply before the router starts without its version."""

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
    log_start(settings, asyncio.run(ask_server(settings.redis_url, timeout=REDIS_TIMEOUT)))
    if (warning := prompt_log_warning(settings)) is not None:
        log.warning("%s", warning)
    for line in unmatched_models(settings):
        log.warning("%s", line)
    exit_code = _serve(settings, config_file.resolve(), listen_socket)
    log.info("stopped with exit code %d", exit_code)
    return exit_code


def _serve(settings: Settings, config_file: Path, listen_socket: socket.socket) -> int:
    if settings.router.workers == 1:
        on_ready = partial(log_ready, settings)
        return make_server(settings, build(settings), config_file, on_ready).serve_until_stopped(listen_socket)
    with tempfile.TemporaryDirectory(prefix="roundhouse-metrics-") as metrics_dir:
        # Before any worker starts: prometheus_client reads it when it is imported.
        os.environ[METRICS_DIR_VARIABLE] = metrics_dir
        return Supervisor(settings, config_file, listen_socket, metrics_dir).run()
