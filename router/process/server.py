"""The server of one process: uvicorn, with a graceful stop and a reload of the configuration.

Theory of operation. A stop begins with the drain period: /readyz returns 503 and each response closes its connection,
so that clients and load balancers go elsewhere, but every request is still answered. Then the server stops listening,
and running requests end within the grace period. Commands come from signals, or from the supervisor if there are
several workers. They wait for uvicorn's next tick, so that a signal handler does nothing but queue them.
"""

import contextlib
import functools
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, NamedTuple

import uvicorn

from router.api.protocol_messages import render
from router.net.server.connection import BoundedHttpProtocol
from router.net.server.connection_limit import ConnectionLimit
from router.net.server.start_limiter import StartLimiter
from router.net.server.timeouts import ClientTimeouts
from router.net.server.write_batcher import WriteBatcher
from router.process.app import build
from router.process.application import Application
from router.process.reloading import Reloader
from router.process.start_report import EngineCount
from router.process_limits import limit_integer_digits, max_connections, raise_descriptor_limit
from router.settings import Settings
from router.telemetry.log_output import set_up_logging
from router.telemetry.worker_metrics import prepare_metrics
from router.upstream.shared_slots import WorkerPlace

log = logging.getLogger("roundhouse.server")

ServerCommand = Literal["drain", "leave"] | Settings
"""`drain`: stop after the drain period; `leave`: stop now; settings: put these into effect."""

FORCED_EXIT_CODE: Final = 130
"""The exit code after a second SIGINT: 128 + SIGINT, as in a shell."""

_NOT_APPLIED: Final = "the new configuration cannot be applied; the previous one stays in effect"

_GC_THRESHOLD: Final = 10_000
"""Net new objects before a collection of the youngest generation; Python's default is 700. See freeze_gc."""


class DrainingServer(uvicorn.Server):
    """Serves an application until a signal or command stops it.

    - SIGTERM drains. A second one has no further effect: a service manager may signal every process of a group.
    - SIGINT (Ctrl-C) leaves; a second one ends the process at once.
    - With a `reloader`, SIGHUP reloads the configuration; but a SIGHUP because the terminal has closed leaves. A worker
      process has none: its supervisor sends it commands, and it ignores SIGINT and SIGHUP.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        application: Application,
        *,
        drain_seconds: float,
        reloader: Reloader | None,
        on_ready: Callable[[EngineCount], None],
        heartbeat: Callable[[], None],
        on_reloaded: Callable[[str | None], None],
    ) -> None:
        """`on_ready` is called once, when requests are accepted; `heartbeat` ten times a second from then on.

        `on_reloaded` is called after each attempt to put new settings into effect, with None or what was wrong.
        """
        super().__init__(config)
        self._application = application
        self._drain_seconds = drain_seconds
        self._reloader = reloader
        self._on_ready = on_ready
        self._heartbeat = heartbeat
        self._on_reloaded = on_reloaded
        self._commands: deque[ServerCommand | Literal["reload"]] = deque()
        self._exit_at: float | None = None
        self._terminal = Terminal()

    def serve_until_stopped(self, listen_socket: socket.socket) -> int:
        on_hup = signal.SIG_IGN if self._reloader is None else lambda *_: self._commands.append("reload")
        signal.signal(signal.SIGHUP, on_hup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # see router.process.serve
        self.run(sockets=[listen_socket])
        return FORCED_EXIT_CODE if self.force_exit else 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        freeze_gc()
        if self.started:
            self._on_ready(self._application.engine_count())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.end_events()
        await super().shutdown(sockets)

    def submit(self, command: ServerCommand) -> None:
        self._commands.append(command)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Replaces uvicorn's handler of SIGTERM and SIGINT, which raises the signal again after the shutdown.

        Here a stop by a signal is a success, with the exit code 0.
        """
        if sig == signal.SIGTERM:
            self._commands.append("drain")
        elif self._reloader is None:
            return  # a worker: Ctrl-C reaches the whole process group, and the supervisor decides
        elif self._exit_at is not None or "leave" in self._commands:
            self.should_exit = self.force_exit = True
        else:
            self._commands.append("leave")

    async def on_tick(self, counter: int) -> bool:
        self._heartbeat()
        while self._commands:
            await self._handle(self._commands.popleft())
        if self._exit_at is not None and time.monotonic() >= self._exit_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def _handle(self, command: ServerCommand | Literal["reload"]) -> None:
        match command:
            case "drain":
                self._stop(self._drain_seconds)
            case "leave":
                self._stop(0.0)
            case "reload":
                if self._terminal.hung_up:
                    self._stop(0.0)
                elif self._reloader is not None and (settings := self._reloader.read(self._application.settings)):
                    await self._reload(settings)
            case _:
                await self._reload(command)

    def _stop(self, delay: float) -> None:
        exit_at = time.monotonic() + delay
        if self._exit_at is None:
            log.info("stopping: not ready, still accepting connections for %g s", delay)
            self._application.drain()
            # uvicorn adds these headers to its defaults, and so to every response from now on.
            self.config.encoded_headers.append((b"connection", b"close"))
        # A later command can shorten the drain period, never extend it.
        self._exit_at = min(exit_at, self._exit_at or exit_at)

    async def _reload(self, settings: Settings) -> None:
        try:
            await self._application.reload(settings)
        except Exception:
            # The last line of defence: the current configuration goes on serving, whatever is wrong with the new one.
            log.exception(_NOT_APPLIED)
            self._on_reloaded(f"{_NOT_APPLIED}; the log has the reason")
        else:
            freeze_gc()
            log.info("the new configuration is in effect")
            self._on_reloaded(None)


def freeze_gc() -> None:
    """Excludes all present objects from garbage collections, which would stop the loop for tens of milliseconds.

    New objects are collected rarely: reference counting frees what a request needs, so a late collection finds little.
    """
    # Objects that were frozen before, and are garbage since a reload, are collected first.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


class Terminal:
    """The terminal that the process was started from, if any. The kernel sends SIGHUP when it closes."""

    def __init__(self) -> None:
        self._was_attached = os.isatty(0)

    @property
    def hung_up(self) -> bool:
        return self._was_attached and not os.isatty(0)


def make_server(
    settings: Settings,
    application: Application,
    reloader: Reloader | None,
    on_ready: Callable[[EngineCount], None],
    heartbeat: Callable[[], None] = lambda: None,
    on_reloaded: Callable[[str | None], None] = lambda _: None,
) -> DrainingServer:
    """Creates the server. Also sets limits of the whole process: file descriptors, and digits of an integer."""
    router = settings.router
    descriptors = raise_descriptor_limit()
    limit = ConnectionLimit(max_connections(descriptors), application.record_rejection)
    limit_integer_digits()
    log.info("connection limit: %d file descriptors allow %d clients", descriptors, limit.max_connections)
    options: dict[str, Any] = {
        "loop": "uvloop",
        "http": functools.partial(
            BoundedHttpProtocol,
            timeouts=ClientTimeouts(router.receive, router.send, router.keep_alive),
            start_limiter=StartLimiter(),
            write_batcher=WriteBatcher(),
            connection_limit=limit,
            render_error=render,
            error_headers=application.error_headers,
        ),
        "lifespan": "on",
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "proxy_headers": False,  # nothing here depends on the client's address
        "ws": "none",
        "timeout_graceful_shutdown": router.grace,
        "backlog": 4096,
    }
    return DrainingServer(
        uvicorn.Config(application, **options),
        application,
        drain_seconds=router.drain,
        reloader=reloader,
        on_ready=on_ready,
        heartbeat=heartbeat,
        on_reloaded=on_reloaded,
    )


class Reloaded(NamedTuple):
    """A worker's report to its supervisor: `problem` is None if the settings that it got are in effect."""

    problem: str | None


def worker_main(
    settings: Settings, listen_socket: socket.socket, commands: Connection, heartbeat: Any, metrics_dir: str,
    place: WorkerPlace,
) -> None:  # fmt: skip
    """The main function of a worker process.

    It sends an EngineCount when it is ready, and Reloaded after each reload. It writes the time (time.monotonic) of its
    heartbeats into `heartbeat`.
    `metrics_dir`: the workers' shared metrics. `place`: this worker's among them.
    """
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to every process; the supervisor acts
        signal.signal(number, signal.SIG_IGN)
    set_up_logging(settings.router.log_format)
    try:
        prepare_metrics(Path(metrics_dir))
    except OSError as error:
        log.error("cannot create the files of metrics in %s: %s", metrics_dir, error.strerror)  # noqa: TRY400 - it says all
        raise SystemExit(1) from None

    def beat() -> None:
        heartbeat.value = time.monotonic()

    def report(news: EngineCount | Reloaded) -> None:
        with contextlib.suppress(OSError):  # the supervisor has died, which _receive_commands notices
            commands.send(news)

    application = build(settings, multiprocess_dir=metrics_dir, place=place)
    server = make_server(settings, application, None, report, beat, lambda problem: report(Reloaded(problem)))
    threading.Thread(target=_receive_commands, args=(commands, server), daemon=True).start()
    raise SystemExit(server.serve_until_stopped(listen_socket))


def _receive_commands(commands: Connection, server: DrainingServer) -> None:
    try:
        while True:
            server.submit(commands.recv())
    except (EOFError, OSError):  # the supervisor has died, and its replacement needs the port
        server.submit("leave")
