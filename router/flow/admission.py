"""Who may begin at an engine, and who waits until there is room.

An engine that is asked for more than it can do at once makes all of it slow, so that nothing is finished in time. So
each takes no more than its bound from this process; what comes beyond that waits here, where it can still go to any
engine of the model, and where whose turn it is can be decided (router.core.quota.fair_queue).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from router.core.quota.fair_queue import FairQueue, seconds_until_room
from router.errors import RATE_LIMIT, UNAVAILABLE, ApiError
from router.upstream.catalog import Catalog, Engine

_PER_PLACE: Final = 4  # how many may wait for each place there is
_LEAST: Final = 16
_MOST: Final = 1024  # each holds a request's body
_REMEMBERED: Final = 64


def room_to_wait(places: int) -> int:
    """How many may wait for the engines of a model that have so many places."""
    return max(_LEAST, min(_MOST, _PER_PLACE * places))


class NoRoomError(ApiError):
    """No engine of a model has room, and nobody may wait for one any longer."""


class Place:
    """A place at an engine, until it is closed; closing it twice does nothing."""

    __slots__ = ("_admission", "engine", "tenant")

    def __init__(self, admission: "Admission", engine: Engine, tenant: str) -> None:
        self.engine = engine
        self.tenant = tenant
        self._admission: Admission | None = admission

    def close(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.left(self)


class Admission:
    """Gives out the places at the engines.

    - An engine never has more work of this process than its `max_in_flight`.
    - Whoever finds an engine with room has it at once; who waits has the first place that comes free and that it can
      use, when it is its turn. Nothing polls.
    - Nobody waits for longer than `patience` seconds: ApiError 503, `queue_timeout`.
    - Who finds the queue full is told so at once: 503 `queue_full`, or 429 `tenant_queue_full` where its own tenant has
      filled its share. So is who has to give way to a tenant with less.
    - Who is cancelled while it waits has left the queue.
    - Engines may be shared with the admission of an earlier configuration: who waits in either has what comes free.
    """

    def __init__(
        self, catalog: Catalog, *, takes_work: Callable[[Engine], bool], patience: float,
        queued: Callable[[str, int], None], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`takes_work` tells whether an engine is well; `queued` is told how many wait for a model, at each change.

        `clock` in seconds.
        """
        self._takes_work = takes_work
        self._catalog = catalog
        self._patience = patience
        self._queued = queued
        self._clock = clock
        self._models = {model.name: _Model(model.name, catalog.serving(model.name)) for model in catalog.models}
        for name in self._models:
            queued(name, 0)
        self._freed = self._offer  # the one bound method, to be known again
        for engine in catalog.engines.values():
            engine.freed = self._freed

    def enter(self, tenant: str, engines: Sequence[Engine]) -> Place | None:
        """A place at the first of these engines that has room; whoever gets none can `wait` for one.

        The engines are all of one model, and there is at least one. Those that are not well count only where none is.
        """
        model = self._models[engines[0].model]
        well = [engine for engine in engines if self._takes_work(engine)] if len(engines) > 1 else None
        for engine in well or engines:
            self._offer(engine)  # who waits for it, and has not heard yet that it is back, comes first
            if engine.has_room:
                engine.in_flight += 1
                model.queue.began(tenant)
                return Place(self, engine, tenant)
        return None

    def left(self, place: Place) -> None:
        """A place is free again."""
        engine = place.engine
        model = self._models[engine.model]
        engine.in_flight -= 1
        model.queue.ended(place.tenant)
        model.finished.append(self._clock())
        self._offer(engine)
        if engine.freed is not None and engine.freed is not self._freed:  # another configuration has taken over
            engine.freed(engine)

    def look_again(self) -> None:
        """Engines may have come back: lets begin who waits for one."""
        for engine in self._catalog.engines.values():
            self._offer(engine)

    def _offer(self, engine: Engine) -> None:
        model = self._models[engine.model]
        before = len(model.queue)
        if not before:
            return
        while engine.has_room and self._takes_work(engine):
            waiter = model.queue.pop(lambda waiter: waiter.wants(engine))
            if waiter is None:
                break
            engine.in_flight += 1
            waiter.place.set_result(engine)
        if len(model.queue) != before:
            self._queued(model.name, len(model.queue))

    # -- waiting ----------------------------------------------------------------------------------------------------

    async def wait(self, tenant: str, engines: Sequence[Engine]) -> Place:
        """A place at any of these engines as soon as one has room. Raises NoRoomError."""
        model = self._models[engines[0].model]
        waiter = _Waiter(engines)
        self._line_up(tenant, waiter, model)
        late = asyncio.get_running_loop().call_later(self._patience, self._too_late, tenant, waiter, model)
        try:
            engine = await waiter.place
        except asyncio.CancelledError:
            self._leave(tenant, waiter, model)
            raise
        finally:
            late.cancel()
        return Place(self, engine, tenant)

    def _line_up(self, tenant: str, waiter: "_Waiter", model: "_Model") -> None:
        gave_way = model.queue.push(tenant, waiter)
        if gave_way is None:
            self._queued(model.name, len(model.queue))
        elif gave_way[1] is waiter:
            raise self._full(tenant, model)
        elif not gave_way[1].place.done():
            gave_way[1].place.set_exception(self._over_its_share(model))

    def _leave(self, tenant: str, waiter: "_Waiter", model: "_Model") -> None:
        """Who waited has been cancelled, perhaps just as its turn came."""
        if waiter.place.cancelled():
            model.queue.remove(tenant, waiter)
            self._queued(model.name, len(model.queue))
        elif waiter.place.exception() is None:
            Place(self, waiter.place.result(), tenant).close()

    def _too_late(self, tenant: str, waiter: "_Waiter", model: "_Model") -> None:
        if waiter.place.done():
            return
        model.queue.remove(tenant, waiter)
        self._queued(model.name, len(model.queue))
        message = "The engines of this model have been busy for too long."
        waiter.place.set_exception(self._unavailable(message, model, code="queue_timeout"))

    def _full(self, tenant: str, model: "_Model") -> NoRoomError:
        if model.queue.has_its_share(tenant):
            return self._over_its_share(model)
        message = "The engines of this model are busy, and as many requests wait as may wait."
        return self._unavailable(message, model, code="queue_full")

    def _unavailable(self, message: str, model: "_Model", *, code: str) -> NoRoomError:
        return NoRoomError(503, message, kind=UNAVAILABLE, code=code, retry_after=self._advice(model))

    def _over_its_share(self, model: "_Model") -> NoRoomError:
        return NoRoomError(
            429, "You have as many requests waiting for this model as you may have.",
            kind=RATE_LIMIT, code="tenant_queue_full", retry_after=self._advice(model),
        )  # fmt: skip

    def _advice(self, model: "_Model") -> int:
        now = self._clock()
        return seconds_until_room(len(model.queue), model.finished, now, unknown=self._patience)


class _Waiter:
    """Who waits for a place at one of these engines; `place` is the engine at which it has been given one."""

    __slots__ = ("engines", "place")

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self.place: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()

    def wants(self, engine: Engine) -> bool:
        """Whether it can use a place there; who has been cancelled has its turn no more, though it has not left yet."""
        return engine in self.engines and not self.place.done()


class _Model:
    """What waits for the engines of a model, and when work has been finished there lately."""

    __slots__ = ("finished", "name", "queue")

    def __init__(self, name: str, engines: Sequence[Engine]) -> None:
        self.name = name
        self.queue: FairQueue[_Waiter] = FairQueue(room_to_wait(sum(engine.max_in_flight or 0 for engine in engines)))
        self.finished: deque[float] = deque(maxlen=_REMEMBERED)
