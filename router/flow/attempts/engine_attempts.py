"""One attempt at one engine: a stream, the rest of a stream, or a JSON response."""

import time
from functools import partial
from typing import Final

from router.core.endpoints.continuation.stream_so_far import asks_token_ids
from router.core.endpoints.endpoint import Recorder
from router.core.endpoints.errors.engine_errors import answer_too_large
from router.core.endpoints.recording.answer_shapes import AnswerShapes
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.recording import StreamRecorder
from router.core.endpoints.recording.token_ids import TokenIdCutter
from router.core.endpoints.requests.upload import media_type
from router.core.endpoints.requests.workload import workload
from router.flow.attempts.attempt import Attempt
from router.flow.attempts.continuation.derendered_response import DerenderedResponse
from router.flow.attempts.continuation.seam import ContinuationLimits, Restart, Seam
from router.flow.attempts.dispatch_errors import check_unreadable, engine_timeout
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_request import EngineRequests
from router.flow.attempts.engine_stream import EngineStream, Publisher, StreamedResponse
from router.flow.sharing.inflight import InFlightRequest
from router.net.client.errors import EngineError

_LEAST_TIME: Final = 0.1  # seconds; with less for the rest of a stream, an engine would fail that is healthy

MAX_RESPONSE: Final = 256 << 20
"""Maximum bytes of a JSON response; a longer one is an error."""


class EngineAttempts:
    """Makes attempts.

    Raises EngineError, or ApiError for a refusal of the request itself.
    """

    def __init__(
        self, requests: EngineRequests, health: EngineHealth, continuations: ContinuationLimits, *, max_entry: int
    ) -> None:
        """`max_entry`: bytes of an entry at most; a larger response is not recorded."""
        self._requests = requests
        self._timeouts = requests.timeouts
        self._health = health
        self._continuations = continuations
        self._max_entry = max_entry
        self._shapes = AnswerShapes()

    async def stream(self, attempt: Attempt, inflight: InFlightRequest) -> EngineStream:
        request, engine = inflight.request, attempt.engine
        token_ids = engine.traits.token_ids and self._continuations.allows(engine.model) and asks_token_ids(request)
        response = await self._requests.post(
            attempt, inflight, request, self._timeouts.first_token, token_ids=token_ids
        )
        assert request.endpoint.streaming is not None  # else the request would not be for a stream
        recorder = request.endpoint.streaming.make_recorder(self._max_entry, self._shapes)
        if token_ids and isinstance(recorder, StreamRecorder):
            recorder.token_ids = TokenIdCutter()
        return await self._start(attempt, response, recorder, inflight)

    async def rest(self, seam: Seam, attempt: Attempt, inflight: InFlightRequest) -> tuple[EngineStream, Restart]:
        """The stream of an engine that goes on, and how it does."""
        engine = attempt.engine
        restart = seam.restart_at(engine)
        if restart is not None and restart.derenders and engine.traits.parses_tokens is None:
            await self._requests.learn_parser(engine)
        if restart is None:  # it could go on, but not any more after what another engine said
            raise EngineError("diverged", "the engine cannot go on with the response")
        recorder = seam.new_recorder(restart)
        # By the client's request: the time that the tokens before took counts, too, unless they are generated again.
        total = self._timeouts.total(workload(seam.request), engine.max_model_len)
        if not restart.anew:
            total -= seam.elapsed(time.perf_counter())
        if total < _LEAST_TIME:
            raise engine_timeout()
        response = await self._requests.post(
            attempt, inflight, restart.request, min(self._timeouts.first_token, total),
            token_ids=restart.asks_token_ids, total=total,
        )  # fmt: skip
        streamed: StreamedResponse = response
        if restart.derenders:
            streamed = DerenderedResponse(
                response, seam.new_chat(), partial(self._requests.derender, engine),
                token_timeout=self._timeouts.between_tokens,
                on_first_token=lambda: inflight.prompt.on_first_token(time.perf_counter()),
            )  # fmt: skip
        try:
            return await self._start(attempt, streamed, recorder, inflight), restart
        except EngineError as error:
            seam.on_failure(error)
            raise

    async def _start(
        self, attempt: Attempt, response: StreamedResponse, recorder: Recorder, publisher: Publisher
    ) -> EngineStream:
        stream = EngineStream(
            attempt, response, recorder, self._health, publisher,
            first_timeout=self._timeouts.first_token, chunk_timeout=self._timeouts.between_tokens,
        )  # fmt: skip
        try:
            await stream.wait_first_token()
        except BaseException:
            stream.close_response()  # without the slot, which the dispatcher releases
            raise
        return stream

    async def json(
        self, attempt: Attempt, inflight: InFlightRequest
    ) -> tuple[Attempt, bytes, RecordedResponse | NotStoredReason]:
        """The response, and what can be stored of it or why nothing can."""
        request = inflight.request
        with await self._requests.post(attempt, inflight, request, None) as response:
            if request.form is not None:
                inflight.record.media_type = media_type(response.content_type)
            body, complete = await response.read_up_to(MAX_RESPONSE)
        if not complete:
            raise answer_too_large("The response", MAX_RESPONSE)
        recorded = request.endpoint.record_body(request, body, self._max_entry)
        if recorded is NotStoredReason.ERROR:
            recorded = check_unreadable(request, body, attempt.engine)
        self._health.record_success(attempt.engine)
        # Here, because the response is complete; a stream keeps the slot until `EngineStream.close`.
        attempt.slot.release()
        return attempt, body, recorded
