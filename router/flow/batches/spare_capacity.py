"""Whether the engines of a model have room for work that nobody waits for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final
from weakref import WeakValueDictionary

from router.core.resilience.readiness import Readiness
from router.core.types import AUTO
from router.errors import ApiError
from router.flow.attempts.admission import Admission
from router.flow.batches.begun_lines import BegunLine, BegunLines
from router.upstream.catalog import Catalog
from router.upstream.engine import Engine

_LOOK_INTERVAL: Final = 0.25

_MAX_LOOKUPS: Final = 2
"""At once: a hit takes CPU time of the process, which people share."""


class SpareCapacity:
    """- No line of a batch begins at a model for which requests wait, or all of whose engines are busy.
    - Of lines that begin together, each needs room of its own.
    - No more than `max_in_flight` lines run in this process, and no more are looked up meanwhile.
    - Lines of one model begin in the order in which they asked.
    - None begins outside of the hours of batches.
    """

    def __init__(
        self, catalog: Catalog, admission: Admission, readiness: Callable[[Engine], Readiness], *, begun: BegunLines,
        max_in_flight: int, max_kv_usage: float, is_open: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`max_kv_usage`: of an engine's KV cache; above that, no line begins there. `is_open`: whether any may."""
        self._catalog = catalog
        self._admission = admission
        self._readiness = readiness
        self._max_in_flight = max_in_flight
        self._max_kv_usage = max_kv_usage
        self._is_open = is_open
        self._begun = begun
        self._released = asyncio.Event()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._lookups = asyncio.Semaphore(min(max_in_flight, _MAX_LOOKUPS))

    @contextlib.asynccontextmanager
    async def one_more(self, model: str) -> AsyncIterator[BegunLine]:
        """Waits until a line may begin. `model`: its name as the client wrote it."""
        turn = self._turns.get(model)
        if turn is None:
            turn = self._turns[model] = asyncio.Lock()
        async with turn:
            # Room may also come from other workers and routers, and from gauges, whose changes set no event.
            while not self._may_begin(model):
                await self._wait_a_moment()
            line = self._begun.begin(model)
        try:
            yield line
        finally:
            self._begun.end(model, line)
            self._released.set()

    async def wait_until_open(self) -> None:
        while not self.is_open:
            await self._wait_a_moment()

    async def _wait_a_moment(self) -> None:
        """At most until a line ends."""
        self._released.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_INTERVAL):
                await self._released.wait()

    def must_wait(self, model: str) -> bool:
        """Whether a line cannot begin now."""
        turn = self._turns.get(model)
        return (turn is not None and turn.locked()) or not self._may_begin(model)

    @contextlib.asynccontextmanager
    async def one_lookup(self) -> AsyncIterator[None]:
        """Of a line that needs no engine if it is in the cache."""
        async with self._lookups:
            yield

    @property
    def is_open(self) -> bool:
        return self._is_open()

    def _may_begin(self, model: str) -> bool:
        return self._begun.count < self._max_in_flight and self.has_room(model)

    def has_room(self, name: str) -> bool:
        if not self.is_open:
            return False
        try:
            requested = self._catalog.requested_name(name)
            models = self._catalog.models if requested == AUTO else [self._catalog.resolve(requested, None)]
        except ApiError:
            return True  # it is refused, which needs no engine
        for model in models:
            configured = model.configured_name
            engines = self._catalog.engines_for(configured)
            if self._admission.waiting(configured):  # lines of batches, too: they do not crowd each other
                continue
            unplaced = self._begun.unplaced(name)
            room = sum(engine.spare_slots for engine in engines if self.is_spare(engine))
            if room > unplaced:
                return True
            # More than one would wait as long, and look like people who queue.
            if model.wake is not None and not unplaced and not any(engine.up for engine in engines):
                return True  # one line waits for an engine to start, as any request does
        return False

    def is_spare(self, engine: Engine) -> bool:
        """Whether a line may begin there."""
        gauges = engine.gauges
        return (
            engine.up is not None  # its gauges are known
            and self._readiness(engine) is Readiness.READY
            and engine.spare_slots > 0
            and not gauges.waiting
            and (gauges.kv_cache_usage or 0.0) <= self._max_kv_usage
        )
