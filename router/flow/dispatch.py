"""Sends a request to the engines in order, until one of them returns a first token (or a JSON response).

Nothing is sent to the client before that. So until then, another engine can take over without the client noticing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Final, TypeVar

from router.core.endpoints.answer_shapes import AnswerShapes
from router.core.endpoints.continuation import asks_token_ids
from router.core.endpoints.endpoint import InferenceRequest, Recorder
from router.core.endpoints.engine_errors import (
    answer_too_large,
    unsupported_endpoint,
)
from router.core.endpoints.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording import StreamRecorder
from router.core.endpoints.token_ids import TokenIdCutter
from router.core.endpoints.upload import media_type
from router.core.endpoints.workload import workload
from router.core.resilience.engine_losses import Suspects
from router.core.resilience.timeouts import EngineTimeouts
from router.errors import ApiError
from router.flow.admission import Admission, NoSlotError, Slot
from router.flow.continuation_engines import ContinuationEngines
from router.flow.dispatch_errors import check_unreadable, client_error, engine_timeout
from router.flow.engine_health import EngineHealth
from router.flow.engine_losses import EngineLosses
from router.flow.engine_request import EngineRequests, lacks_endpoint
from router.flow.engine_stream import EngineStream, Publisher
from router.flow.exchange import GenerationRecord
from router.flow.seam import ContinuationLimits, Seam
from router.flow.seam_turns import SeamTurns
from router.flow.waking import Waking
from router.net.client.errors import EngineError
from router.net.client.response import EngineResponse
from router.upstream.client import EngineClient
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.dispatch")

T = TypeVar("T")

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

    def start_stream(
        self, record: GenerationRecord, request: InferenceRequest, engines: Sequence[Engine], publisher: Publisher
    ) -> Awaitable[EngineStream]:
        """A stream whose first token has been published. Raises ApiError; nothing has been published then."""
        return self._dispatch(partial(self._attempt_stream, publisher), record, request, engines)

    def continue_stream(
        self, record: GenerationRecord, seam: Seam, engines: Sequence[Engine], publisher: Publisher
    ) -> Awaitable[EngineStream]:
        """As `start_stream`, for the rest of a stream that an engine has broken off."""
        attempt = partial(self._attempt_rest, publisher, seam)
        return self._first_success(attempt, record, seam.request, engines, failure=seam.error)

    def generate_json(
        self, record: GenerationRecord, request: InferenceRequest, engines: Sequence[Engine]
    ) -> Awaitable[tuple[bytes, RecordedResponse | NotStoredReason]]:
        """The JSON response, and what can be stored of it or why nothing can. Raises ApiError."""
        return self._dispatch(self._attempt_json, record, request, engines)

    def _dispatch(
        self,
        attempt: Callable[[Slot, GenerationRecord, InferenceRequest], Awaitable[T]],
        record: GenerationRecord,
        request: InferenceRequest,
        engines: Sequence[Engine],
    ) -> Awaitable[T]:
        if record.wait_plan is None or self._waking is None:
            return self._first_success(attempt, record, request, engines)
        send = partial(self._first_success, attempt, record, request)
        return self._waking.send(record, record.wait_plan, engines, send)

    # -- the loop over attempts ---------------------------------------------------------------------------------------

    async def _first_success(
        self,
        attempt: Callable[[Slot, GenerationRecord, InferenceRequest], Awaitable[T]],
        record: GenerationRecord,
        request: InferenceRequest,
        engines: Sequence[Engine],
        *,
        failure: EngineError | None = None,
    ) -> T:
        """The result of the first attempt that succeeds. That attempt owns the slot from then on.

        `failure`: of the engine that broke the stream off; then the first attempt uses the budget of continuations.
        """
        # Which of them the client gets is decided at the end.
        last_error: EngineError | None = failure
        not_served: Exception | None = None
        no_room: NoSlotError | None = None
        trace = record.trace
        require_allowed = partial(self.losses.require_allowed, record.tenant, request)
        if failure is None:
            self._health.record_request()
        for _, group in groupby(engines, key=attrgetter("model")):  # the model itself, then its fallbacks
            attempts = self._health.attempts_for(list(group), require_allowed)
            while (next_attempt := attempts.next_attempt()) is not None:
                if next_attempt.wait > 0:
                    await asyncio.sleep(next_attempt.wait)
                    require_allowed()
                candidates = next_attempt.engines
                try:
                    slot = record.slot
                    if slot is not None:  # it has waited for this engine to start
                        record.slot = None
                    else:
                        # A free slot is taken without a coroutine, which is the common case.
                        slot = self._admission.try_acquire(record.tenant, candidates) or await self._wait_for_slot(
                            record, candidates, require_allowed
                        )
                except NoSlotError as full:
                    no_room = full
                    break  # the engines of the next model may have room
                if slot is None:
                    continue  # these were blocked while it waited; from now on, `next_attempt` leaves them out
                engine = slot.engine
                attempts.mark_tried(engine)
                try:
                    continues = failure is not None and last_error is failure
                    permit = self._health.permit(engine, previous_error=last_error, continues=continues)
                    if permit is not None and (not permit.probe or await permit.claim_probe()):
                        record.attempts += 1
                        record.engine = engine.name
                        requested = record.model if record.adapter is None else record.adapter.base
                        record.fallback_model = engine.model if engine.model != requested else None
                        record.has_other_revision = not engine.answers_as(record.engine_revision, record.adapter)
                        record.sent_at = now = time.perf_counter()
                        record.energy = engine.energy.start(now) if engine.announced is not None else None
                        record.dispatched_at = record.dispatched_at or now  # of the first attempt
                        record.prompt.on_sent(engine, now)
                        if trace is not None:
                            record.traceparent = trace.start_attempt(engine)
                        with permit:
                            return await self._counting_losses(attempt, slot, record, request)
                except EngineError as error:
                    record.sent_at = None
                    record.prompt.on_ended(time.perf_counter())
                    if trace is not None:
                        trace.end_attempt(error.reason)
                    if error.refusal is not None:
                        not_served = not_served or (
                            unsupported_endpoint(record.model, request.endpoint.path)
                            if lacks_endpoint(error)
                            else error.refusal
                        )
                        if record.adapter is not None:
                            self._on_adapter_not_served()
                    else:
                        last_error = error
                    attempts.record_failure(engine, error)
                    if error.reason == "local":  # the engine was not reached, so it gets no blame
                        record.engine = record.fallback_model = None
                    else:
                        record.failed_attempts.append((engine.name, error.reason))
                    if not lacks_endpoint(error):  # which is logged once for each engine
                        log.warning(
                            "request %s: engine %s: %s (%s)",
                            record.request_id, engine.name, error.full_message, error.reason,
                        )  # fmt: skip
                except BaseException as cause:
                    # A refusal (ApiError) or a cancellation ends all attempts, so this path releases the slot as well.
                    slot.release()
                    if trace is not None:
                        trace.end_attempt("refused" if isinstance(cause, ApiError) else "cancelled")
                    raise
                # The attempt failed or was not permitted. A successful one has returned above and keeps its slot.
                slot.release()
        # An engine that failed otherwise, is full, or has an open breaker may well serve the request. So the client
        # gets "not served", which means a permanent error to it, only if there is no such engine.
        if last_error is None and not_served is not None and not any(map(self._health.is_open, engines)):
            raise no_room or not_served
        raise no_room or client_error(last_error, engines, self._health)

    async def _counting_losses(
        self,
        attempt: Callable[[Slot, GenerationRecord, InferenceRequest], Awaitable[T]],
        slot: Slot,
        record: GenerationRecord,
        request: InferenceRequest,
    ) -> T:
        try:
            return await attempt(slot, record, request)
        except EngineError as error:
            await self.on_failure(record, request, slot.engine, error)
            raise error  # noqa: TRY201 - compiled, a `raise` without it can lose the error after an `await`

    async def on_failure(
        self, record: GenerationRecord, request: InferenceRequest, engine: Engine, error: EngineError
    ) -> None:
        """An attempt failed, before its first token or after it. `request`: the client's."""
        if record.wait_plan is None and record.sent_at is not None:  # an engine that starts may end connections
            age = time.perf_counter() - record.sent_at
            await self.losses.on_failure(record.request_id, record.tenant, request, engine, error, age)

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

    async def _attempt_stream(
        self, publisher: Publisher, slot: Slot, record: GenerationRecord, request: InferenceRequest
    ) -> EngineStream:
        engine = slot.engine
        token_ids = engine.traits.token_ids and self.continuations.allows(engine.model) and asks_token_ids(request)
        response = await self._requests.post(engine, record, request, self._timeouts.first_token, token_ids=token_ids)
        assert request.endpoint.streaming is not None  # else the request would not be for a stream
        recorder = request.endpoint.streaming.make_recorder(self._max_entry, self._shapes)
        if token_ids and isinstance(recorder, StreamRecorder):
            recorder.token_ids = TokenIdCutter()
        return await self._start(slot, response, recorder, publisher)

    async def _attempt_rest(
        self, publisher: Publisher, seam: Seam, slot: Slot, record: GenerationRecord, _: InferenceRequest
    ) -> EngineStream:
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
            slot.engine, record, request, min(self._timeouts.first_token, total),
            token_ids=seam.asks_token_ids(slot.engine), total=total,
        )  # fmt: skip
        try:
            return await self._start(slot, response, recorder, publisher)
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
        self, slot: Slot, record: GenerationRecord, request: InferenceRequest
    ) -> tuple[bytes, RecordedResponse | NotStoredReason]:
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
