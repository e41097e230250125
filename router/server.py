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
from router.net.server.start_limiter import Turns
from router.net.server.timeouts import Bounds
from router.net.server.write_batcher import Outbox
from router.process_limits import limit_digits, max_connections, raise_descriptor_limit
from router.settings import ConfigurationError, Settings, load

log = logging.getLogger("roundhouse.server")

Order = Literal["drain", "leave"] | Settings
"""`drain`: stop once others have noticed; `leave`: stop now; settings: go on with these."""

FORCED: Final = 130
"""The exit code after a second SIGINT, as a shell has it."""

_YOUNG: Final = 10_000
"""Objects between two looks of the garbage collector at those that are new; Python has 700."""


class Server(uvicorn.Server):
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
        drain: float,
        file: Path | None,
        beat: Callable[[], None],
    ) -> None:
        """`drain` in seconds; `beat` is called as long as the loop turns, ten times a second."""
        super().__init__(config)
        self._application = application
        self._drain = drain
        self._file = file
        self._beat = beat
        self._orders: deque[Order | Literal["reload"]] = deque()
        self._leave_at: float | None = None
        self._terminal = Terminal()

    def serve_until_told(self, listening: socket.socket) -> int:
        """Returns the exit code."""
        on_hup = signal.SIG_IGN if self._file is None else lambda *_: self._orders.append("reload")
        signal.signal(signal.SIGHUP, on_hup)
        self.run(sockets=[listening])
        return FORCED if self.force_exit else 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        spare_what_stays()

    def order(self, order: Order) -> None:
        """From any thread."""
        self._orders.append(order)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn has it called for SIGTERM and SIGINT. It would raise them again at the end; here, the end is well."""
        if sig == signal.SIGTERM:
            self._orders.append("drain")
        elif self._file is None:
            return
        elif self._leave_at is not None or "leave" in self._orders:
            self.should_exit = self.force_exit = True
        else:
            self._orders.append("leave")

    async def on_tick(self, counter: int) -> bool:
        self._beat()
        while self._orders:
            await self._obey(self._orders.popleft())
        if self._leave_at is not None and time.monotonic() >= self._leave_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def _obey(self, order: Order | Literal["reload"]) -> None:
        match order:
            case "drain":
                self._stop(self._drain)
            case "leave":
                self._stop(0.0)
            case "reload":
                if self._terminal.hung_up:
                    self._stop(0.0)
                elif self._file is not None and (settings := read_again(self._file, self._application.settings)):
                    await self._reload(settings)
            case _:
                await self._reload(order)

    def _stop(self, after: float) -> None:
        until = time.monotonic() + after
        if self._leave_at is None:
            log.info("stopping: not ready any more, and listening for %g s yet", after)
            self._application.drain()
            self.config.encoded_headers.append((b"connection", b"close"))
        self._leave_at = min(until, self._leave_at or until)

    async def _reload(self, settings: Settings) -> None:
        try:
            await self._application.reload(settings)
        except Exception:
            # The last line of defence: what serves now must go on, whatever is wrong with what was to come.
            log.exception("the configuration cannot be used; the one before it stays")
        else:
            spare_what_stays()
            log.info("another configuration is in effect")


def spare_what_stays() -> None:
    """Leaves what there is now out of garbage collections: to walk over it all stops the loop for tens of milliseconds.

    What was spared before and is garbage by now is collected first. What comes is looked at rarely: what a request
    needs goes with its last reference, so that the collector, if it comes late, finds next to nothing left.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)


class Terminal:
    """The terminal that the process was started at, if there is one: when it goes, that is a SIGHUP too."""

    def __init__(self) -> None:
        self._there = os.isatty(0)

    @property
    def hung_up(self) -> bool:
        return self._there and not os.isatty(0)


def make_server(
    settings: Settings, application: Application, file: Path | None, beat: Callable[[], None] = lambda: None
) -> Server:
    """The server that the settings ask for, in a process that is its own from now on; see Server."""
    router = settings.router
    descriptors = raise_descriptor_limit()
    limit = ConnectionLimit(max_connections(descriptors), application.rejected)
    limit_digits()
    log.info("%d file descriptors, so that %d clients may be connected", descriptors, limit.most)
    options: dict[str, Any] = {
        "loop": "uvloop",
        "http": functools.partial(
            BoundedHttpProtocol,
            bounds=Bounds(router.receive, router.send),
            turns=Turns(),
            outbox=Outbox(),
            limit=limit,
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
    return Server(uvicorn.Config(application, **options), application, drain=router.drain, file=file, beat=beat)


def read_again(file: Path, old: Settings) -> Settings | None:
    """The settings that a reload puts into effect; None where the file cannot be used, which is logged.

    What only a start can change stays as it is, which is logged too.
    """
    try:
        new = load(file)
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


def work(settings: Settings, listening: socket.socket, orders: Connection, alive: Any, shared: str) -> None:
    """One worker of several, in a process of its own.

    `alive` is where it writes the time, of time.monotonic, for its supervisor; `shared` is the folder of their metrics.
    """
    for number in (signal.SIGINT, signal.SIGHUP):  # which reach every process of a terminal
        signal.signal(number, signal.SIG_IGN)
    forget_dead_workers(Path(shared))
    set_up_logging(settings.router.log_format)

    def beat() -> None:
        alive.value = time.monotonic()

    server = make_server(settings, build(settings, multiprocess=shared), None, beat)
    threading.Thread(target=_take_orders, args=(orders, server), daemon=True).start()
    raise SystemExit(server.serve_until_told(listening))


def _take_orders(orders: Connection, server: Server) -> None:
    try:
        while True:
            server.order(orders.recv())
    except (EOFError, OSError):  # the supervisor has died, and who starts it anew will want the port
        server.order("leave")


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
