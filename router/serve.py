"""The router's own server, in this process or in several beside it."""

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
"""The environment variable in which prometheus_client wants the folder that workers share."""


def listen(settings: Settings) -> socket.socket:
    """The router's listening socket. Raises OSError where the address is taken."""
    family = socket.AF_INET6 if ":" in settings.router.host else socket.AF_INET
    # With the protocol named, asyncio sees that it is TCP, and sets TCP_NODELAY on what it accepts.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.router.host, settings.router.port))
        listening.listen(4096)
        listening.set_inheritable(True)
    except OSError:
        listening.close()
        raise
    return listening


def run(settings: Settings, config_file: Path, listen_socket: socket.socket) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. On SIGHUP, `config` is read again."""
    set_up_logging(settings.router.log_format)
    config_file = config_file.resolve()
    if settings.router.workers == 1:
        return make_server(settings, build(settings), config_file).serve_until_stopped(listen_socket)
    with tempfile.TemporaryDirectory(prefix="roundhouse-metrics-") as shared:
        os.environ[METRICS_DIR_VARIABLE] = shared
        return Supervisor(settings, config_file, listen_socket, shared).run()
