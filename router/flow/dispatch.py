"""Sends a request to the engines in order, until one of them returns a first token (or a JSON response).

Nothing is sent to the client before that. So until then, another engine can take over without the client noticing.
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
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.engine_errors import (
    MAX_ERROR_BODY,
    UNSUPPORTED_ENDPOINT,
    answer_too_large,
    is_not_served,
    is_refusal,
    parse_refusal,
    parse_refusal_event,
    unsupported_endpoint,
)
from router.core.endpoints.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.request import engine_body
from router.core.endpoints.upload import engine_form, longest_answer, media_type
from router.core.resilience.retry import parse_retry_after
from router.core.resilience.timeouts import EngineTimeouts
from router.errors import UPSTREAM, ApiError, unavailable
from router.flow.admission import Admission, NoSlotError, Slot
from router.flow.engine_health import EngineHealth
from router.flow.engine_stream import EngineStream, Publish
from router.flow.exchange import GenerationRecord
from router.net.client.errors import EngineError
from router.net.client.response import EngineResponse
from router.upstream.client import EngineClient
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.dispatch")

T = TypeVar("T")

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
        cache_salts: Mapping[str, str] = MappingProxyType({}),
        on_adapter_not_served: Callable[[], None] = lambda: None,
    ) -> None:
        """`max_entry`: bytes of an entry at most; a larger response is not recorded.

        `on_adapter_not_served` is called when an engine does not have the adapter that it has listed.

        `cache_salts`: by tenant, the salt of its prompts in the engines' prefix caches; see core.endpoints.cache_salt.
        """
        self._client = client
        self._admission = admission
        self._timeouts = timeouts
        self._health = health
        self._max_entry = max_entry
        self._shapes = AnswerShapes()
        self._cache_salts = cache_salts
        self._on_adapter_not_served = on_adapter_not_served

    def start_stream(
        self, record: GenerationRecord, request: InferenceRequest, engines: Sequence[Engine], publish: Publish
    ) -> Awaitable[EngineStream]:
        """A stream whose first token has been published. Raises ApiError; nothing has been published then."""
        return self._first_success(partial(self._attempt_stream, publish), record, request, engines)

    def generate_json(
        self, record: GenerationRecord, request: InferenceRequest, engines: Sequence[Engine]
    ) -> Awaitable[tuple[bytes, RecordedResponse | NotStoredReason]]:
        """The JSON response, and what can be stored of it or why nothing can. Raises ApiError."""
        return self._first_success(self._attempt_json, record, request, engines)

    # -- the loop over attempts ---------------------------------------------------------------------------------------

    async def _first_success(
        self,
        attempt: Callable[[Slot, GenerationRecord, InferenceRequest], Awaitable[T]],
        record: GenerationRecord,
        request: InferenceRequest,
        engines: Sequence[Engine],
    ) -> T:
        """The result of the first attempt that succeeds. That attempt owns the slot from then on."""
        # Which of them the client gets is decided at the end.
        last_error: EngineError | None = None
        not_served: Exception | None = None
        no_room: NoSlotError | None = None
        trace = record.trace
        self._health.record_request()
        for _, group in groupby(engines, key=attrgetter("model")):  # the model itself, then its fallbacks
            attempts = self._health.attempts_for(list(group))
            while (next_attempt := attempts.next_attempt()) is not None:
                if next_attempt.wait > 0:
                    await asyncio.sleep(next_attempt.wait)
                candidates = next_attempt.engines
                try:
                    # A free slot is taken without a coroutine, which is the common case.
                    slot = self._admission.try_acquire(record.tenant, candidates) or await self._wait_for_slot(
                        record, candidates
                    )
                except NoSlotError as full:
                    no_room = full
                    break  # the engines of the next model may have room
                if slot is None:
                    continue  # these were blocked while it waited; from now on, `next_attempt` leaves them out
                engine = slot.engine
                attempts.mark_tried(engine)
                try:
                    permit = self._health.permit(engine, previous_error=last_error)
                    if permit is not None and (not permit.probe or await permit.claim_probe()):
                        record.attempts += 1
                        record.engine = engine.name
                        requested = record.model if record.adapter is None else record.adapter.base
                        record.fallback_model = engine.model if engine.model != requested else None
                        record.has_other_revision = not engine.answers_as(record.engine_revision, record.adapter)
                        record.sent_at = now = time.perf_counter()
                        record.energy = engine.energy.start(now) if engine.announced is not None else None
                        record.dispatched_at = record.dispatched_at or now  # of the first attempt
                        if trace is not None:
                            record.traceparent = trace.start_attempt(engine)
                        with permit:
                            return await attempt(slot, record, request)
                except EngineError as error:
                    record.sent_at = None
                    if trace is not None:
                        trace.end_attempt(error.reason)
                    if error.refusal is not None:
                        not_served = not_served or (
                            unsupported_endpoint(record.model, request.endpoint.path)
                            if _lacks_endpoint(error)
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
                    if not _lacks_endpoint(error):  # which is logged once for each engine
                        log.warning(
                            "request %s: engine %s: %s (%s)", record.request_id, engine.name, error, error.reason
                        )
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
        raise no_room or _client_error(last_error, engines, self._health)

    async def _wait_for_slot(self, record: GenerationRecord, engines: Sequence[Engine]) -> Slot | None:
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
        self, publish: Publish, slot: Slot, record: GenerationRecord, request: InferenceRequest
    ) -> EngineStream:
        timeouts = self._timeouts
        response = await self._post(slot.engine, record, request, timeouts.first_token)
        assert request.endpoint.streaming is not None  # else the request would not be for a stream
        recorder = request.endpoint.streaming.make_recorder(self._max_entry, self._shapes)
        stream = EngineStream(slot, response, recorder, self._health, publish, chunk_timeout=timeouts.between_tokens)
        try:
            await stream.wait_first_token()
        except BaseException:
            stream.close_response()  # without the slot, which `_first_success` releases
            raise
        return stream

    async def _attempt_json(
        self, slot: Slot, record: GenerationRecord, request: InferenceRequest
    ) -> tuple[bytes, RecordedResponse | NotStoredReason]:
        with await self._post(slot.engine, record, request, None) as response:
            if request.form is not None:
                record.media_type = media_type(response.content_type)
            body, complete = await response.read_up_to(MAX_RESPONSE)
        if not complete:
            raise answer_too_large("The response", MAX_RESPONSE)
        recorded = request.endpoint.record_body(request, body, self._max_entry)
        if recorded is NotStoredReason.ERROR:
            if (
                refusal := parse_refusal_event(slot.engine.without_secrets(body[:MAX_ERROR_BODY]), slot.engine.address)
            ) is not None:
                raise refusal
            raise EngineError("malformed", "the engine's response is not valid")
        self._health.record_success(slot.engine)
        slot.release()  # here, because the response is complete; a stream keeps the slot until `EngineStream.close`
        return body, recorded

    async def _post(
        self, engine: Engine, record: GenerationRecord, request: InferenceRequest, head_timeout: float | None
    ) -> EngineResponse:
        """Sends the request and returns a response with status 200. Raises EngineError, or ApiError for a refusal.

        `head_timeout`: seconds until the response head. None: the total timeout is the only limit. That is so for JSON,
        whose head comes only when the response is complete.
        """
        form = request.form
        if form is None:
            total = self._timeouts.total(request.max_tokens, engine.max_model_len)
        else:  # an engine cuts a long file into pieces, so its context does not bound the response
            total = self._timeouts.total(longest_answer(form), None)
        head_timeout = total if head_timeout is None else head_timeout
        stream_usage = engine.traits.stream_usage
        started_at = time.monotonic()
        response = await self._send(engine, record, request, head_timeout, total, stream_usage=stream_usage)
        if response.status == 200:
            if engine.unserved_paths:
                engine.unserved_paths.discard(request.endpoint.path)
            return response
        failure, error_body = await self._read_failure(engine, response)
        if stream_usage and failure.refusal is not None and _may_refuse_usage_option(engine, request, error_body):
            elapsed = time.monotonic() - started_at
            response = await self._send(
                engine, record, request, head_timeout - elapsed, total - elapsed, stream_usage=False
            )
            if response.status == 200:
                # Not before: any client can send a request that is refused with a message that has this word.
                engine.learn(stream_usage=False)
                return response
            failure, _ = await self._read_failure(engine, response)
        if failure.refusal is not None:
            if not is_not_served(response.status):
                raise failure.refusal
            if response.status == 404 and _lacks_endpoint(failure):
                engine.note_unserved(request.endpoint.path, time.perf_counter())
        raise failure

    async def _send(
        self, engine: Engine, record: GenerationRecord, request: InferenceRequest, head_timeout: float,
        total_timeout: float, *, stream_usage: bool,
    ) -> EngineResponse:  # fmt: skip
        # Each attempt has its own id, because an engine may still hold the previous attempt under that one's.
        number = len(record.failed_attempts) + 1
        attempt_id = record.engine_request_id if number == 1 else f"{record.engine_request_id}-{number}"
        salt = self._cache_salts.get(record.tenant) if engine.traits.cache_salt else None
        priority = record.priority if engine.traits.priority else None
        model = engine.served_model if record.adapter is None else record.adapter.id
        if request.form is None:
            body = engine_body(request, model, salt, stream_usage=stream_usage, priority=priority)
        else:
            body = engine_form(request.form, model)
        response = await self._client.post(
            engine,
            request.endpoint,
            body,
            request_id=attempt_id,
            traceparent=record.traceparent,
            tracestate=record.tracestate,
            priority=priority or None,
            head_timeout=head_timeout,
            total_timeout=total_timeout,
            form_type=request.form.content_type if request.form is not None else None,
        )
        if record.trace is not None:
            record.trace.on_response(response)
        return response

    async def _read_failure(self, engine: Engine, response: EngineResponse) -> tuple[EngineError, bytes]:
        """The error for a response with another status than 200, and its body."""
        status = response.status
        with response:
            retry_after = parse_retry_after(response.retry_after, time.time())
            try:
                error_body, complete = await response.read_up_to(MAX_ERROR_BODY, self._timeouts.between_tokens)
            except EngineError:  # the status is enough to go on
                error_body, complete = b"", False
        refusal = None
        if is_refusal(status):
            shown = engine.without_secrets(error_body)
            refusal = parse_refusal(status, shown, complete=complete, address=engine.address)
        return EngineError(f"status-{status}", f"the engine returned status {status}", retry_after, refusal), error_body


def _lacks_endpoint(error: EngineError) -> bool:
    """Whether the engine has no route for the request's path."""
    refusal = error.refusal
    return isinstance(refusal, ApiError) and refusal.code == UNSUPPORTED_ENDPOINT and refusal.status == 404


def _may_refuse_usage_option(engine: Engine, request: InferenceRequest, error_body: bytes) -> bool:
    """Whether a refusal may be about the option that the router sets in a stream's request, not about the client's."""
    options = request.fields.get("stream_options")
    return (
        request.stream
        and engine.may_learn("stream_usage")
        and (options is None or options == {"include_usage": True})
        and b"stream_options" in error_body
    )


def _client_error(error: EngineError | None, engines: Sequence[Engine], health: EngineHealth) -> ApiError:
    """The client's error if no engine succeeded. `error`: the last attempt's; None if there was no attempt."""
    if error is None:
        return _no_attempt_error(engines, health)
    match error.reason:
        case "connect":
            return unavailable("No engine of this model can be reached.", code="no_engine")
        case "local":
            message = "The router has no file descriptor, port or memory left for a connection to an engine."
            return unavailable(message, code="out_of_resources")
        case "status-429" | "status-503":
            wait = max(1, ceil(error.retry_after or 0.0))
            return unavailable("The engines of this model are busy.", code="engines_busy", retry_after=wait)
        case "timeout":
            return ApiError(504, "Timeout: the engine did not respond in time.", kind=UPSTREAM, code="engine_timeout")
        case _:
            return ApiError(502, f"The request failed at the engine: {error}.", kind=UPSTREAM, code="engine_failed")


def _no_attempt_error(engines: Sequence[Engine], health: EngineHealth) -> ApiError:
    # One that was drained while the request waited is left out, as it is from the engines of a new request.
    engines = [engine for engine in engines if not engine.drained]
    wait = max(1, ceil(min((health.breakers.retry_after(engine.name) for engine in engines), default=0.0)))
    if all(engine.up is False for engine in engines):
        message = "No engine of this model can be reached."
        return unavailable(message, code="no_engine", retry_after=wait)
    message = "The circuit breakers of this model's engines are open after failures or high load."
    return unavailable(message, code="circuit_open", retry_after=wait)
