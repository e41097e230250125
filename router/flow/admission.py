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

from router.core.quota.fair_queue import FairQueue, estimate_retry_after
from router.errors import RATE_LIMIT, UNAVAILABLE, ApiError
from router.upstream.catalog import Catalog, Engine

_QUEUED_PER_SLOT: Final = 4  # how many may wait for each place there is
_MIN_QUEUE_LENGTH: Final = 16
_MAX_QUEUE_LENGTH: Final = 1024  # each holds a request's body
_MAX_FINISH_TIMES: Final = 64


def max_queue_length(slots: int) -> int:
    """How many may wait for the engines of a model that have so many places."""
    return max(_MIN_QUEUE_LENGTH, min(_MAX_QUEUE_LENGTH, _QUEUED_PER_SLOT * slots))


class NoSlotError(ApiError):
    """No engine of a model has room, and nobody may wait for one any longer."""


class Slot:
    """A place at an engine, until it is closed; closing it twice does nothing."""

    __slots__ = ("_admission", "engine", "tenant")

    def __init__(self, admission: "Admission", engine: Engine, tenant: str) -> None:
        self.engine = engine
        self.tenant = tenant
        self._admission: Admission | None = admission

    def release(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.release(self)


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
        self, catalog: Catalog, *, accepts_requests: Callable[[Engine], bool], queue_timeout: float,
        set_queue_length: Callable[[str, int], None], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`takes_work` tells whether an engine is well; `queued` is told how many wait for a model, at each change.

        `clock` in seconds.
        """
        self._accepts_requests = accepts_requests
        self._catalog = catalog
        self._queue_timeout = queue_timeout
        self._set_queue_length = set_queue_length
        self._clock = clock
        self._models = {
            model.name: _ModelQueue(model.name, catalog.engines_for(model.name)) for model in catalog.models
        }
        for name in self._models:
            set_queue_length(name, 0)
        self._on_slot_freed = self._admit_waiters  # the one bound method, to be known again
        for engine in catalog.engines.values():
            engine.on_slot_freed = self._on_slot_freed

    def try_acquire(self, tenant: str, engines: Sequence[Engine]) -> Slot | None:
        """A place at the first of these engines that has room; whoever gets none can `wait` for one.

        The engines are all of one model, and there is at least one. Those that are not well count only where none is.
        """
        model = self._models[engines[0].model]
        well = [engine for engine in engines if self._accepts_requests(engine)] if len(engines) > 1 else None
        for engine in well or engines:
            self._admit_waiters(engine)  # who waits for it, and has not heard yet that it is back, comes first
            if engine.has_free_slot:
                engine.in_flight += 1
                model.queue.on_acquired(tenant)
                return Slot(self, engine, tenant)
        return None

    def release(self, slot: Slot) -> None:
        """A place is free again."""
        engine = slot.engine
        model = self._models[engine.model]
        engine.in_flight -= 1
        model.queue.on_released(slot.tenant)
        model.finish_times.append(self._clock())
        self._admit_waiters(engine)
        if (
            engine.on_slot_freed is not None and engine.on_slot_freed is not self._on_slot_freed
        ):  # another configuration has taken over
            engine.on_slot_freed(engine)

    def recheck(self) -> None:
        """Engines may have come back: lets begin who waits for one."""
        for engine in self._catalog.engines.values():
            self._admit_waiters(engine)

    def _admit_waiters(self, engine: Engine) -> None:
        model = self._models[engine.model]
        before = len(model.queue)
        if not before:
            return
        while engine.has_free_slot and self._accepts_requests(engine):
            waiter = model.queue.pop(lambda waiter: waiter.can_use(engine))
            if waiter is None:
                break
            engine.in_flight += 1
            waiter.granted_engine.set_result(engine)
        if len(model.queue) != before:
            self._set_queue_length(model.name, len(model.queue))

    # -- waiting ----------------------------------------------------------------------------------------------------

    async def acquire(self, tenant: str, engines: Sequence[Engine]) -> Slot:
        """A place at any of these engines as soon as one has room. Raises NoRoomError."""
        model = self._models[engines[0].model]
        waiter = _QueuedRequest(engines)
        self._enqueue(tenant, waiter, model)
        late = asyncio.get_running_loop().call_later(self._queue_timeout, self._on_queue_timeout, tenant, waiter, model)
        try:
            engine = await waiter.granted_engine
        except asyncio.CancelledError:
            self._on_cancelled(tenant, waiter, model)
            raise
        finally:
            late.cancel()
        return Slot(self, engine, tenant)

    def _enqueue(self, tenant: str, waiter: "_QueuedRequest", model: "_ModelQueue") -> None:
        gave_way = model.queue.push(tenant, waiter)
        if gave_way is None:
            self._set_queue_length(model.name, len(model.queue))
        elif gave_way[1] is waiter:
            raise self._queue_full_error(tenant, model)
        elif not gave_way[1].granted_engine.done():
            gave_way[1].granted_engine.set_exception(self._tenant_queue_full_error(model))

    def _on_cancelled(self, tenant: str, waiter: "_QueuedRequest", model: "_ModelQueue") -> None:
        """Who waited has been cancelled, perhaps just as its turn came."""
        if waiter.granted_engine.cancelled():
            model.queue.remove(tenant, waiter)
            self._set_queue_length(model.name, len(model.queue))
        elif waiter.granted_engine.exception() is None:
            Slot(self, waiter.granted_engine.result(), tenant).release()

    def _on_queue_timeout(self, tenant: str, waiter: "_QueuedRequest", model: "_ModelQueue") -> None:
        if waiter.granted_engine.done():
            return
        model.queue.remove(tenant, waiter)
        self._set_queue_length(model.name, len(model.queue))
        message = "The engines of this model have been busy for too long."
        waiter.granted_engine.set_exception(self._unavailable_error(message, model, code="queue_timeout"))

    def _queue_full_error(self, tenant: str, model: "_ModelQueue") -> NoSlotError:
        if model.queue.has_fair_share(tenant):
            return self._tenant_queue_full_error(model)
        message = "The engines of this model are busy, and as many requests wait as may wait."
        return self._unavailable_error(message, model, code="queue_full")

    def _unavailable_error(self, message: str, model: "_ModelQueue", *, code: str) -> NoSlotError:
        return NoSlotError(503, message, kind=UNAVAILABLE, code=code, retry_after=self._retry_after(model))

    def _tenant_queue_full_error(self, model: "_ModelQueue") -> NoSlotError:
        return NoSlotError(
            429, "You have as many requests waiting for this model as you may have.",
            kind=RATE_LIMIT, code="tenant_queue_full", retry_after=self._retry_after(model),
        )  # fmt: skip

    def _retry_after(self, model: "_ModelQueue") -> int:
        now = self._clock()
        return estimate_retry_after(len(model.queue), model.finish_times, now, default=self._queue_timeout)


class _QueuedRequest:
    """Who waits for a place at one of these engines; `place` is the engine at which it has been given one."""

    __slots__ = ("engines", "granted_engine")

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self.granted_engine: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()

    def can_use(self, engine: Engine) -> bool:
        """Whether it can use a place there; who has been cancelled has its turn no more, though it has not left yet."""
        return engine in self.engines and not self.granted_engine.done()


class _ModelQueue:
    """What waits for the engines of a model, and when work has been finished there lately."""

    __slots__ = ("finish_times", "name", "queue")

    def __init__(self, name: str, engines: Sequence[Engine]) -> None:
        self.name = name
        self.queue: FairQueue[_QueuedRequest] = FairQueue(
            max_queue_length(sum(engine.max_in_flight or 0 for engine in engines))
        )
        self.finish_times: deque[float] = deque(maxlen=_MAX_FINISH_TIMES)
