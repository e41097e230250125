"""Sends a request to the engines in order, until one of them returns a first token (or a JSON response).

Nothing is sent to the client before that. So until then, another engine can take over without the client noticing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.errors import ApiError
from router.flow.attempts.admission import Admission, NoSlotError, Slot
from router.flow.attempts.continuation.continuation_engines import ContinuationEngines
from router.flow.attempts.continuation.seam import (
    NO_CONTINUATIONS,
    ContinuationLimits,
    Restart,
    Seam,
    continuation_limits,
)
from router.flow.attempts.dispatch_errors import Failures
from router.flow.attempts.engine_attempts import EngineAttempts
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_losses import EngineLosses
from router.flow.attempts.engine_request import EngineRequests, lacks_endpoint
from router.flow.attempts.engine_stream import EngineStream
from router.flow.attempts.waking import Waking
from router.flow.exchange import AttemptFacts, GenerationRecord
from router.flow.sharing.inflight import InFlightRequest
from router.net.client.errors import EngineError
from router.net.loop_turns import LoopTurns
from router.settings import Settings
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.dispatch")

T = TypeVar("T")

SendToEngine = Callable[[Slot, InFlightRequest], Awaitable[T]]
"""Makes one attempt, at the engine of a slot. Raises EngineError, or ApiError for a refusal."""


class Dispatcher:
    """Sends requests to engines.

    - Engines are tried one after the other until one responds: those of one model, some of them a second time, then
      those of the next. Each failure is recorded. Engines that are drained or whose breaker is open are skipped.
    - A refusal of the request itself (4xx) goes to the client, without another attempt. After "not served" (404, 405,
      501), other engines are tried; the client gets it if no engine failed for another reason. See engine_errors.
    - Each attempt holds a slot at its engine, which is released whatever happens.
    """

    def __init__(
        self, admission: Admission, health: EngineHealth, attempts: EngineAttempts, losses: EngineLosses, *,
        continuations: ContinuationLimits = NO_CONTINUATIONS, continuation_engines: ContinuationEngines | None = None,
        on_adapter_not_served: Callable[[], None] = lambda: None, waking: Waking | None = None,
    ) -> None:  # fmt: skip
        """`continuation_engines`: None if no stream is continued.

        `waking`: None if no request waits for an engine to start.

        `on_adapter_not_served` is called when an engine does not have the adapter that it has listed.
        """
        self._admission = admission
        self._health = health
        self._attempts = attempts
        self.losses = losses
        self.continuations = continuations
        self.continuation_engines = continuation_engines
        self._on_adapter_not_served = on_adapter_not_served
        self._waking = waking
        self.seam_turns = LoopTurns()

    def start_stream(self, inflight: InFlightRequest, engines: Sequence[Engine]) -> Awaitable[EngineStream]:
        """A stream whose first token has been published. Raises ApiError; nothing has been published then."""
        return self._dispatch(self._attempts.stream, inflight, engines)

    def continue_stream(
        self, inflight: InFlightRequest, seam: Seam, engines: Sequence[Engine]
    ) -> Awaitable[tuple[EngineStream, Restart]]:
        """As `start_stream`, for the rest of a stream that an engine has broken off; and how its engine goes on.

        It does not wait for an engine to start: the client would wait in the middle of the response.
        """
        return self._first_success(partial(self._attempts.rest, seam), inflight, engines, broken_off=seam.error)

    def generate_json(
        self, inflight: InFlightRequest, engines: Sequence[Engine]
    ) -> Awaitable[tuple[bytes, RecordedResponse | NotStoredReason]]:
        """The JSON response, and what can be stored of it or why nothing can. Raises ApiError."""
        return self._dispatch(self._attempts.json, inflight, engines)

    def _dispatch(self, send: SendToEngine[T], inflight: InFlightRequest, engines: Sequence[Engine]) -> Awaitable[T]:
        if inflight.wait_plan is None or self._waking is None:
            return self._first_success(send, inflight, engines)
        first_success = partial(self._first_success, send, inflight)
        return self._waking.send(inflight.record, inflight.wait_plan, engines, first_success)

    # -- the loop over attempts ---------------------------------------------------------------------------------------

    async def _first_success(
        self, send: SendToEngine[T], inflight: InFlightRequest, engines: Sequence[Engine],
        granted: Slot | None = None, *, broken_off: EngineError | None = None,
    ) -> T:  # fmt: skip
        """The result of the first attempt that succeeds. That attempt owns the slot from then on.

        `granted`: a slot for the first attempt. `broken_off`: the failure of the engine whose stream is continued.
        """
        record, health = inflight.record, self._health
        failures = Failures(broken_off)
        require_allowed = partial(self.losses.require_allowed, record.tenant, inflight.request)
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
                    or self._admission.try_acquire(record.tenant, upcoming.engines)
                    or await self._wait_for_slot(record, upcoming.engines, require_allowed)
                )
            except NoSlotError as full:
                failures.no_room = full
                failover.leave_model()
                continue
            if slot is None:
                continue  # these were blocked while it waited; from now on, they are left out
            granted = None
            failover.tried(slot.engine)
            try:
                permit = health.permit(slot.engine, previous_error=failures.last, continues=failures.is_seam)
                if permit is not None and (not permit.probe or await permit.claim_probe()):
                    self._begin_attempt(record, slot.engine)
                    with permit:
                        return await self._counting_losses(send, slot, inflight)
            except EngineError as error:
                self._on_failed_attempt(inflight, slot.engine, error)
                failures.add(error, record.model, inflight.request)
                failover.failed(slot.engine, error.reason, error.retry_after, health.clock())
            except BaseException as cause:
                # A refusal (ApiError) or a cancellation ends all attempts, so this path releases the slot as well.
                slot.release()
                record.trace.end_attempt("refused" if isinstance(cause, ApiError) else "cancelled")
                raise
            # The attempt failed or was not permitted. A successful one has returned above and keeps its slot.
            slot.release()

    def _begin_attempt(self, record: GenerationRecord, engine: Engine) -> None:
        requested = record.model if record.adapter is None else record.adapter.base
        now = time.perf_counter()
        record.attempts += 1
        record.attempt = AttemptFacts(
            engine=engine.name,
            fallback_model=engine.model if engine.model != requested else None,
            has_other_revision=not engine.answers_as(record.engine_revision, record.adapter),
            sent_at=now,
            energy=engine.energy.start(now) if engine.announced is not None else None,
            earlier_seconds=record.attempt.earlier_seconds,
        )
        record.dispatched_at = record.dispatched_at or now  # of the first attempt
        record.prompt.on_sent(engine, now)
        record.traceparent = record.trace.start_attempt(engine, record.traceparent)

    def _on_failed_attempt(self, inflight: InFlightRequest, engine: Engine, error: EngineError) -> None:
        record, was_reached = inflight.record, error.reason != "local"
        record.attempt = record.attempt.gave_up(was_reached=was_reached)
        record.prompt.on_ended(time.perf_counter())
        record.trace.end_attempt(error.reason)
        if was_reached:  # else it gets no blame
            record.failed_attempts.append((engine.name, error.reason))
        if error.refusal is not None and record.adapter is not None:
            self._on_adapter_not_served()
        if not lacks_endpoint(error):  # which is logged once for each engine
            log.warning(
                "request %s: engine %s: %s (%s)", record.request_id, engine.name, error.full_message, error.reason
            )

    async def _counting_losses(self, send: SendToEngine[T], slot: Slot, inflight: InFlightRequest) -> T:
        try:
            return await send(slot, inflight)
        except EngineError as error:
            await self.on_failure(inflight, slot.engine, error)
            raise error  # noqa: TRY201 - compiled, a `raise` without it can lose the error after an `await`

    async def on_failure(self, inflight: InFlightRequest, engine: Engine, error: EngineError) -> None:
        """An attempt failed, before its first token or after it."""
        record, sent_at = inflight.record, inflight.record.attempt.sent_at
        if inflight.wait_plan is None and sent_at is not None:  # an engine that starts may end connections
            age = time.perf_counter() - sent_at
            await self.losses.on_failure(record.request_id, record.tenant, inflight.request, engine, error, age)

    async def _wait_for_slot(
        self, record: GenerationRecord, engines: Sequence[Engine], require_allowed: Callable[[], None]
    ) -> Slot | None:
        slot = await record.trace.queued(self._admission.acquire(record.tenant, engines, record.priority))
        if slot is not None:
            try:
                require_allowed()  # equal requests may have taken engines down meanwhile
            except ApiError:
                slot.release()
                raise
        return slot


def build_dispatcher(
    settings: Settings, requests: EngineRequests, losses: EngineLosses, admission: Admission, health: EngineHealth,
    continuation_engines: ContinuationEngines, *, on_adapter_not_served: Callable[[], None], waking: Waking | None,
) -> Dispatcher:  # fmt: skip
    """See Dispatcher."""
    continuations = continuation_limits(settings)
    return Dispatcher(
        admission,
        health,
        EngineAttempts(requests, health, continuations, max_entry=settings.cache.max_entry),
        losses,
        continuations=continuations,
        continuation_engines=continuation_engines,
        on_adapter_not_served=on_adapter_not_served,
        waking=waking,
    )
