"""An event loop with a virtual clock for several simulated processes.

Theory of operation. A callback belongs to the process that was running when it was scheduled, or to the process that a
message is delivered to. To each process, the loop behaves like asyncio: its callbacks run in the order in which they
were scheduled, and all that is due at an instant becomes ready before any of it runs. No virtual time passes while
callbacks run; a slow process has a `tick`, so that its timers and messages come in groups. A frozen process keeps its
callbacks until it is thawed. A killed process runs nothing more: its tasks stay referenced, so that their `finally`
blocks do not run.
"""

import asyncio
import contextvars
import heapq
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from math import ceil
from random import Random
from typing import Any, Final

from tests.simulation.clock import CLOCK

_MAX_CALLBACKS_PER_INSTANT: Final = 50_000  # more callbacks at one instant mean a loop that never waits


class SimulatedProcess:
    """One simulated process: a router, Redis, an engine, or the world around them.

    - `tick`: in seconds. Callbacks run at the next multiple of it; at 0, when they are due.
    - `offset`: the wall clock's offset in seconds.
    - `tasks`: all tasks that it has created.
    """

    __slots__ = ("_expired", "_received", "dead", "frozen", "name", "offset", "tasks", "tick", "transports")

    def __init__(self, name: str, tick: float = 0.0) -> None:
        self.name = name
        self.tick = tick
        self.offset = 0.0
        self.frozen = False
        self.dead = False
        self.tasks: list[Task] = []
        self.transports: dict[int, Any] = {}
        self._received: list[Handle] = []
        self._expired: list[Handle] = []

    @property
    def is_running(self) -> bool:
        return not (self.frozen or self.dead)

    def defer(self, handle: "Handle") -> None:
        """Keep a callback until the process runs again."""
        (self._expired if handle.due is not None else self._received).append(handle)

    def take_deferred(self, timers_first: bool) -> "list[Handle]":
        """The deferred callbacks. `timers_first`: as in uvloop; asyncio handles messages first."""
        self._expired.sort(key=lambda handle: handle.due or 0.0)
        first, second = (self._expired, self._received) if timers_first else (self._received, self._expired)
        self._received, self._expired = [], []
        return first + second

    def __repr__(self) -> str:
        return self.name


class Handle(asyncio.TimerHandle):
    """A callback of a process. `due` is None if it is not a timer."""

    __slots__ = ("due", "process")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], process: SimulatedProcess, due: float | None,
        context: contextvars.Context | None,
    ) -> None:  # fmt: skip
        # The base class' constructor is not called: it is too slow for so many handles.
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._context = context if context is not None else contextvars.copy_context()
        self.process = process
        self.due = due

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self.due or 0.0

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Handle of {self.process} {self._callback!r}>"


class Task(asyncio.Task[Any]):
    """A task whose hash is its creation number: hashes by address would make the order of sets of tasks random."""

    def __init__(self, coro: Any, *, loop: "VirtualLoop", **options: Any) -> None:
        loop.tasks += 1
        self._serial = loop.tasks
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._serial


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs simulated processes. `random` decides the order of callbacks that are due at the same instant."""

    def __init__(self, random: Random, network: Any = None) -> None:
        self.random = random
        self.network = network
        self.world = SimulatedProcess("world")
        self.process = self.world
        self.defects: list[str] = []
        self.tasks = 0
        """Number of tasks created."""
        self._ready: deque[Handle] = deque()
        self._heap: list[tuple[float, float, int, Handle]] = []
        self._number = 0
        self._closed = False

    # -- asyncio.AbstractEventLoop ------------------------------------------------------------------------------------

    def time(self) -> float:
        return CLOCK.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def get_task_factory(self) -> None:
        return None

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], *, name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> Task:  # fmt: skip
        task = Task(coro, loop=self, context=context) if context is not None else Task(coro, loop=self)
        if name is not None:
            task.set_name(name)
        self.process.tasks.append(task)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, self.process, None, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_at(CLOCK.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        process = self.process
        handle = Handle(callback, args, process, when, context)
        self._push(max(when, CLOCK.now), handle)
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.defects.append(f"{self.process}: {context.get('message')}: {context.get('exception')!r}")

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[Any, Any]:
        return await self.network.connect(protocol_factory, (host, port))  # type: ignore[no-any-return]

    async def create_unix_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], path: str, **_: Any
    ) -> tuple[Any, Any]:
        return await self.network.connect(protocol_factory, path)  # type: ignore[no-any-return]

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> Any:
        return self.network.listen(protocol_factory, self.process, host, port)

    def remove_reader(self, fd: int) -> bool:  # type: ignore[override]
        return False  # nothing here is read from a file descriptor

    def run_in_executor(  # type: ignore[override]
        self, executor: None, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Runs it at once: no virtual time passes while files are read or written."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - as an executor: the awaiting task gets it
            done.set_exception(error)
        return done

    # -- for the simulation -------------------------------------------------------------------------------------------

    def deliver(self, process: SimulatedProcess, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback in a process, as for an incoming message."""
        handle = Handle(callback, args, process, None, None)
        self._push(when, handle)

    def spawn(self, process: SimulatedProcess, coro: Coroutine[Any, Any, Any]) -> Task:
        before, self.process = self.process, process
        try:
            return self.create_task(coro)
        finally:
            self.process = before

    def freeze(self, process: SimulatedProcess) -> None:
        process.frozen = True

    def thaw(self, process: SimulatedProcess) -> None:
        if process.frozen:
            process.frozen = False
            self._ready.extend(process.take_deferred(self.random.random() < 0.5))

    def run(self, until: float) -> None:
        ready, heap, outer = self._ready, self._heap, _get_running_loop()
        _set_running_loop(self)
        try:
            while True:
                count = 0
                while ready:
                    handle = ready.popleft()
                    if not handle._cancelled:
                        self._run(handle)
                    count += 1
                    if count > _MAX_CALLBACKS_PER_INSTANT:
                        self.defects.append(f"{handle.process} never waits: {handle!r}")
                        ready.clear()
                if not heap or heap[0][0] > until:
                    break
                CLOCK.now = now = heap[0][0]
                while heap and heap[0][0] <= now:
                    ready.append(heapq.heappop(heap)[3])
            CLOCK.now = until
        finally:
            self.process = self.world
            CLOCK.offset = 0.0
            _set_running_loop(outer)

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._heap.clear()

    def _run(self, handle: Handle) -> None:
        process = handle.process
        if process.frozen:
            process.defer(handle)
            return
        if process.dead:
            return
        self.process = process
        CLOCK.offset = process.offset
        try:
            handle._context.run(handle._callback, *handle._args)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as in asyncio: a failed callback does not stop the loop
            self.call_exception_handler({"message": f"a callback failed: {handle!r}", "exception": error})

    def _push(self, when: float, handle: Handle) -> None:
        tick = handle.process.tick
        if tick:
            when = max(when, ceil(when / tick) * tick)
        self._number += 1
        # At equal instants the order is random; the number only prevents a comparison of handles.
        heapq.heappush(self._heap, (when, self.random.random(), self._number, handle))


def new_loop(random: Random, network: Any = None) -> VirtualLoop:
    return VirtualLoop(random, network)  # type: ignore[abstract]  # the missing methods are never called
