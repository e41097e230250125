"""The generation of an in-flight request that this process leads, from the engines to the result."""

import time
from collections.abc import Callable, Sequence

from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.recording import StreamRecorder
from router.core.endpoints.requests.engine_fields import names_engine_memory
from router.errors import ENGINE_FAILED, ENGINE_LOST, UPSTREAM, ApiError
from router.flow.attempts.attempt import Attempt
from router.flow.attempts.continuation.continuation_engines import ContinuationEngines
from router.flow.attempts.continuation.run_to_end import Continuations
from router.flow.attempts.continuation.seam import continuation_limits
from router.flow.attempts.dispatch import Dispatch, Dispatcher
from router.flow.attempts.dispatch_errors import shown_message
from router.flow.attempts.engine_attempts import EngineAttempts
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_losses import EngineLosses
from router.flow.attempts.engine_request import EngineRequests
from router.flow.attempts.waiting_dispatch import WaitingDispatcher
from router.flow.attempts.waking import Waking
from router.flow.exchange import GenerationRecord
from router.flow.result import LOST, GenerationResult
from router.flow.sharing.inflight import InFlightRequest
from router.flow.sharing.new_generation import NewGeneration
from router.net.client.errors import EngineError
from router.settings import Settings
from router.upstream.engine import Engine


class Generations:
    """Generates responses at engines, and stores those that are complete."""

    def __init__(
        self, dispatcher: Dispatch, attempts: EngineAttempts, continuations: Continuations, losses: EngineLosses
    ) -> None:
        self._dispatcher = dispatcher
        self._attempts = attempts
        self._continuations = continuations
        self._losses = losses

    async def run(self, inflight: InFlightRequest, new: NewGeneration) -> GenerationResult:
        """Errors are in the result."""
        try:
            engines = new.order_engines()
            run = self._run_stream if inflight.request.stream else self._run_json
            result, recorded = await run(inflight, engines)
        except ApiError as error:
            return GenerationResult(complete=False, error=error, error_reason=error.reason)
        if result.recorded_response is not None:
            inflight.prompt.on_answered(result.recorded_response, time.perf_counter())
        if isinstance(recorded, NotStoredReason):
            inflight.record.not_stored_reason = recorded
        if recorded is not None and new.store_response is not None:
            new.store_response(recorded, inflight.record, inflight.trace)
        return result

    async def _run_stream(
        self, inflight: InFlightRequest, engines: Sequence[Engine]
    ) -> tuple[GenerationResult, RecordedResponse | NotStoredReason | None]:
        """The result, and what is stored of it or why nothing is; None for a response that is empty."""
        stream = await self._dispatcher.dispatch(self._attempts.stream, inflight, engines)
        recorder = stream.recorder  # it gets the events of all engines; see Continuations
        try:
            end = await self._continuations.run_to_end(inflight, engines, stream)
        except EngineError as error:
            return self._broken_result(inflight, error), _reason_of(error)
        if end.survived:
            self._losses.on_success(inflight.origin.tenant, inflight.request)
        inflight.record.speculation = recorder.speculation
        if isinstance(recorder, StreamRecorder) and recorder.token_ids is not None and recorder.token_ids.prompt:
            inflight.prompt.on_tokenized(recorder.token_ids.prompt)
        recorded = recorder.recorded_response(inflight.request)
        stored = recorded if isinstance(recorded, RecordedResponse) else None
        endings = recorder.final_frames(include_usage=False), recorder.final_frames(include_usage=True)
        shown = (stored.body if stored is not None else b"", *endings)
        result = GenerationResult(
            complete=True,
            is_private=recorded is NotStoredReason.ENGINE_MEMORY or any(map(names_engine_memory, shown)),
            recorded_response=stored,
            endings=endings,
            prompt_tokens=recorder.usage.prompt_tokens if recorder.usage is not None else 0,
            completion_tokens=recorder.usage.completion_tokens if recorder.usage is not None else 0,
            generation_ms=inflight.record.generation_ms(time.perf_counter()),
        )
        return result, _storable(recorded, end.attempt, is_private=result.is_private, is_exact=end.is_exact)

    async def _run_json(
        self, inflight: InFlightRequest, engines: Sequence[Engine]
    ) -> tuple[GenerationResult, RecordedResponse | NotStoredReason | None]:
        attempt, body, recorded = await self._dispatcher.dispatch(self._attempts.json, inflight, engines)
        self._losses.on_success(inflight.origin.tenant, inflight.request)
        inflight.record.first_token_at = now = time.perf_counter()
        stored = recorded if isinstance(recorded, RecordedResponse) else None
        inflight.record.speculation = stored.speculation if stored is not None else None
        result = GenerationResult(
            complete=True,
            is_private=names_engine_memory(body),
            body=body,
            recorded_response=stored,
            prompt_tokens=stored.prompt_tokens if stored is not None else 0,
            completion_tokens=stored.completion_tokens if stored is not None else 0,
            generation_ms=inflight.record.generation_ms(now),
        )
        return result, _storable(recorded, attempt, is_private=result.is_private)

    def _broken_result(self, inflight: InFlightRequest, error: EngineError) -> GenerationResult:
        message = f"The response was interrupted: {shown_message(error)}."
        is_stopped = self._losses.is_stopped(inflight.origin.tenant, inflight.request)
        broken_off = ApiError(502, message, kind=UPSTREAM, code=ENGINE_LOST if is_stopped else ENGINE_FAILED)
        if isinstance(error.refusal, ApiError):  # a refusal stays one, also after the first token
            broken_off = error.refusal
        return GenerationResult(complete=False, error=broken_off, error_reason=error.reason, had_data=True)


def _reason_of(error: EngineError) -> NotStoredReason:
    return NotStoredReason.ERROR if error.reason == "error-frame" else NotStoredReason.INCOMPLETE


def _storable(
    recorded: RecordedResponse | NotStoredReason | None, attempt: Attempt, *, is_private: bool, is_exact: bool = True
) -> RecordedResponse | NotStoredReason | None:
    """What is stored of a complete response, or why nothing is. `attempt`: the last one."""
    if not isinstance(recorded, RecordedResponse):
        return recorded
    # The key stands for the requested model's response, of the engines' revision when the request came.
    if attempt.deviation is not None:
        return attempt.deviation
    if is_private:
        return NotStoredReason.ENGINE_MEMORY
    return recorded if is_exact else NotStoredReason.CONTINUED


def build_generations(
    settings: Settings, requests: EngineRequests, losses: EngineLosses, dispatcher: Dispatcher, health: EngineHealth,
    continuation_engines: ContinuationEngines, waking: Waking,
) -> Generations:  # fmt: skip
    limits = continuation_limits(settings)
    attempts = EngineAttempts(requests, health, limits, max_entry=settings.cache.max_entry)
    continuations = Continuations(dispatcher, attempts, losses, continuation_engines, limits)
    dispatch: Dispatch = WaitingDispatcher(dispatcher, waking) if waking.is_used else dispatcher
    return Generations(dispatch, attempts, continuations, losses)


def record_generation(
    record_metrics: Callable[[GenerationRecord, float], None],
    learn: Callable[[GenerationRecord], None],
    spend: Callable[[str, int, float], None],
    inflight: InFlightRequest,
) -> None:
    """Passes on the facts of a generation that has ended, well or not.

    Its tokens count for the tenant that started it, and for no other.

    `learn`: see EngineSelector; `spend`: see TenantLimits.
    """
    now, record = time.perf_counter(), inflight.record
    record.ended_at = now
    inflight.prompt.on_ended(now)
    record_metrics(record, now)
    inflight.trace.finish(record, "cancelled" if record.error_reason == LOST else record.error_reason)
    learn(record)
    spend(record.origin.tenant, record.total_tokens, record.gpu_seconds(now))
