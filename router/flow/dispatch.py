"""From a plan to an engine at work: the first engine that gives a token has the request.

Nothing has been sent to the client before that, so until then another engine can take over, and nobody notices.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import ceil
from operator import attrgetter
from types import MappingProxyType
from typing import Final, TypeVar

from router.core.endpoints.answer_shapes import AnswerShapes
from router.core.endpoints.engine_errors import (
    MAX_ERROR_BODY,
    answer_too_large,
    is_not_served,
    is_refusal,
    parse_refusal,
    parse_refusal_event,
)
from router.core.endpoints.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recorders import make_recorder, record_body
from router.core.endpoints.recording import EVENT_TOO_LONG, MAX_EVENT_SIZE, Recorder
from router.core.endpoints.request import InferenceRequest, engine_body
from router.core.resilience.retry import parse_retry_after
from router.core.resilience.timeouts import EngineTimeouts
from router.errors import UPSTREAM, ApiError, unavailable
from router.flow.admission import Admission, NoSlotError, Slot
from router.flow.engine_health import EngineHealth
from router.flow.exchange import GenerationRecord
from router.net.client.errors import EngineError, broken_off
from router.net.client.response import EngineResponse
from router.upstream.catalog import Engine
from router.upstream.client import EngineClient

log = logging.getLogger("roundhouse.dispatch")

T = TypeVar("T")

Publish = Callable[[bytes], None]
"""Takes whole events for whoever asked."""

MAX_RESPONSE: Final = 256 << 20
"""Bytes of a JSON answer that are read."""


class EngineStream:
    """An engine at work on a request: what it says is said on, from the first token on, as soon as it is there.

    - `begin` waits until there is a first token; before that, nothing has been said, and another engine can take over.
    - `run` goes on until the engine has said all; `recorder` then says what it was.
    - Once `close` has been called, the engine is free and no longer counted as busy with this.
    """

    __slots__ = ("_chunk_timeout", "_health", "_initial_data", "_publish", "_response", "_slot", "recorder")

    def __init__(
        self, slot: Slot, response: EngineResponse, recorder: Recorder, health: EngineHealth, publish: Publish, *,
        chunk_timeout: float,
    ) -> None:  # fmt: skip
        """`say` takes whole events; `between`: seconds from one chunk to the next."""
        self.recorder = recorder
        self._slot = slot
        self._response = response
        self._health = health
        self._chunk_timeout = chunk_timeout
        self._initial_data: list[bytes] = []
        self._publish = publish

    @property
    def engine(self) -> Engine:
        return self._slot.engine

    async def wait_first_token(self) -> None:
        """Waits for the first token, and says it. Raises EngineError, or ApiError for the client's fault."""
        try:
            poured = await self._response.stream_to(self._on_first_chunk)
        except EngineError as error:
            if error.refusal is not None:
                raise error.refusal from None
            raise
        if not poured:
            raise broken_off()

    async def run(self) -> None:
        """Says what comes after that. Raises EngineError when the engine fails or stalls."""
        try:
            if not self._is_finished() and not await self._response.stream_to(self._on_chunk, self._chunk_timeout):
                raise broken_off()
        except EngineError as error:
            self._health.record_failure(self.engine, error)
            raise
        self._health.record_success(self.engine)

    def close(self) -> None:
        self._slot.release()
        self.close_response()

    def close_response(self) -> None:
        self._response.close(linger=self.recorder.ended)

    def _on_first_chunk(self, chunk: bytes) -> bool:
        if data := self.recorder.feed(chunk):
            self._initial_data.append(data)
        if not (self.recorder.started or self._is_finished()):  # an answer of no tokens is an answer
            return False
        if self._initial_data:
            self._publish(b"".join(self._initial_data))
        return True

    def _on_chunk(self, chunk: bytes) -> bool:
        recorder = self.recorder
        if data := recorder.feed(chunk):
            self._publish(data)
        return (recorder.ended or recorder.failure is not None) and self._is_finished()

    def _is_finished(self) -> bool:
        if self.recorder.ended:
            return True
        failure = self.recorder.failure
        if failure is not None:
            raise _recorder_error(failure, self.engine)
        return False


class Dispatcher:
    """Sends requests to engines.

    - The engines of a plan are tried in turn until one answers: those of one model, some of them a second time, then
      those of the next; each failure is noted in the work. Whose breaker is open is left out.
    - What an engine says of the request itself (4xx) goes to the client, and nobody else is asked. What it lacks (404,
      405, 501) another engine may have; the client gets it where no engine has failed otherwise. See engine_errors.
    - An engine is asked once there is a place for that; the place is given back whatever happens.
    """

    def __init__(
        self,
        client: EngineClient,
        admission: Admission,
        timeouts: EngineTimeouts,
        health: EngineHealth,
        *,
        max_entry: int,
        cache_salts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`salts`: by tenant, the salt of its prompts in the engines' prefix caches; see core.endpoints.cache_salt."""
        self._client = client
        self._admission = admission
        self._timeouts = timeouts
        self._health = health
        self._max_entry = max_entry
        self._shapes = AnswerShapes()
        self._cache_salts = cache_salts

    def start_stream(
        self, record: GenerationRecord, request: InferenceRequest, engines: Sequence[Engine], publish: Publish
    ) -> Awaitable[EngineStream]:
        """A generation whose first token has been said. Raises ApiError, before anything has been said."""
        return self._first_success(partial(self._attempt_stream, publish), record, request, engines)

    def generate_json(
        self, record: GenerationRecord, request: InferenceRequest, engines: Sequence[Engine]
    ) -> Awaitable[tuple[bytes, RecordedResponse | NotStoredReason]]:
        """A JSON answer, and what is to be kept of it. Raises ApiError."""
        return self._first_success(self._attempt_json, record, request, engines)

    # -- whose turn it is -------------------------------------------------------------------------------------------

    async def _first_success(
        self,
        attempt: Callable[[Slot, GenerationRecord, InferenceRequest], Awaitable[T]],
        record: GenerationRecord,
        request: InferenceRequest,
        engines: Sequence[Engine],
    ) -> T:
        """What the first attempt gives that does not fail; the place is its own then."""
        last: EngineError | None = None
        lacking: Exception | None = None
        no_room: NoSlotError | None = None
        self._health.record_request()
        for _, group in groupby(engines, key=attrgetter("model")):
            turns = self._health.attempts_for(list(group))
            while (turn := turns.next_attempt()) is not None:
                if turn.wait > 0:
                    await asyncio.sleep(turn.wait)
                open_ = turn.engines
                try:
                    place = self._admission.try_acquire(record.tenant, open_) or await self._admission.acquire(
                        record.tenant, open_
                    )
                except NoSlotError as full:
                    no_room = full
                    break  # the engines of the next model may have room
                engine = place.engine
                turns.mark_tried(engine)
                try:
                    pass_ = self._health.permit(engine, previous_error=last)
                    if pass_ is not None and (not pass_.probe or await pass_.claim_probe()):
                        record.engine = engine.name
                        record.fallback_model = engine.model if engine.model != record.model else None
                        record.dispatched_at = record.dispatched_at or time.perf_counter()
                        with pass_:
                            return await attempt(place, record, request)
                except EngineError as error:
                    if error.refusal is not None:
                        lacking = lacking or error.refusal
                    else:
                        last = error
                    turns.record_failure(engine, error)
                    if error.reason == "local":  # the engine was not reached, so it gets no blame
                        record.engine = record.fallback_model = None
                    else:
                        record.failed_attempts.append((engine.name, error.reason))
                    log.warning("request %s: engine %s: %s (%s)", record.request_id, engine.name, error, error.reason)
                except BaseException:
                    place.release()
                    raise
                place.release()
        if last is None and lacking is not None and not any(map(self._health.is_open, engines)):
            raise no_room or lacking
        raise no_room or _client_error(last, engines, self._health)

    # -- one attempt ------------------------------------------------------------------------------------------------

    async def _attempt_stream(
        self, publish: Publish, slot: Slot, record: GenerationRecord, request: InferenceRequest
    ) -> EngineStream:
        patience = self._timeouts
        response = await self._post(slot.engine, record, request, patience.first_token)
        recorder = make_recorder(request.endpoint, self._max_entry, self._shapes)
        generation = EngineStream(
            slot, response, recorder, self._health, publish, chunk_timeout=patience.between_tokens
        )
        try:
            await generation.wait_first_token()
        except BaseException:
            generation.close_response()
            raise
        return generation

    async def _attempt_json(
        self, slot: Slot, record: GenerationRecord, request: InferenceRequest
    ) -> tuple[bytes, RecordedResponse | NotStoredReason]:
        with await self._post(slot.engine, record, request, None) as response:
            body, complete = await response.read_up_to(MAX_RESPONSE)
        if not complete:
            raise answer_too_large("The answer", MAX_RESPONSE)
        recording = record_body(request, body, self._max_entry)
        if recording is NotStoredReason.ERROR:
            if (refusal := parse_refusal_event(body[:MAX_ERROR_BODY], _address(slot.engine))) is not None:
                raise refusal
            raise EngineError("malformed", "the engine's answer is not one")
        self._health.record_success(slot.engine)
        slot.release()
        return body, recording

    async def _post(
        self, engine: Engine, record: GenerationRecord, request: InferenceRequest, head_timeout: float | None
    ) -> EngineResponse:
        """Sends the request; returns an answer with status 200. Raises EngineError, or ApiError for the client's.

        `patience`: seconds for the head; None where the total is the only limit, as it is for a JSON answer, which has
        a head only when it is whole.
        """
        total = self._timeouts.total(request.max_tokens, engine.max_model_len)
        # An engine may still hold the attempt before under its id.
        number = len(record.failed_attempts) + 1
        id_ = record.engine_request_id if number == 1 else f"{record.engine_request_id}-{number}"
        body = engine_body(request, engine.served_model, self._cache_salts.get(record.tenant))
        response = await self._client.post(
            engine,
            request.endpoint,
            body,
            request_id=id_,
            traceparent=record.traceparent,
            head_timeout=total if head_timeout is None else head_timeout,
            total_timeout=total,
        )
        if response.status == 200:
            return response
        status = response.status
        with response:
            wait = parse_retry_after(response.retry_after, time.time())
            try:
                said, complete = await response.read_up_to(MAX_ERROR_BODY, self._timeouts.between_tokens)
            except EngineError:  # it has said what counts, which is the status
                said, complete = b"", False
        refusal = None
        if is_refusal(status):
            refusal = parse_refusal(status, said, complete=complete, address=_address(engine))
            if not is_not_served(status):
                raise refusal
        raise EngineError(f"status-{status}", f"the engine answered with status {status}", wait, refusal)


def _address(engine: Engine) -> str:
    """Host and port of an engine, which are not for clients."""
    return engine.url.partition("://")[2].partition("/")[0]


def _recorder_error(failure: bytes, engine: Engine) -> EngineError:
    """What a recorder's `failure` means."""
    if failure == EVENT_TOO_LONG:
        refusal = answer_too_large("An event of the answer", MAX_EVENT_SIZE)
        return EngineError("too-large", f"an event has more than {MAX_EVENT_SIZE >> 20} MiB", refusal=refusal)
    said = parse_refusal_event(failure, _address(engine))
    if said is not None:
        return EngineError("refused", f"the engine refused the request: {said.message}", refusal=said)
    return EngineError("error-frame", "the engine reported an error")


def _client_error(error: EngineError | None, engines: Sequence[Engine], health: EngineHealth) -> ApiError:
    """What the client is told when no engine could do it. `error`: that of the last attempt, if there was one."""
    if error is None:
        return _no_attempt_error(engines, health)
    match error.reason:
        case "connect":
            return unavailable("No engine for this model can be reached at present.", code="no_engine")
        case "local":
            message = "The router has no file descriptor, port or memory left to reach an engine with."
            return unavailable(message, code="out_of_resources")
        case "status-429" | "status-503":
            wait = max(1, ceil(error.retry_after or 0.0))
            return unavailable(
                "The engines of this model take no more work at present.", code="engines_busy", retry_after=wait
            )
        case "timeout":
            return ApiError(504, "The engine did not answer in time.", kind=UPSTREAM, code="engine_timeout")
        case _:
            return ApiError(502, f"The request failed at the engine: {error}.", kind=UPSTREAM, code="engine_failed")


def _no_attempt_error(engines: Sequence[Engine], health: EngineHealth) -> ApiError:
    wait = max(1, ceil(min((health.breakers.retry_after(engine.name) for engine in engines), default=0.0)))
    if all(engine.up is False for engine in engines):
        message = "No engine for this model can be reached at present."
        return unavailable(message, code="no_engine", retry_after=wait)
    message = "The engines of this model have failed or are full, and are left alone for a moment."
    return unavailable(message, code="circuit_open", retry_after=wait)
