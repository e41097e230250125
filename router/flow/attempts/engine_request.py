"""One request to one engine: what it is sent, and what a status other than 200 means."""

import time
from collections.abc import Mapping
from typing import Final

from router.core.endpoints.continuation.derendered_chat import DERENDER_PATH
from router.core.endpoints.conversations.turn_at_engine import TurnAtEngine
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.errors.engine_errors import (
    UNSUPPORTED_ENDPOINT,
    is_failed_generation,
    is_not_served,
    is_refusal,
    parse_refusal,
)
from router.core.endpoints.errors.engine_message import MAX_ERROR_BODY, summary
from router.core.endpoints.requests.request import engine_body
from router.core.endpoints.requests.upload import engine_form
from router.core.endpoints.requests.workload import workload
from router.core.resilience.retry import parse_retry_after
from router.core.resilience.timeouts import EngineTimeouts
from router.errors import ApiError
from router.flow.attempts.attempt import Attempt
from router.flow.request_origin import RequestOrigin
from router.flow.sharing.inflight import InFlightRequest
from router.net.client.errors import EngineError
from router.net.client.response import EngineResponse
from router.settings import Settings
from router.upstream.client import EngineClient
from router.upstream.engine import Engine

_MAX_DERENDERED: Final = 16 << 20  # bytes: the ids of all tokens of a response, and some events
# What vLLM answers to an empty request for its parser of tokens; and without --enable-scale-out, or before 0.32.
_INVALID: Final = (400, 422)
_WITHOUT_PARSER: Final = (403, 404, 405, 501)
_NOT_SERVED: Final = ("status-404", "status-405", "status-501")


class EngineRequests:
    """Sends the requests of clients to engines, as each engine understands them, with these timeouts."""

    def __init__(self, client: EngineClient, timeouts: EngineTimeouts, cache_salts: Mapping[str, str]) -> None:
        """`cache_salts`: by tenant, the salt of its prompts in the engines' prefix caches; see cache_salt."""
        self._client = client
        self.timeouts = timeouts
        self.cache_salts = cache_salts

    async def post(
        self, attempt: Attempt, inflight: InFlightRequest, request: InferenceRequest, head_timeout: float | None, *,
        token_ids: bool = False, total: float | None = None,
    ) -> EngineResponse:  # fmt: skip
        """Sends the request and returns a response with status 200. Raises EngineError, or ApiError for a refusal.

        `head_timeout`: seconds until the response head. None: the total timeout is the only limit. That is so for JSON,
        whose head comes only when the response is complete. `token_ids`: whether the engine is asked for them.
        `total`: seconds until the complete response; None: as long as the request may take.
        """
        engine = attempt.engine
        if total is None:
            # An engine cuts a long file into pieces, so its context does not bound the response.
            context = engine.max_model_len if request.form is None else None
            total = self.timeouts.total(workload(request), context)
        head_timeout = total if head_timeout is None else head_timeout
        stream_usage, started_at, waited = engine.traits.stream_usage, time.monotonic(), 0.0
        turn = inflight.origin.at_engine if request is inflight.request else None
        kept = turn if turn is not None and _may_have_kept(engine, turn) else None
        while True:
            sent = kept.request(request) if kept is not None else request
            response = await self._client.post(
                engine,
                request.endpoint,
                self._body(engine, inflight.origin, sent, stream_usage=stream_usage, token_ids=token_ids),
                request_id=attempt.request_id,
                traceparent=attempt.traceparent,
                tracestate=inflight.origin.tracestate,
                priority=(inflight.origin.priority or None) if engine.traits.priority else None,
                head_timeout=head_timeout - waited,
                total_timeout=total - waited,
                form_type=request.form.content_type if request.form is not None else None,
            )
            attempt.facts.connect_seconds = response.connect_seconds
            inflight.trace.on_response(response)
            if response.status == 200:
                break
            failure, error_body = await self._read_failure(engine, response)
            may_refuse_usage = stream_usage and _may_refuse_usage_option(engine, request, error_body)
            if failure.refusal is None or not (kept or may_refuse_usage):
                raise _failure_of(engine, request, turn, response.status, failure)
            if kept is not None:
                kept = None  # it has not kept the response, or not any more
            else:
                stream_usage = False
            waited = time.monotonic() - started_at
        if engine.traits.stream_usage and not stream_usage:
            # Not before: any client can send a request that is refused with a message that has this word.
            engine.learn(stream_usage=False)
        if engine.unserved_paths:
            engine.unserved_paths.discard(request.endpoint.path)
        return response

    async def learn_parser(self, engine: Engine) -> None:
        """Asks whether the engine has a parser of tokens. Raises EngineError if it has none, or if that is unknown."""
        status, reply = await self._post_tokens(engine, b"{}", self.timeouts.first_token)
        if status not in _INVALID:
            raise _unparsed(engine, status, reply)
        engine.learn(parses_tokens=True)

    async def derender(self, engine: Engine, body: bytes, timeout: float) -> bytes:
        """Sends a body of DerenderedChat; returns the reply. Raises EngineError."""
        status, reply = await self._post_tokens(engine, body, timeout)
        if status != 200:
            raise _unparsed(engine, status, reply)
        return reply

    async def _post_tokens(self, engine: Engine, body: bytes, timeout: float) -> tuple[int, bytes]:
        with await self._client.post_json(engine, DERENDER_PATH, body, timeout=timeout) as response:
            return response.status, await response.read(_MAX_DERENDERED)

    def _body(
        self, engine: Engine, origin: RequestOrigin, request: InferenceRequest, *, stream_usage: bool, token_ids: bool
    ) -> bytes:
        model = engine.served_model if origin.adapter is None else origin.adapter.id
        if request.form is not None:
            return engine_form(request.form, model)
        salt = self.cache_salts.get(origin.tenant) if engine.traits.cache_salt else None
        priority = origin.priority if engine.traits.priority else None
        return engine_body(request, model, salt, stream_usage=stream_usage, priority=priority, token_ids=token_ids)

    async def _read_failure(self, engine: Engine, response: EngineResponse) -> tuple[EngineError, bytes]:
        """The error for a response with another status than 200, and its body."""
        status = response.status
        with response:
            retry_after = parse_retry_after(response.retry_after, time.time())
            response.unwatch()  # whatever the engine does for others, a message that does not come is not needed
            try:
                error_body, complete = await response.read_up_to(MAX_ERROR_BODY, self.timeouts.between_tokens)
            except EngineError:  # the status is enough to go on
                error_body, complete = b"", False
        refusal = None
        if is_refusal(status) and not is_failed_generation(status, error_body):
            shown = engine.without_secrets(error_body)
            refusal = parse_refusal(status, shown, complete=complete, address=engine.address)
        detail = summary(engine.without_secrets(error_body), engine.address)
        message = f"the engine returned status {status}"
        return EngineError(f"status-{status}", message, retry_after, refusal, detail), error_body


def _may_have_kept(engine: Engine, turn: TurnAtEngine) -> bool:
    return engine.name == turn.engine and engine.traits.keeps_responses


def _failure_of(
    engine: Engine, request: InferenceRequest, turn: TurnAtEngine | None, status: int, failure: EngineError
) -> Exception:
    """The error to raise for a response with this status: an ApiError for a refusal of the request itself."""
    if failure.refusal is None:
        return failure
    if not is_not_served(status):
        # The engine that may have kept more of the conversation need not refuse it.
        return failure.refusal if turn is None or turn.engine == engine.name else failure
    if status == 404 and lacks_endpoint(failure):
        engine.note_unserved(request.endpoint.path, time.perf_counter())
    return failure


def _unparsed(engine: Engine, status: int, reply: bytes) -> EngineError:
    # Any other status, such as one of a busy engine or of a proxy, need not be the same next time.
    if status in _WITHOUT_PARSER:
        engine.learn(parses_tokens=False)
    detail = summary(engine.without_secrets(reply), engine.address)
    return EngineError("unparsed", f"the engine's parser of tokens returned status {status}", detail=detail)


def engine_timeouts(settings: Settings) -> EngineTimeouts:
    of = settings.timeouts
    return EngineTimeouts(of.first_token, of.between_tokens, of.min_tokens_per_second)


def refuses_turn(turn: TurnAtEngine, engine: Engine, error: EngineError) -> bool:
    """Whether the engine, which is another one than the turn is for, refuses it as a whole. Others would, too."""
    return engine.name != turn.engine and error.refusal is not None and error.reason not in _NOT_SERVED


def lacks_endpoint(error: EngineError) -> bool:
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
