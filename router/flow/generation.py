"""A flight that this process leads: from its engines to how it ends."""

import time
from collections.abc import Callable, Sequence

from router.core.endpoints.recorded_response import NotStoredReason, RecordedResponse
from router.errors import UPSTREAM, ApiError
from router.flow.dispatch import Dispatcher
from router.flow.exchange import GenerationRecord
from router.flow.inflight import InFlightRequest
from router.flow.result import GenerationResult
from router.net.client.errors import EngineError
from router.upstream.catalog import Engine

StoreResponse = Callable[[RecordedResponse, GenerationRecord], None]
"""Stores an answer: what Redis is asked from then on is asked after that."""


async def run_generation(
    dispatcher: Dispatcher, inflight: InFlightRequest, engines: Sequence[Engine], store_response: StoreResponse | None
) -> GenerationResult:
    """Has an engine answer a flight's request; the answer is stored if there is a `keep` and it is whole."""
    try:
        generate = _run_stream if inflight.request.stream else _run_json
        landing, recording = await generate(dispatcher, inflight, engines)
    except ApiError as error:
        return GenerationResult(complete=False, error=error, error_reason=error.code or error.kind)
    if inflight.record.fallback_model is not None and isinstance(recording, RecordedResponse):
        recording = NotStoredReason.FALLBACK  # it is not what the key stands for
    if isinstance(recording, NotStoredReason):
        inflight.record.not_stored_reason = recording
    elif recording is not None and store_response is not None:
        store_response(recording, inflight.record)
    return landing


async def _run_stream(
    dispatcher: Dispatcher, inflight: InFlightRequest, engines: Sequence[Engine]
) -> tuple[GenerationResult, RecordedResponse | NotStoredReason | None]:
    generation = await dispatcher.start_stream(inflight.record, inflight.request, engines, inflight.publish)
    recorder = generation.recorder
    try:
        await generation.run()
    except EngineError as error:
        inflight.record.failed_attempts.append((generation.engine.name, error.reason))
        broken = ApiError(502, f"The answer broke off: {error}.", kind=UPSTREAM, code="engine_failed")
        not_kept = NotStoredReason.ERROR if error.reason == "error-frame" else NotStoredReason.INCOMPLETE
        return GenerationResult(complete=False, error=broken, error_reason=error.reason, had_data=True), not_kept
    finally:
        generation.close()
    recording = recorder.recorded_response(inflight.request)
    return GenerationResult(
        complete=True,
        recorded_response=recording if isinstance(recording, RecordedResponse) else None,
        endings=(recorder.final_frames(include_usage=False), recorder.final_frames(include_usage=True)),
        prompt_tokens=recorder.usage.prompt_tokens if recorder.usage is not None else 0,
        completion_tokens=recorder.usage.completion_tokens if recorder.usage is not None else 0,
    ), recording


async def _run_json(
    dispatcher: Dispatcher, inflight: InFlightRequest, engines: Sequence[Engine]
) -> tuple[GenerationResult, RecordedResponse | NotStoredReason | None]:
    body, recording = await dispatcher.generate_json(inflight.record, inflight.request, engines)
    inflight.record.first_token_at = time.perf_counter()
    known = recording if isinstance(recording, RecordedResponse) else None
    return GenerationResult(
        complete=True,
        body=body,
        recorded_response=known,
        prompt_tokens=known.prompt_tokens if known is not None else 0,
        completion_tokens=known.completion_tokens if known is not None else 0,
    ), recording
