"""The generation of an in-flight request that this process leads, from the engines to the result."""

import time
from collections.abc import Callable, Sequence

from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.recording import StreamRecorder
from router.core.endpoints.requests.engine_fields import names_engine_memory
from router.errors import ENGINE_FAILED, ENGINE_LOST, UPSTREAM, ApiError
from router.flow.attempts.continuation.run_to_end import has_survivor, is_exact, run_to_end
from router.flow.attempts.dispatch import Dispatcher
from router.flow.attempts.dispatch_errors import shown_message
from router.flow.exchange import GenerationRecord
from router.flow.result import LOST, GenerationResult
from router.flow.sharing.inflight import InFlightRequest
from router.flow.sharing.new_generation import NewGeneration
from router.net.client.errors import EngineError
from router.upstream.engine import Engine


async def run_generation(dispatcher: Dispatcher, inflight: InFlightRequest, new: NewGeneration) -> GenerationResult:
    """Generates the response, and stores it if it is complete. Errors are in the result."""
    try:
        engines = new.order_engines()
        generate = _run_stream if inflight.request.stream else _run_json
        result, recorded = await generate(dispatcher, inflight, engines)
    except ApiError as error:
        return GenerationResult(complete=False, error=error, error_reason=error.reason)
    if result.recorded_response is not None:
        inflight.record.prompt.on_answered(result.recorded_response, time.perf_counter())
    if result.complete and has_survivor(inflight.record):
        dispatcher.losses.on_success(inflight.record.tenant, inflight.request)
    if inflight.record.attempt.fallback_model is not None and isinstance(recorded, RecordedResponse):
        recorded = NotStoredReason.FALLBACK  # the key stands for the requested model's response
    if inflight.record.attempt.has_other_revision and isinstance(recorded, RecordedResponse):
        recorded = NotStoredReason.REVISION
    if isinstance(recorded, RecordedResponse) and result.is_private:
        recorded = NotStoredReason.ENGINE_MEMORY
    if isinstance(recorded, RecordedResponse) and not is_exact(inflight.record, inflight.request):
        recorded = NotStoredReason.CONTINUED
    if isinstance(recorded, NotStoredReason):
        inflight.record.not_stored_reason = recorded
    if recorded is not None and new.store_response is not None:
        new.store_response(recorded, inflight.record)
    return result


async def _run_stream(
    dispatcher: Dispatcher, inflight: InFlightRequest, engines: Sequence[Engine]
) -> tuple[GenerationResult, RecordedResponse | NotStoredReason | None]:
    stream = await dispatcher.start_stream(inflight, engines)
    recorder = stream.recorder
    try:
        await run_to_end(dispatcher, inflight, engines, stream)
    except EngineError as error:
        message = f"The response was interrupted: {shown_message(error)}."
        is_stopped = dispatcher.losses.is_stopped(inflight.record.tenant, inflight.request)
        broken_off = ApiError(502, message, kind=UPSTREAM, code=ENGINE_LOST if is_stopped else ENGINE_FAILED)
        if isinstance(error.refusal, ApiError):  # a refusal stays one, also after the first token
            broken_off = error.refusal
        reason = NotStoredReason.ERROR if error.reason == "error-frame" else NotStoredReason.INCOMPLETE
        return GenerationResult(complete=False, error=broken_off, error_reason=error.reason, had_data=True), reason
    inflight.record.speculation = recorder.speculation
    if isinstance(recorder, StreamRecorder) and recorder.token_ids is not None and recorder.token_ids.prompt:
        inflight.record.prompt.on_tokenized(recorder.token_ids.prompt)
    recorded = recorder.recorded_response(inflight.request)
    stored = recorded if isinstance(recorded, RecordedResponse) else None
    endings = recorder.final_frames(include_usage=False), recorder.final_frames(include_usage=True)
    shown = (stored.body if stored is not None else b"", *endings)
    return GenerationResult(
        complete=True,
        is_private=recorded is NotStoredReason.ENGINE_MEMORY or any(map(names_engine_memory, shown)),
        recorded_response=stored,
        endings=endings,
        prompt_tokens=recorder.usage.prompt_tokens if recorder.usage is not None else 0,
        completion_tokens=recorder.usage.completion_tokens if recorder.usage is not None else 0,
        generation_ms=inflight.record.generation_ms(time.perf_counter()),
    ), recorded


async def _run_json(
    dispatcher: Dispatcher, inflight: InFlightRequest, engines: Sequence[Engine]
) -> tuple[GenerationResult, RecordedResponse | NotStoredReason | None]:
    body, recorded = await dispatcher.generate_json(inflight, engines)
    inflight.record.first_token_at = now = time.perf_counter()
    stored = recorded if isinstance(recorded, RecordedResponse) else None
    inflight.record.speculation = stored.speculation if stored is not None else None
    return GenerationResult(
        complete=True,
        is_private=names_engine_memory(body),
        body=body,
        recorded_response=stored,
        prompt_tokens=stored.prompt_tokens if stored is not None else 0,
        completion_tokens=stored.completion_tokens if stored is not None else 0,
        generation_ms=inflight.record.generation_ms(now),
    ), recorded


def record_generation(
    record_metrics: Callable[[GenerationRecord, float], None],
    learn: Callable[[GenerationRecord], None],
    spend: Callable[[str, int, float], None],
    record: GenerationRecord,
) -> None:
    """Passes on the facts of a generation that has ended, well or not. The tenant that started it pays for its tokens,
    any other client that received them.

    `learn`: see EngineSelector; `spend`: see TenantLimits.
    """
    now = time.perf_counter()
    record.prompt.on_ended(now)
    record_metrics(record, now)
    record.trace.finish(record, "cancelled" if record.error_reason == LOST else record.error_reason)
    learn(record)
    spend(record.tenant, record.total_tokens, record.gpu_seconds(now))
