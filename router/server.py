"""The server of one process: uvicorn, told when to stop, and when to take another configuration.

Theory of operation. To stop, a server first lets those who send to it notice: /readyz says 503 and each answer closes
its connection, while all that comes is still answered. Then it listens no more, and what is under way ends, in bounded
time. Orders come from signals, and to one worker of several from its supervisor; they wait for the server's next tick,
so that nothing is done within a signal's handler.
"""

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
from typing import Any, Final, Literal

import uvicorn
from msgspec.structs import asdict, replace

from router.access_log import set_up_logging
from router.api.protocol_messages import render
from router.app import build
from router.application import Application
from router.net.server.connection import BoundedHttpProtocol
from router.net.server.connection_limit import ConnectionLimit
from router.net.server.start_limiter import StartLimiter
from router.net.server.timeouts import ClientTimeouts
from router.net.server.write_batcher import WriteBatcher
from router.process_limits import limit_integer_digits, max_connections, raise_descriptor_limit
from router.settings import ConfigurationError, Settings, load

log = logging.getLogger("roundhouse.server")

ServerCommand = Literal["drain", "leave"] | Settings
"""`drain`: stop once others have noticed; `leave`: stop now; settings: go on with these."""

FORCED_EXIT_CODE: Final = 130
"""The exit code after a second SIGINT, as a shell has it."""

_GC_THRESHOLD: Final = 10_000
"""Objects between two looks of the garbage collector at those that are new; Python has 700."""


class DrainingServer(uvicorn.Server):
    """Serves an application until it is told to stop.

    - SIGTERM: drains; said twice, it is said once, since a service manager may tell every process of a group.
    - SIGINT, which a person sends: leaves; a second one ends it at once.
    - With a `file`, SIGHUP reads that again; but where it says that the terminal is gone, the server leaves. One of
      several workers has none, is told by its supervisor, and takes no notice of SIGINT and SIGHUP.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        application: Application,
        *,
        drain_seconds: float,
        config_file: Path | None,
        heartbeat: Callable[[], None],
    ) -> None:
        """`drain` in seconds; `beat` is called as long as the loop turns, ten times a second."""
        super().__init__(config)
        self._application = application
        self._drain_seconds = drain_seconds
        self._config_file = config_file
        self._heartbeat = heartbeat
        self._commands: deque[ServerCommand | Literal["reload"]] = deque()
        self._exit_at: float | None = None
        self._terminal = Terminal()

    def serve_until_stopped(self, listen_socket: socket.socket) -> int:
        """Returns the exit code."""
        on_hup = signal.SIG_IGN if self._config_file is None else lambda *_: self._commands.append("reload")
        signal.signal(signal.SIGHUP, on_hup)
        self.run(sockets=[listen_socket])
        return FORCED_EXIT_CODE if self.force_exit else 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        freeze_gc()

    def submit(self, command: ServerCommand) -> None:
        """From any thread."""
        self._commands.append(command)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn has it called for SIGTERM and SIGINT. It would raise them again at the end; here, the end is well."""
        if sig == signal.SIGTERM:
            self._commands.append("drain")
        elif self._config_file is None:
            return
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
                elif self._config_file is not None and (
                    settings := reload_settings(self._config_file, self._application.settings)
                ):
                    await self._reload(settings)
            case _:
                await self._reload(command)

    def _stop(self, delay: float) -> None:
        until = time.monotonic() + delay
        if self._exit_at is None:
            log.info("stopping: not ready any more, and listening for %g s yet", delay)
            self._application.drain()
            self.config.encoded_headers.append((b"connection", b"close"))
        self._exit_at = min(until, self._exit_at or until)

    async def _reload(self, settings: Settings) -> None:
        try:
            await self._application.reload(settings)
        except Exception:
            # The last line of defence: what serves now must go on, whatever is wrong with what was to come.
            log.exception("the configuration cannot be used; the one before it stays")
        else:
            freeze_gc()
            log.info("another configuration is in effect")


def freeze_gc() -> None:
    """Leaves what there is now out of garbage collections: to walk over it all stops the loop for tens of milliseconds.

    What was spared before and is garbage by now is collected first. What comes is looked at rarely: what a request
    needs goes with its last reference, so that the collector, if it comes late, finds next to nothing left.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


class Terminal:
    """The terminal that the process was started at, if there is one: when it goes, that is a SIGHUP too."""

    def __init__(self) -> None:
        self._was_attached = os.isatty(0)

    @property
    def hung_up(self) -> bool:
        return self._was_attached and not os.isatty(0)


def make_server(
    settings: Settings, application: Application, config_file: Path | None, heartbeat: Callable[[], None] = lambda: None
) -> DrainingServer:
    """The server that the settings ask for, in a process that is its own from now on; see Server."""
    router = settings.router
    descriptors = raise_descriptor_limit()
    limit = ConnectionLimit(max_connections(descriptors), application.record_rejection)
    limit_integer_digits()
    log.info("%d file descriptors, so that %d clients may be connected", descriptors, limit.max_connections)
    options: dict[str, Any] = {
        "loop": "uvloop",
        "http": functools.partial(
            BoundedHttpProtocol,
            timeouts=ClientTimeouts(router.receive, router.send),
            start_limiter=StartLimiter(),
            write_batcher=WriteBatcher(),
            connection_limit=limit,
            render_error=render,
        ),
        "lifespan": "on",
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "proxy_headers": False,  # nothing here asks who the client is
        "ws": "none",
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": router.grace,
        "backlog": 4096,
    }
    return DrainingServer(
        uvicorn.Config(application, **options),
        application,
        drain_seconds=router.drain,
        config_file=config_file,
        heartbeat=heartbeat,
    )


def reload_settings(config_file: Path, old: Settings) -> Settings | None:
    """The settings that a reload puts into effect; None where the file cannot be used, which is logged.

    What only a start can change stays as it is, which is logged too.
    """
    try:
        new = load(config_file)
    except ConfigurationError as error:
        for mistake in error.mistakes:  # a record each, since a record is a line
            log.error("the configuration is refused, and the one before it stays: %s", mistake)  # noqa: TRY400
        return None
    for line in new.not_yet():
        log.warning("%s", line)
    kept = replace(old.router, max_body=new.router.max_body, max_bodies=new.router.max_bodies)
    for name, value in asdict(new.router).items():
        if value != getattr(kept, name):
            log.warning("router.%s: needs a restart to change", name)
    return replace(new, router=kept)


def worker_main(
    settings: Settings, listen_socket: socket.socket, commands: Connection, heartbeat: Any, metrics_dir: str
) -> None:
    """One worker of several, in a process of its own.

    `alive` is where it writes the time, of time.monotonic, for its supervisor; `shared` is the folder of their metrics.
    """
    for number in (signal.SIGINT, signal.SIGHUP):  # which reach every process of a terminal
        signal.signal(number, signal.SIG_IGN)
    remove_dead_worker_gauges(Path(metrics_dir))
    set_up_logging(settings.router.log_format)

    def beat() -> None:
        heartbeat.value = time.monotonic()

    server = make_server(settings, build(settings, multiprocess_dir=metrics_dir), None, beat)
    threading.Thread(target=_receive_commands, args=(commands, server), daemon=True).start()
    raise SystemExit(server.serve_until_stopped(listen_socket))


def _receive_commands(commands: Connection, server: DrainingServer) -> None:
    try:
        while True:
            server.submit(commands.recv())
    except (EOFError, OSError):  # the supervisor has died, and who starts it anew will want the port
        server.submit("leave")


def remove_dead_worker_gauges(metrics_dir: Path) -> None:
    """Removes the gauges of workers that have died, which would be summed with those of the living for ever.

    Their counters stay. A worker that died is replaced, so it is enough to look when one begins.
    """
    for gauges in metrics_dir.glob("gauge_live*_*.db"):
        if not _process_exists(int(gauges.stem.rpartition("_")[2])):
            gauges.unlink(missing_ok=True)


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:  # there is none, or it has become another user's
        return False
    return True
