"""A flight that this process leads: from its engines to how it ends."""

import time
from collections.abc import Callable, Sequence

from router.core.endpoints.recorded_response import NotKept, Recording
from router.errors import UPSTREAM, ApiError
from router.flow.dispatch import Dispatcher
from router.flow.exchange import Work
from router.flow.inflight import Flight
from router.flow.result import Landing
from router.net.client.errors import EngineError
from router.upstream.catalog import Engine

Keep = Callable[[Recording, Work], None]
"""Stores an answer: what Redis is asked from then on is asked after that."""


async def lead(dispatcher: Dispatcher, flight: Flight, engines: Sequence[Engine], keep: Keep | None) -> Landing:
    """Has an engine answer a flight's request; the answer is stored if there is a `keep` and it is whole."""
    try:
        generate = _stream if flight.request.stream else _whole
        landing, recording = await generate(dispatcher, flight, engines)
    except ApiError as error:
        return Landing(whole=False, error=error, reason=error.code or error.kind)
    if flight.work.fallback is not None and isinstance(recording, Recording):
        recording = NotKept.FALLBACK  # it is not what the key stands for
    if isinstance(recording, NotKept):
        flight.work.not_kept = recording
    elif recording is not None and keep is not None:
        keep(recording, flight.work)
    return landing


async def _stream(
    dispatcher: Dispatcher, flight: Flight, engines: Sequence[Engine]
) -> tuple[Landing, Recording | NotKept | None]:
    generation = await dispatcher.stream(flight.work, flight.request, engines, flight.say)
    recorder = generation.recorder
    try:
        await generation.run()
    except EngineError as error:
        flight.work.attempts.append((generation.engine.name, error.reason))
        broken = ApiError(502, f"The answer broke off: {error}.", kind=UPSTREAM, code="engine_failed")
        not_kept = NotKept.ERROR if error.reason == "error-frame" else NotKept.INCOMPLETE
        return Landing(whole=False, error=broken, reason=error.reason, begun=True), not_kept
    finally:
        generation.close()
    recording = recorder.recording(flight.request)
    return Landing(
        whole=True,
        recording=recording if isinstance(recording, Recording) else None,
        endings=(recorder.ending(include_usage=False), recorder.ending(include_usage=True)),
        prompt_tokens=recorder.usage.prompt_tokens if recorder.usage is not None else 0,
        completion_tokens=recorder.usage.completion_tokens if recorder.usage is not None else 0,
    ), recording


async def _whole(
    dispatcher: Dispatcher, flight: Flight, engines: Sequence[Engine]
) -> tuple[Landing, Recording | NotKept | None]:
    body, recording = await dispatcher.whole(flight.work, flight.request, engines)
    flight.work.first_token = time.perf_counter()
    known = recording if isinstance(recording, Recording) else None
    return Landing(
        whole=True,
        body=body,
        recording=known,
        prompt_tokens=known.prompt_tokens if known is not None else 0,
        completion_tokens=known.completion_tokens if known is not None else 0,
    ), recording
