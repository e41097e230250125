"""Requests that wait until an engine of their model has started.

Theory of operation. Something else starts and stops engines by demand: an autoscaler that reads `llm_requests_queued`,
or a person. A model with the setting `wake` may therefore have no engine at all. A request for it then joins the
model's queue (Admission.wait_for_start) in place of failing, for at most `wake` seconds, and gets a slot there as soon
as an engine is up: nothing here polls. The engines for it are selected again after that, since the one that started may
not have been known before.

Each announced engine that comes or goes replaces the configuration in effect (process.application). A request that
waits belongs to the one with which it began, so that one takes over the engines of the new one; see `adopt`.

A request that has a fallback model with a ready engine does not wait, unless its client says that it prefers to.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Literal, TypeVar

from router.core.plural import pluralize
from router.core.quota.priority import LINE_PRIORITY
from router.core.resilience.asleep import StartWait, start_retry_after
from router.core.resilience.breaker import BreakerState
from router.core.resilience.readiness import Readiness
from router.errors import CIRCUIT_OPEN, ENGINE_FAILED, NO_ENGINE, UNAVAILABLE, ApiError, unavailable, unknown_model
from router.flow.attempts.admission import ENGINE_STARTING, Admission, NoSlotError, Slot
from router.flow.attempts.wait_plan import WaitPlan
from router.flow.sharing.inflight import InFlightRequest
from router.net.client.errors import EngineError
from router.shared.engines.start_times import StartTimes
from router.upstream.catalog import Catalog
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.engines")

T = TypeVar("T")

_LOST: Final = ("broken-off", "reset", "lost")  # EngineError.reason of a connection that has ended too early

WakeResult = Literal["started", "timeout", "declined", "full", "left", "stopped", "fallback"]
"""What became of a request that found its model asleep; `declined`: its client does not wait (any longer)."""

SendToEngines = Callable[[Sequence[Engine], Slot | None], Awaitable[T]]
"""Tries engines; the slot is for the first attempt. Raises ApiError."""

RecordWake = Callable[[str, WakeResult, float], None]
"""Gets a model, a result, and the seconds that the request waited."""


class Waking:
    """Decides which requests wait for an engine to start, and lets them wait.

    - No request waits longer than its plan's `max_wait`, which is `wake` or what its client prefers: ApiError 503,
      `engine_starting`, with a Retry-After that follows from earlier starts.
    - The order of the requests is that of the model's queue.
    - `is_used`: a model has `wake`. Otherwise no request waits.
    - After `stop`, nothing waits: ApiError 503, `stopping`.
    """

    def __init__(
        self, catalog: Catalog, admission: Admission, *, readiness: Callable[[Engine], Readiness],
        breaker_state: Callable[[str], BreakerState], start_times: StartTimes, record: RecordWake,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`readiness` of an engine and `breaker_state` by its name, now. `clock` in seconds."""
        self._catalog = catalog
        self._admission = admission
        self._readiness = readiness
        self._breaker_state = breaker_state
        self._start_times = start_times
        self._record = record
        self._clock = clock
        # Since when each of them waits, and whether it is a line of a batch; models without any are absent.
        self._waiting: dict[str, list[tuple[float, bool]]] = {}
        self._starts: dict[str, StartWait] = {}
        self._successor: Catalog | None = None
        self._stopped = False
        self.is_used = any(model.wake is not None for model in catalog.models)

    def plan(
        self,
        model: str,
        models: Sequence[str],
        preferred_wait: float | None,
        order_engines: Callable[[], Sequence[Engine]],
    ) -> WaitPlan | None:
        """How a request may wait; None if the model has no `wake`. `models`: it and its fallbacks, in any order.

        `preferred_wait`: the seconds that the client prefers to wait; None if it has said nothing.
        """
        configured = self._catalog.resolve_configured(model)
        if configured is None or configured.wake is None:
            return None
        max_wait = configured.wake if preferred_wait is None else min(preferred_wait, configured.wake)
        fallbacks = tuple(each for each in models if each != model)
        return WaitPlan(
            model=model,
            fallbacks=fallbacks,
            max_wait=max_wait,
            wakes_first=configured.wakes_first,
            is_preferred=preferred_wait is not None,
            is_shortened=max_wait < configured.wake,
            order_engines=order_engines,
        )

    def is_asleep(self, model: str) -> bool:
        return self._catalog.is_asleep(model, self._breaker_state)

    def has_engines(self, models: Sequence[str]) -> bool:
        return any(map(self._catalog.engines_for, models))

    def must_wait(self, plan: WaitPlan) -> bool:
        """Whether only the start of an engine lets the request be answered as it should be."""
        if not self.is_asleep(plan.model):
            return False
        waits_for_turn = plan.wakes_first and plan.max_wait > 0 and self._catalog.rests(plan.model)
        return plan.prefers_waiting or waits_for_turn or not self._fallback_is_ready(plan)

    def _fallback_is_ready(self, plan: WaitPlan) -> bool:
        engines = (engine for model in plan.fallbacks for engine in self._catalog.engines_for(model))
        return any(self._readiness(engine) is Readiness.READY for engine in engines)

    async def send(
        self,
        inflight: InFlightRequest,
        plan: WaitPlan,
        engines: Sequence[Engine],
        attempt: SendToEngines[T],
    ) -> T:
        """The result of `attempt`, after a wait where that is needed. Raises ApiError."""
        if self.is_asleep(plan.model) and not self.must_wait(plan):
            self._record(plan.model, "fallback", 0.0)
            # Without the engines that are down: the address of one that does not exist can cost a connection timeout.
            return await attempt([engine for engine in engines if engine.model in plan.fallbacks], None)
        must_wait = self.must_wait(plan)
        while True:
            slot: Slot | None = None
            try:
                if must_wait:
                    try:
                        slot = await self._wait(inflight, plan)
                        engines = plan.order_engines()
                    except NoSlotError as no_slot:
                        return await _ask_fallbacks(plan, attempt, no_slot)
                return await attempt(engines, slot)
            except BaseException as error:  # a cancellation, too: the slot must not be lost
                if slot is not None:  # the attempt may have released it
                    slot.release()
                if (
                    not isinstance(error, ApiError)
                    or plan.deadline_passed(self._clock())
                    or not self._may_wait_again(plan, error)
                ):
                    raise
                must_wait = True

    def _may_wait_again(self, plan: WaitPlan, error: ApiError) -> bool:
        if plan.deadline is None:  # an engine has gone that was up a moment ago
            return error.code == NO_ENGINE and self.must_wait(plan)
        # The engine that it has waited for has died, or another process tests it since it had failures.
        if error.code in (NO_ENGINE, CIRCUIT_OPEN):
            return True
        cause = error.__cause__
        # As far as is known before the next check: all requests of an engine that dies fail at once, which opens its
        # breaker, so there is no second attempt that would find it gone.
        return (
            error.code == ENGINE_FAILED
            and isinstance(cause, EngineError)
            and cause.reason in _LOST
            and not any(self._readiness(each) is Readiness.READY for each in self._catalog.engines_for(plan.model))
        )

    async def _wait(self, inflight: InFlightRequest, plan: WaitPlan) -> Slot:
        """A slot at an engine that has started. Raises ApiError."""
        model, began_at = plan.model, self._clock()
        if self._successor is not None and model not in self._waiting:  # else `adopt` has done it
            if not _has_model(self._successor, model):
                raise unknown_model(model)
            self._take_engines(model, self._successor)
        if plan.deadline is None:
            plan.deadline = began_at + plan.max_wait
        result: WakeResult = "left"
        is_start = self.is_asleep(model)
        waiting = began_at, inflight.origin.priority == LINE_PRIORITY
        self._enter(model, waiting, is_start=is_start)
        try:
            slot = await self._wait_in_queue(inflight, plan, plan.deadline - began_at)
            result = "started"
            if is_start:
                self._on_started(model)
            return slot
        except NoSlotError as error:
            result = "full"
            if error.code == ENGINE_STARTING:
                result = "declined" if plan.is_shortened else "timeout"
                error.retry_after = await self._retry_after(model)
            raise
        except ApiError:
            result = "stopped"
            raise
        finally:
            self._leave(model, waiting)
            self._record(model, result, self._clock() - began_at)

    async def _wait_in_queue(self, inflight: InFlightRequest, plan: WaitPlan, seconds: float) -> Slot:
        if self._stopped:
            raise _stopping()
        if seconds <= 0:
            raise _starting()
        origin = inflight.origin
        waiting = self._admission.wait_for_start(
            origin.tenant, plan.model, partial(_is_selected, plan), origin.priority, seconds
        )
        record, began_at = inflight.record, time.perf_counter()
        record.waiting_since = began_at
        try:
            return await inflight.trace.queued(waiting)
        finally:
            record.waiting_since = None
            record.wait_seconds += time.perf_counter() - began_at

    # -- the starts ---------------------------------------------------------------------------------------------------

    def longest_waits(self, model: str) -> tuple[float | None, float | None]:
        """Since when a person has waited longest, and a line of a batch; None: nobody waits."""
        waiting = self._waiting.get(model, ())
        return (
            min((since for since, is_line in waiting if not is_line), default=None),
            min((since for since, is_line in waiting if is_line), default=None),
        )

    def _enter(self, model: str, waiting: tuple[float, bool], *, is_start: bool) -> None:
        now, start = waiting[0], self._starts.get(model)
        if is_start and (start is None or start.last_left is not None):
            if start is None or not start.continues(now):
                start = StartWait(now)
                log.info("model %s: no engine is up; requests wait for one to start", model)
            self._starts[model] = start._replace(last_left=None)
        self._waiting.setdefault(model, []).append(waiting)

    def _leave(self, model: str, waiting: tuple[float, bool]) -> None:
        self._waiting[model].remove(waiting)
        if not self._waiting[model]:
            del self._waiting[model]
            if model in self._starts:
                self._starts[model] = self._starts[model]._replace(last_left=self._clock())

    def _on_started(self, model: str) -> None:
        start = self._starts.pop(model, None)
        if start is not None:  # else the first of those that waited has reported it
            seconds = self._clock() - start.since
            waited = pluralize(len(self._waiting[model]), "request")
            log.info("model %s: an engine is up after %.1f s; %s waited", model, seconds, waited)
            self._start_times.add(model, seconds)

    async def _retry_after(self, model: str) -> int:
        durations = await self._start_times.read(model)
        start = self._starts.get(model)
        return start_retry_after(durations, self._clock() - start.since if start is not None else 0.0)

    # -- other configurations, and the end ----------------------------------------------------------------------------

    def adopt(self, catalog: Catalog) -> None:
        """To be called on an earlier configuration when `catalog` takes effect: its engines are those that start."""
        self._successor = catalog  # of requests that have been sent to an engine, and may still have to wait
        for model in self._waiting:
            if _has_model(catalog, model):
                self._take_engines(model, catalog)
            else:  # nobody checks its engines any more
                self._admission.refuse_waiting_for_start(unknown_model(model), model)

    def _take_engines(self, model: str, catalog: Catalog) -> None:
        engines = catalog.engines_for(model)
        self._catalog.replace_engines(model, engines)
        self._admission.adopt(engines)

    def stop(self) -> None:
        """The process ends: who waits is sent elsewhere at once, since a start can take longer than the process has."""
        self._stopped = True
        self._admission.refuse_waiting_for_start(_stopping())


def _has_model(catalog: Catalog, model: str) -> bool:
    configured = catalog.resolve_configured(model)
    return configured is not None and configured.name == model  # else it is only an alias now


async def _ask_fallbacks(plan: WaitPlan, attempt: SendToEngines[T], no_slot: NoSlotError) -> T:
    """For a request that does not wait (any longer), for this reason, which it gets if the fallbacks are down, too."""
    engines = [engine for engine in _engines(plan) if engine.model in plan.fallbacks]
    if not engines:
        raise no_slot
    try:
        return await attempt(engines, None)
    except ApiError as error:
        if error.code != NO_ENGINE:
            raise
        raise no_slot from None


def _is_selected(plan: WaitPlan, engine: Engine) -> bool:
    try:
        return engine in plan.order_engines()
    except ApiError:  # no engine can serve it, as is known by now: it gets the slot, and then this error
        return True


def _engines(plan: WaitPlan) -> Sequence[Engine]:
    """The engines of its models; none if none can serve the request, as far as is known."""
    try:
        return plan.order_engines()
    except ApiError:
        return ()


def _starting() -> NoSlotError:
    return NoSlotError(503, "No engine of this model has started yet.", kind=UNAVAILABLE, code=ENGINE_STARTING)


def _stopping() -> ApiError:
    return unavailable("The router is shutting down.", code="stopping")
