"""The router's own server: uvicorn, with one worker in this process or several beside it."""

import os
import socket
import tempfile
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.supervisors import Multiprocess

from router.access_log import set_up_logging
from router.api.protocol import BoundedHttpProtocol
from router.app import build
from router.application import Application
from router.settings import Settings, load

CONFIG: Final = "ROUNDHOUSE_CONFIG"
MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable in which prometheus_client wants the folder that workers share."""

GRACE: Final = 30
"""Seconds that answers under way have to end, once the router has been told to stop."""


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


def run(settings: Settings, config: Path, listening: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT. Workers of their own read the configuration from `config` again."""
    options: dict[str, Any] = {
        "loop": "uvloop",
        "http": BoundedHttpProtocol,
        "lifespan": "on",
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "proxy_headers": False,  # nothing here asks who the client is
        "ws": "none",
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": GRACE,
        "backlog": 4096,
    }
    if settings.router.workers == 1:
        set_up_logging(settings.router.log_format)
        server = uvicorn.Server(uvicorn.Config(build(settings), **options))
        server.run(sockets=[listening])
        return
    with tempfile.TemporaryDirectory(prefix="roundhouse-metrics-") as shared:
        os.environ[MULTIPROCESS] = shared
        os.environ[CONFIG] = str(config.resolve())
        workers = settings.router.workers
        uvicorn_config = uvicorn.Config("router.serve:worker", factory=True, workers=workers, **options)
        Multiprocess(uvicorn_config, [listening]).run()


def worker() -> Application:
    """One worker of several, in a process of its own: uvicorn calls this there."""
    settings = load(Path(os.environ[CONFIG]))
    forget_dead_workers(Path(os.environ[MULTIPROCESS]))
    set_up_logging(settings.router.log_format)
    return build(settings, multiprocess=os.environ[MULTIPROCESS])


def forget_dead_workers(shared: Path) -> None:
    """Removes the gauges of workers that have died, which would be summed with those of the living for ever.

    Their counters stay. A worker that died is replaced, so it is enough to look when one begins.
    """
    for gauges in shared.glob("gauge_live*_*.db"):
        if not _runs(int(gauges.stem.rpartition("_")[2])):
            gauges.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:  # there is none, or it has become another user's
        return False
    return True
