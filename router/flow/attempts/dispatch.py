"""Sends a request to the engines in order, until one of them returns a first token (or a JSON response).

Nothing is sent to the client before that. So until then, another engine can take over without the client noticing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar

from router.core.endpoints.answer_shapes import AnswerShapes
from router.core.endpoints.continuation import asks_token_ids
from router.core.endpoints.endpoint import Recorder
from router.core.endpoints.engine_errors import answer_too_large
from router.core.endpoints.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording import StreamRecorder
from router.core.endpoints.token_ids import TokenIdCutter
from router.core.endpoints.upload import media_type
from router.core.endpoints.workload import workload
from router.core.resilience.engine_losses import Suspects
from router.core.resilience.timeouts import EngineTimeouts
from router.errors import ApiError
from router.flow.attempts.admission import Admission, NoSlotError, Slot
from router.flow.attempts.continuation_engines import ContinuationEngines
from router.flow.attempts.dispatch_errors import Failures, check_unreadable, engine_timeout
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_losses import EngineLosses
from router.flow.attempts.engine_request import EngineRequests, lacks_endpoint
from router.flow.attempts.engine_stream import EngineStream, Publisher
from router.flow.attempts.seam import ContinuationLimits, Seam
from router.flow.attempts.seam_turns import SeamTurns
from router.flow.attempts.waking import Waking
from router.flow.exchange import AttemptFacts, GenerationRecord
from router.flow.sharing.inflight import InFlightRequest
from router.net.client.errors import EngineError
from router.net.client.response import EngineResponse
from router.upstream.client import EngineClient
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.dispatch")

T = TypeVar("T")

SendAttempt = Callable[[Slot, InFlightRequest], Awaitable[T]]
"""One attempt at the engine of a slot. Raises EngineError, or ApiError for a refusal."""

_NO_CONTINUATIONS: Final = ContinuationLimits(0)

_LEAST_TIME: Final = 0.1  # seconds; with less for the rest of a stream, an engine would fail that is healthy

MAX_RESPONSE: Final = 256 << 20
"""Maximum bytes of a JSON response; a longer one is an error."""


class Dispatcher:
    """Sends requests to engines.

    - Engines are tried one after the other until one responds: those of one model, some of them a second time, then
      those of the next. Each failure is recorded. Engines that are drained or whose breaker is open are skipped.
    - A refusal of the request itself (4xx) goes to the client, without another attempt. After "not served" (404, 405,
      501), other engines are tried; the client gets it if no engine failed for another reason. See engine_errors.
    - Each attempt holds a slot at its engine, which is released whatever happens.
    """

    def __init__(
        self,
        client: EngineClient,
        admission: Admission,
        timeouts: EngineTimeouts,
        health: EngineHealth,
        *,
        max_entry: int,
        continuations: ContinuationLimits = _NO_CONTINUATIONS,
        continuation_engines: ContinuationEngines | None = None,
        cache_salts: Mapping[str, str] = MappingProxyType({}),
        on_adapter_not_served: Callable[[], None] = lambda: None,
        waking: Waking | None = None,
        suspects: Suspects | None = None,
    ) -> None:
        """`max_entry`: bytes of an entry at most; a larger response is not recorded.

        `continuation_engines`: None if no stream is continued.

        `waking`: None if no request waits for an engine to start.

        `suspects`: the requests with which engines died, as far as they are known already.

        `on_adapter_not_served` is called when an engine does not have the adapter that it has listed.

        `cache_salts`: by tenant, the salt of its prompts in the engines' prefix caches; see core.endpoints.cache_salt.
        """
        self._requests = EngineRequests(client, timeouts, cache_salts)
        self._admission = admission
        self._timeouts = timeouts
        self._health = health
        self._max_entry = max_entry
        self._shapes = AnswerShapes()
        self.continuations = continuations
        self.continuation_engines = continuation_engines
        self._on_adapter_not_served = on_adapter_not_served
        self._waking = waking
        self.losses = EngineLosses(client, suspects if suspects is not None else Suspects())
        self.seam_turns = SeamTurns()

    def start_stream(self, inflight: InFlightRequest, engines: Sequence[Engine]) -> Awaitable[EngineStream]:
        """A stream whose first token has been published. Raises ApiError; nothing has been published then."""
        return self._dispatch(self._attempt_stream, inflight, engines)

    def continue_stream(
        self, inflight: InFlightRequest, seam: Seam, engines: Sequence[Engine]
    ) -> Awaitable[EngineStream]:
        """As `start_stream`, for the rest of a stream that an engine has broken off."""
        return self._first_success(partial(self._attempt_rest, seam), inflight, engines, broken_off=seam.error)

    def generate_json(
        self, inflight: InFlightRequest, engines: Sequence[Engine]
    ) -> Awaitable[tuple[bytes, RecordedResponse | NotStoredReason]]:
        """The JSON response, and what can be stored of it or why nothing can. Raises ApiError."""
        return self._dispatch(self._attempt_json, inflight, engines)

    def _dispatch(self, attempt: SendAttempt[T], inflight: InFlightRequest, engines: Sequence[Engine]) -> Awaitable[T]:
        if inflight.wait_plan is None or self._waking is None:
            return self._first_success(attempt, inflight, engines)
        send = partial(self._first_success, attempt, inflight)
        return self._waking.send(inflight.record, inflight.wait_plan, engines, send)

    # -- the loop over attempts ---------------------------------------------------------------------------------------

    async def _first_success(
        self, attempt: SendAttempt[T], inflight: InFlightRequest, engines: Sequence[Engine],
        granted: Slot | None = None, *, broken_off: EngineError | None = None,
    ) -> T:  # fmt: skip
        """The result of the first attempt that succeeds. That attempt owns the slot from then on.

        `granted`: a slot for the first attempt. `broken_off`: the failure of the engine whose stream is continued.
        """
        record, health = inflight.record, self._health
        failures = Failures(broken_off)
        require_allowed = partial(self.losses.require_allowed, record.tenant, inflight.request)
        if broken_off is None:
            health.record_request()
        attempts = health.attempts(engines)
        while True:
            require_allowed()
            upcoming = attempts.next(health.clock(), health.rng())
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
                attempts.leave_model()
                continue
            if slot is None:
                continue  # these were blocked while it waited; from now on, they are left out
            granted = None
            attempts.tried(slot.engine)
            try:
                permit = health.permit(slot.engine, previous_error=failures.last, continues=failures.is_seam)
                if permit is not None and (not permit.probe or await permit.claim_probe()):
                    self._begin_attempt(record, slot.engine)
                    with permit:
                        return await self._counting_losses(attempt, slot, inflight)
            except EngineError as error:
                self._on_failed_attempt(inflight, slot.engine, error)
                failures.add(error, record.model, inflight.request)
                attempts.failed(slot.engine, error.reason, error.retry_after, health.clock())
            except BaseException as cause:
                # A refusal (ApiError) or a cancellation ends all attempts, so this path releases the slot as well.
                slot.release()
                if record.trace is not None:
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
        if record.trace is not None:
            record.traceparent = record.trace.start_attempt(engine)

    def _on_failed_attempt(self, inflight: InFlightRequest, engine: Engine, error: EngineError) -> None:
        record, was_reached = inflight.record, error.reason != "local"
        record.attempt = record.attempt.gave_up(was_reached=was_reached)
        record.prompt.on_ended(time.perf_counter())
        if record.trace is not None:
            record.trace.end_attempt(error.reason)
        if was_reached:  # else it gets no blame
            record.failed_attempts.append((engine.name, error.reason))
        if error.refusal is not None and record.adapter is not None:
            self._on_adapter_not_served()
        if not lacks_endpoint(error):  # which is logged once for each engine
            log.warning(
                "request %s: engine %s: %s (%s)", record.request_id, engine.name, error.full_message, error.reason
            )

    async def _counting_losses(self, attempt: SendAttempt[T], slot: Slot, inflight: InFlightRequest) -> T:
        try:
            return await attempt(slot, inflight)
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
        slot = await self._queue(record, engines)
        if slot is not None:
            try:
                require_allowed()  # equal requests may have taken engines down meanwhile
            except ApiError:
                slot.release()
                raise
        return slot

    async def _queue(self, record: GenerationRecord, engines: Sequence[Engine]) -> Slot | None:
        if record.trace is None:
            return await self._admission.acquire(record.tenant, engines, record.priority)
        started_at, error_type = time.perf_counter(), "cancelled"
        try:
            slot = await self._admission.acquire(record.tenant, engines, record.priority)
            error_type = "blocked" if slot is None else ""
            return slot
        except NoSlotError as error:
            error_type = error.reason
            raise
        finally:
            record.trace.add_queue_wait(started_at, error_type or None)

    # -- one attempt ------------------------------------------------------------------------------------------------

    async def _attempt_stream(self, slot: Slot, inflight: InFlightRequest) -> EngineStream:
        record, request = inflight.record, inflight.request
        engine = slot.engine
        token_ids = engine.traits.token_ids and self.continuations.allows(engine.model) and asks_token_ids(request)
        response = await self._requests.post(engine, record, request, self._timeouts.first_token, token_ids=token_ids)
        assert request.endpoint.streaming is not None  # else the request would not be for a stream
        recorder = request.endpoint.streaming.make_recorder(self._max_entry, self._shapes)
        if token_ids and isinstance(recorder, StreamRecorder):
            recorder.token_ids = TokenIdCutter()
        return await self._start(slot, response, recorder, inflight)

    async def _attempt_rest(self, seam: Seam, slot: Slot, inflight: InFlightRequest) -> EngineStream:
        request = seam.request_for(slot.engine)
        if request is None:  # it could go on, but not any more after what another engine said
            raise EngineError("diverged", "the engine cannot go on with the response")
        recorder = seam.new_recorder()
        # By the client's request: `request` is for the rest, but the time that the tokens before it took counts too.
        whole = self._timeouts.total(workload(seam.request), slot.engine.max_model_len)
        total = whole - seam.elapsed(time.perf_counter())
        if total < _LEAST_TIME:
            raise engine_timeout()
        response = await self._requests.post(
            slot.engine, inflight.record, request, min(self._timeouts.first_token, total),
            token_ids=seam.asks_token_ids(slot.engine), total=total,
        )  # fmt: skip
        try:
            return await self._start(slot, response, recorder, inflight)
        except EngineError as error:
            seam.on_failure(error)
            raise

    async def _start(
        self, slot: Slot, response: EngineResponse, recorder: Recorder, publisher: Publisher
    ) -> EngineStream:
        stream = EngineStream(
            slot, response, recorder, self._health, publisher,
            first_timeout=self._timeouts.first_token, chunk_timeout=self._timeouts.between_tokens,
        )  # fmt: skip
        try:
            await stream.wait_first_token()
        except BaseException:
            stream.close_response()  # without the slot, which `_first_success` releases
            raise
        return stream

    async def _attempt_json(
        self, slot: Slot, inflight: InFlightRequest
    ) -> tuple[bytes, RecordedResponse | NotStoredReason]:
        record, request = inflight.record, inflight.request
        with await self._requests.post(slot.engine, record, request, None) as response:
            if request.form is not None:
                record.media_type = media_type(response.content_type)
            body, complete = await response.read_up_to(MAX_RESPONSE)
        if not complete:
            raise answer_too_large("The response", MAX_RESPONSE)
        recorded = request.endpoint.record_body(request, body, self._max_entry)
        if recorded is NotStoredReason.ERROR:
            recorded = check_unreadable(request, body, slot.engine)
        self._health.record_success(slot.engine)
        slot.release()  # here, because the response is complete; a stream keeps the slot until `EngineStream.close`
        return body, recorded
