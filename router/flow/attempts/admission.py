"""Concurrency limits per engine, and the queue of requests that wait for a slot.

An engine with more requests than it can process at once delays all of them. So a router sends each engine at most
`max_in_flight` requests at a time, and its workers count them together. Further requests wait here. There they can
still go to any engine of the model, and the order is by priority, and fair between tenants of one priority
(router.core.quota.fair_queue). Between workers, see router.core.quota.slot_turns.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from router.core.quota.fair_queue import FairQueue, estimate_retry_after
from router.core.resilience.readiness import Readiness
from router.errors import RATE_LIMIT, UNAVAILABLE, ApiError
from router.upstream.catalog import Catalog
from router.upstream.engine import UNBOUNDED_IN_FLIGHT, Engine

_QUEUED_PER_SLOT: Final = 4
_MIN_QUEUE_LENGTH: Final = 16
_MAX_QUEUE_LENGTH: Final = 1024  # because each queued request holds its body in memory
_MAX_FINISH_TIMES: Final = 64  # the last ends of requests, whose rate gives Retry-After
_TAKES_WAITERS: Final = (Readiness.READY, Readiness.DOWN)
_WORTH_WAITING: Final = (Readiness.READY, Readiness.PROBING)


def max_queue_length(slots: int) -> int:
    """Maximum number of requests that wait for a model whose engines have this many slots together."""
    return max(_MIN_QUEUE_LENGTH, min(_MAX_QUEUE_LENGTH, _QUEUED_PER_SLOT * slots))


class NoSlotError(ApiError):
    """No engine of a model has a free slot, and the request may not wait (any longer) for one."""


ENGINE_STARTING: Final = "engine_starting"
"""The error code of a request that does not wait (any longer) for an engine to start."""


def queue_timeout(retry_after: int) -> NoSlotError:
    """The refusal of a request that has waited for a slot as long as it may. `retry_after` in seconds."""
    return NoSlotError(
        503, "Timeout in the queue: the engines of this model are busy.",
        kind=UNAVAILABLE, code="queue_timeout", retry_after=retry_after,
    )  # fmt: skip


class Slot:
    """The right to have one request at an engine, until `release`; a second `release` does nothing.

    The loop over attempts owns it until an attempt succeeds. Then a stream owns it until it is closed; the slot of a
    JSON response is free when that is complete.
    """

    __slots__ = ("_admission", "engine", "tenant")

    def __init__(self, admission: "Admission", engine: Engine, tenant: str) -> None:
        self.engine = engine
        self.tenant = tenant
        self._admission: Admission | None = admission

    def release(self) -> None:
        # Cleared first, because a slot is released on several paths, and each counts only once.
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.release(self)


class Admission:
    """Grants the slots of the engines.

    - An engine never has more requests of this router than its `max_in_flight`.
    - A request gets a free slot at once. A queued request gets the first freed slot that it can use, in the queue's
      order. Nothing polls.
    - An engine that is down gets a request, new or queued, only if the request has no better one.
    - A queued request leaves the queue at once when all its engines are blocked: it is answered, or refused, as a new
      request would be.
    - No request waits longer than `queue_timeout` seconds: ApiError 503, `queue_timeout`.
    - If the queue is full, a request fails at once: 503 `queue_full`, or 429 `tenant_queue_full` if its tenant has its
      share of the queue. A queued request that is evicted for a tenant with fewer gets 429 `tenant_queue_full`, too.
    - A request that waits for an engine to start (`wait_for_start`) gets a slot only at a READY one, in the order of
      the same queue. It stays there while engines are down or blocked.
    - A request that is cancelled while it waits leaves the queue.
    - Engines can be shared with the Admissions of earlier configurations: a freed slot goes to requests in any of them,
      the oldest first, until `close`.
    """

    def __init__(
        self, catalog: Catalog, *, readiness: Callable[[Engine], Readiness], queue_timeout: float,
        set_queue_length: Callable[[str, int], None], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`readiness` of an engine, now. `clock` in seconds.

        `set_queue_length` gets a model's name and the number of queued requests, whenever that changes.
        """
        self._readiness = readiness
        self._catalog = catalog
        self._queue_timeout = queue_timeout
        self._set_queue_length = set_queue_length
        self._clock = clock
        self._models = {
            model.name: _ModelQueue(model.name, catalog.engines_for(model.name), waits_for_start=model.wake is not None)
            for model in catalog.models
        }
        for name in self._models:
            set_queue_length(name, 0)
        self._granted = list(catalog.engines.values())  # the engines whose slots it grants
        for engine in self._granted:
            engine.on_slot_freed += (self._admit_waiters,)

    def close(self) -> None:
        """To be called when no request waits, and none will."""
        for engine in self._granted:
            engine.on_slot_freed = tuple(each for each in engine.on_slot_freed if each != self._admit_waiters)
            if not engine.on_slot_freed:
                engine.close()

    def try_acquire(self, tenant: str, engines: Sequence[Engine]) -> Slot | None:
        """A slot at the first of these engines that has a free one, or None.

        The engines are all of one model, and there is at least one. Others than READY ones count only if none is READY.
        """
        model = self._models[engines[0].model]
        # A single engine needs no check: it is the only choice.
        ready = (
            [engine for engine in engines if self._readiness(engine) is Readiness.READY] if len(engines) > 1 else None
        )
        for engine in ready or engines:
            # Queued requests go first: the engine may have recovered without `recheck` having been called yet.
            self._admit_waiters(engine)
            if engine.take_slot():
                if not engine.in_flight and model.is_idle:
                    model.leave_out_pause(self._clock())
                engine.start_request()
                model.queue.on_acquired(tenant)
                return Slot(self, engine, tenant)
        return None

    def waiting(self, model_name: str) -> int:
        """How many requests wait for a slot at one of its engines."""
        return len(self._models[model_name].queue)

    def slot_wait(self, engine: Engine) -> float:
        """Seconds until a new request would get a slot there, by the ends of the last ones; 0 if they are unknown."""
        model = self._models[engine.model]
        if not engine.is_full or not model.finish_times:
            return 0.0
        interval = (model.busy_time(self._clock()) - model.finish_times[0]) / len(model.finish_times)
        return interval * (len(model.queue) + 1)

    def release(self, slot: Slot) -> None:
        engine = slot.engine
        model = self._models[engine.model]
        engine.end_request()
        model.queue.on_released(slot.tenant)
        model.finish_times.append(model.busy_time(self._clock()))
        engine.notify_slot_freed()

    def recheck(self) -> None:
        """Applies the engines' readiness to queued requests; to be called after it may have changed."""
        for engine in self._catalog.engines.values():
            self.recheck_engine(engine)

    def recheck_engine(self, engine: Engine) -> None:
        """As `recheck`, for one engine, and also for the requests of earlier configurations: the oldest first."""
        for on_slot_freed in engine.on_slot_freed:
            on_slot_freed(engine)

    def adopt(self, engines: Sequence[Engine]) -> None:
        """Grants the slots of these engines, too, which a later configuration has: this is an earlier one."""
        for engine in engines:
            if self._admit_waiters not in engine.on_slot_freed:
                engine.on_slot_freed = (self._admit_waiters, *engine.on_slot_freed)
                self._granted.append(engine)
            self._admit_waiters(engine)

    def _admit_waiters(self, engine: Engine) -> None:
        model = self._models[engine.model]
        length_before = len(model.queue)
        if not length_before:
            return
        if self._readiness(engine) is not Readiness.BLOCKED:
            model.blocked.discard(engine)
        elif engine not in model.blocked:
            model.blocked.add(engine)
            self._dismiss_blocked(model)
        while len(model.queue) and self._readiness(engine) in _TAKES_WAITERS and engine.take_slot_or_wait(self):
            waiter = self._next_waiter(engine, model)
            if waiter is None:
                engine.return_slot(self)
                break
            engine.start_request()
            waiter.granted_engine.set_result(engine)  # `acquire` makes the slot, or `_on_cancelled` releases it
        if len(model.queue) != length_before:
            self._set_queue_length(model.name, len(model.queue))

    def _next_waiter(self, engine: Engine, model: "_ModelQueue") -> "_QueuedRequest | None":
        match self._readiness(engine):
            case Readiness.READY:
                return model.queue.pop(lambda waiter: waiter.can_use(engine))
            case Readiness.DOWN:
                # A waiter goes to an engine that is down only if it has none that it can rather wait for.
                # In this order: `can_use` selects engines anew for each request that waits for a start.
                return model.queue.pop(
                    lambda waiter: waiter.has_none(self._is_worth_waiting) and waiter.can_use(engine)
                )
            case Readiness.PROBING | Readiness.BLOCKED:
                return None

    def _dismiss_blocked(self, model: "_ModelQueue") -> None:
        """Ends the wait of the requests that no engine can get: a new request would not wait for these engines."""
        for waiter in model.queue.remove_if(lambda waiter: waiter.has_none(self._is_usable)):
            if not waiter.granted_engine.done():  # else it has just been cancelled
                waiter.granted_engine.set_result(None)

    def _is_usable(self, engine: Engine) -> bool:
        return self._readiness(engine) is not Readiness.BLOCKED

    def _is_worth_waiting(self, engine: Engine) -> bool:
        return self._readiness(engine) in _WORTH_WAITING

    # -- the queue ----------------------------------------------------------------------------------------------------

    async def acquire(self, tenant: str, engines: Sequence[Engine], priority: int = 0) -> Slot | None:
        """Waits for a slot at any of these engines. None: all of them are blocked. Raises NoSlotError.

        `priority`: see router.core.quota.priority.
        """
        model = self._models[engines[0].model]
        # An engine that is blocked later on is then seen as newly blocked, and this request leaves the queue.
        usable = list(filter(self._is_usable, engines))
        if not usable:
            return None
        model.blocked.difference_update(usable)
        waiter = _QueuedRequest(engines)
        self._enqueue(tenant, waiter, model, priority)
        for each in usable:
            if each.shares_with_workers:  # so the other workers learn that this one waits; then it looks once more
                self._admit_waiters(each)
        return await self._wait(tenant, waiter, model, self._queue_timeout)

    async def wait_for_start(
        self, tenant: str, model_name: str, can_use: Callable[[Engine], bool], priority: int, seconds: float
    ) -> Slot:
        """Waits for a slot at any READY engine of the model, also one that is not known yet. Raises NoSlotError.

        `can_use` returns whether the request may go to an engine.
        """
        model = self._models[model_name]
        waiter = _QueuedRequest((), can_use)
        self._enqueue(tenant, waiter, model, priority)
        for engine in model.engines:
            self._admit_waiters(engine)
        slot = await self._wait(tenant, waiter, model, seconds)
        assert slot is not None  # such a request is never dismissed
        return slot

    def refuse_waiting_for_start(self, error: ApiError, model_name: str | None = None) -> None:
        """Ends the wait of the requests that wait for an engine to start: of a model, or all."""
        for model in self._models.values() if model_name is None else (self._models[model_name],):
            for waiter in model.queue.remove_if(lambda waiter: waiter.waits_for_start):
                if not waiter.granted_engine.done():
                    waiter.granted_engine.set_exception(error)
            self._set_queue_length(model.name, len(model.queue))

    async def _wait(self, tenant: str, waiter: "_QueuedRequest", model: "_ModelQueue", seconds: float) -> Slot | None:
        timeout_timer = asyncio.get_running_loop().call_later(seconds, self._on_queue_timeout, tenant, waiter, model)
        try:
            engine = await waiter.granted_engine
        except asyncio.CancelledError:
            self._on_cancelled(tenant, waiter, model)
            raise
        finally:
            timeout_timer.cancel()
        return Slot(self, engine, tenant) if engine is not None else None

    def _enqueue(self, tenant: str, waiter: "_QueuedRequest", model: "_ModelQueue", priority: int) -> None:
        evicted = model.queue.push(tenant, waiter, priority)  # (tenant, request), or None if the queue had room
        if evicted is None:
            self._set_queue_length(model.name, len(model.queue))
        elif evicted[1] is waiter:
            raise self._queue_full_error(tenant, model)
        elif not evicted[1].granted_engine.done():  # else it has just been cancelled
            evicted[1].granted_engine.set_exception(self._tenant_queue_full_error(model))

    def _on_cancelled(self, tenant: str, waiter: "_QueuedRequest", model: "_ModelQueue") -> None:
        if waiter.granted_engine.cancelled():
            model.queue.remove(tenant, waiter)
            self._set_queue_length(model.name, len(model.queue))
        elif waiter.granted_engine.exception() is None:
            engine = waiter.granted_engine.result()
            if engine is not None:  # granted in the same event loop iteration, so nobody uses it
                Slot(self, engine, tenant).release()

    def _on_queue_timeout(self, tenant: str, waiter: "_QueuedRequest", model: "_ModelQueue") -> None:
        if waiter.granted_engine.done():
            return
        model.queue.remove(tenant, waiter)
        self._set_queue_length(model.name, len(model.queue))
        if waiter.waits_for_start:
            message = "No engine of this model has started in time."
            error = self._unavailable_error(message, model, code=ENGINE_STARTING)
        else:
            error = queue_timeout(self._retry_after(model))
        waiter.granted_engine.set_exception(error)

    def _queue_full_error(self, tenant: str, model: "_ModelQueue") -> NoSlotError:
        if model.queue.has_fair_share(tenant):
            return self._tenant_queue_full_error(model)
        message = "The engines of this model are busy and the queue is full."
        return self._unavailable_error(message, model, code="queue_full")

    def _unavailable_error(self, message: str, model: "_ModelQueue", *, code: str) -> NoSlotError:
        return NoSlotError(503, message, kind=UNAVAILABLE, code=code, retry_after=self._retry_after(model))

    def _tenant_queue_full_error(self, model: "_ModelQueue") -> NoSlotError:
        return NoSlotError(
            429, "The tenant's queue for this model is full.",
            kind=RATE_LIMIT, code="tenant_queue_full", retry_after=self._retry_after(model),
        )  # fmt: skip

    def _retry_after(self, model: "_ModelQueue") -> int:
        now = model.busy_time(self._clock())
        return estimate_retry_after(len(model.queue), model.finish_times, now, default=self._queue_timeout)


class _QueuedRequest:
    """A request that waits for a slot at one of these engines, or at any that `accepts` allows once it has started."""

    __slots__ = ("accepts", "engines", "granted_engine")

    def __init__(self, engines: Sequence[Engine], accepts: Callable[[Engine], bool] | None = None) -> None:
        self.engines = engines
        self.accepts = accepts
        # None: it leaves the queue without one.
        self.granted_engine: asyncio.Future[Engine | None] = asyncio.get_running_loop().create_future()

    def can_use(self, engine: Engine) -> bool:
        # `done`: it has been cancelled and is not yet removed from the queue.
        if self.granted_engine.done():
            return False
        return engine in self.engines if self.accepts is None else self.accepts(engine)

    def has_none(self, is_such: Callable[[Engine], bool]) -> bool:
        """Whether none of its engines is such; these may be of a later configuration than the queue."""
        # One that waits for a start goes to no engine that is down, and leaves the queue for none that is blocked.
        return not self.waits_for_start and not any(map(is_such, self.engines))

    @property
    def waits_for_start(self) -> bool:
        return self.accepts is not None


class _ModelQueue:
    """A model's queue.

    - `finish_times`: when its last requests ended, in seconds of `busy_time`.
    - `blocked`: the engines for which the requests that cannot get any other have been taken out of the queue.
    """

    __slots__ = ("_idle_seconds", "blocked", "engines", "finish_times", "name", "queue")

    def __init__(self, name: str, engines: Sequence[Engine], *, waits_for_start: bool) -> None:
        self.name = name
        self.engines = engines
        self.blocked: set[Engine] = set()
        slots = sum(engine.equal_share for engine in engines)
        # Requests may wait for an engine without a bound, and for one that is not known yet.
        self.queue: FairQueue[_QueuedRequest] = FairQueue(
            max_queue_length(slots or UNBOUNDED_IN_FLIGHT if waits_for_start else slots)
        )
        self.finish_times: deque[float] = deque(maxlen=_MAX_FINISH_TIMES)
        self._idle_seconds = 0.0

    def busy_time(self, now: float) -> float:
        """The clock without the pauses in which the model had no request: these say nothing of its speed."""
        return now - self._idle_seconds

    @property
    def is_idle(self) -> bool:
        return not any(engine.in_flight for engine in self.engines)

    def leave_out_pause(self, now: float) -> None:
        """A request begins at `now`, and there was none since the last one ended."""
        if self.finish_times:
            self._idle_seconds = now - self.finish_times[-1]
