"""Sends a request to the engines in order, until one of them returns a first token (or a JSON response).

Nothing is sent to the client before that. So until then, another engine can take over without the client noticing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from router.core.endpoints.recording.recorded_response import NotStoredReason
from router.errors import ApiError
from router.flow.attempts.admission import Admission, NoSlotError, Slot
from router.flow.attempts.attempt import Attempt
from router.flow.attempts.dispatch_errors import Failures
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_losses import EngineLosses
from router.flow.attempts.engine_request import lacks_endpoint, refuses_turn
from router.flow.exchange import AttemptFacts
from router.flow.sharing.inflight import InFlightRequest
from router.net.client.errors import EngineError
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.dispatch")

T = TypeVar("T")

MakeAttempt = Callable[[Attempt, InFlightRequest], Awaitable[T]]
"""See EngineAttempts."""


class Dispatch(Protocol):
    """A Dispatcher, or one that lets requests wait for an engine to start before."""

    def dispatch(
        self, make_attempt: MakeAttempt[T], inflight: InFlightRequest, engines: Sequence[Engine]
    ) -> Awaitable[T]:
        """The result of the first attempt that succeeds. Raises ApiError."""


class Dispatcher:
    """Sends requests to engines.

    - Engines are tried one after the other until one responds: those of one model, some of them a second time, then
      those of the next. Each failure is recorded. Engines that are drained or whose breaker is open are skipped.
    - A refusal of the request itself (4xx) goes to the client, without another attempt. After "not served" (404, 405,
      501), other engines are tried; the client gets it if no engine failed for another reason. See engine_errors.
    - Each attempt holds a slot at its engine, which is released whatever happens.
    """

    def __init__(
        self, admission: Admission, health: EngineHealth, losses: EngineLosses, *,
        on_adapter_not_served: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`on_adapter_not_served` is called when an engine does not have the adapter that it has listed."""
        self._admission = admission
        self._health = health
        self._losses = losses
        self._on_adapter_not_served = on_adapter_not_served

    async def dispatch(
        self, make_attempt: MakeAttempt[T], inflight: InFlightRequest, engines: Sequence[Engine],
        granted: Slot | None = None, *, broken_off: EngineError | None = None,
    ) -> T:  # fmt: skip
        """The result of the first attempt that succeeds. That attempt owns its slot from then on. Raises ApiError.

        `granted`: a slot for the first attempt. `broken_off`: the failure of the engine whose stream is continued.
        """
        origin, health = inflight.origin, self._health
        failures = Failures(broken_off)
        require_allowed = partial(self._losses.require_allowed, origin.tenant, inflight.request)
        if broken_off is None:  # requests earn retries; a continuation spends one
            health.record_request()
        failover = health.failover(engines, require_allowed)
        while True:
            upcoming = failover.next(health.clock(), health.rng())
            if upcoming is None:
                raise failures.outcome(engines, health)
            if upcoming.wait > 0:
                await asyncio.sleep(upcoming.wait)
                require_allowed()
            try:
                # A free slot is taken without a coroutine, which is the common case.
                slot = (
                    granted
                    or self._admission.try_acquire(origin.tenant, upcoming.engines)
                    or await self._wait_for_slot(inflight, upcoming.engines, require_allowed)
                )
            except NoSlotError as full:
                failures.no_room = full
                failover.leave_model()
                continue
            if slot is None:
                continue  # these were blocked while it waited; the failover leaves them out from now on
            granted = None
            failover.tried(slot.engine)
            try:
                permit = health.permit(slot.engine, previous_error=failures.last, continues=failures.is_seam)
                if permit is not None and (not permit.probe or await permit.claim_probe()):
                    attempt = self._begin_attempt(slot, inflight)
                    with permit:
                        try:
                            return await make_attempt(attempt, inflight)
                        except EngineError as error:
                            failure = error
                        # Within the permit: the probe of a half-open engine lasts until its health is known.
                        await self._on_failed_attempt(inflight, attempt, failure)
                        raise failure  # noqa: TRY301 - the permit sees it, then the loop
            except EngineError as error:
                failures.add(error, origin.shown_model, inflight.request)
                failover.failed(slot.engine, error.reason, error.retry_after, health.clock())
                if (turn := origin.at_engine) is not None and refuses_turn(turn, slot.engine, error):
                    failover.leave_only(partial(_is_named, turn.engine))
            except BaseException as cause:
                # A refusal (ApiError) or a cancellation ends all attempts, so this path releases the slot as well.
                slot.release()
                inflight.trace.end_attempt("refused" if isinstance(cause, ApiError) else "cancelled")
                raise
            # The attempt failed or was not permitted. A successful one has returned above and keeps its slot.
            slot.release()

    def _begin_attempt(self, slot: Slot, inflight: InFlightRequest) -> Attempt:
        engine, origin, record, now = slot.engine, inflight.origin, inflight.record, time.perf_counter()
        inflight.is_at_engine = True
        inflight.attempt_count += 1
        if inflight.dispatched_at is None:
            inflight.dispatched_at = now
        # Each attempt has its own id, because an engine may still hold the previous attempt under that one's.
        number, request_id = inflight.attempt_count, origin.engine_request_id
        # Known now, not at the end: by then, another engine may be at this address.
        is_fallback = engine.model != origin.engine_model
        deviation = NotStoredReason.FALLBACK if is_fallback else None
        if deviation is None and not engine.answers_as(origin.engine_revision, origin.adapter):
            deviation = NotStoredReason.REVISION
        facts = AttemptFacts(
            engine=engine.name,
            sent_at=now,
            fallback_model=engine.model if is_fallback else None,
            energy=engine.energy.start(now) if engine.announced is not None else None,
        )
        record.attempts.append(facts)
        inflight.prompt.on_sent(engine, now)
        return Attempt(
            slot,
            request_id=request_id if number == 1 else f"{request_id}-{number}",
            traceparent=inflight.trace.start_attempt(engine, origin.traceparent),
            sent_at=now,
            deviation=deviation,
            facts=facts,
        )

    async def _on_failed_attempt(self, inflight: InFlightRequest, attempt: Attempt, error: EngineError) -> None:
        # All of this before the wait for the engine's health, during which the client may leave.
        if error.reason == "local":  # no connection, for lack of a resource here, so it has cost no engine anything
            inflight.is_at_engine = False
        now = time.perf_counter()
        attempt.facts.failed_before_token(error, now)
        inflight.prompt.on_ended(now)
        inflight.trace.end_attempt(error.reason)
        if error.refusal is not None and inflight.origin.adapter is not None:
            self._on_adapter_not_served()
        if not lacks_endpoint(error):  # a missing endpoint is logged once for each engine
            log.warning(
                "request %s: engine %s: %s (%s)",
                inflight.origin.request_id, attempt.engine.name, error.full_message, error.reason,
            )  # fmt: skip
        await self._losses.on_failed_attempt(inflight, attempt, error)

    async def _wait_for_slot(
        self, inflight: InFlightRequest, engines: Sequence[Engine], require_allowed: Callable[[], None]
    ) -> Slot | None:
        origin = inflight.origin
        waiting = self._admission.acquire(origin.tenant, engines, origin.priority)
        record, began_at = inflight.record, time.perf_counter()
        record.queued_since = began_at
        try:
            slot = await inflight.trace.queued(waiting)
        finally:
            record.queued_since = None
            record.queue_seconds += time.perf_counter() - began_at
        if slot is not None:
            try:
                require_allowed()  # equal requests may have taken engines down meanwhile
            except ApiError:
                slot.release()
                raise
        return slot


def _is_named(name: str, engine: Engine) -> bool:
    return engine.name == name
