"""What one client's request gets from an in-flight request, in the form (stream or JSON) that the client asks for.

An in-flight request knows neither its clients nor their formats: its Subscriber gives the frames, their order and their
end. Here the end becomes what the client sees: the response converted to the other form, the last frames of a stream,
an error event, an ApiError, or another attempt. The facts about it go into the client's Exchange.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.errors.engine_errors import is_refusal
from router.core.endpoints.errors.error_envelope import BrokenStream
from router.core.endpoints.recording.replay import replay
from router.errors import ENGINE_FAILED, ENGINE_LOST, MAX_TTFT_EXCEEDED, UPSTREAM, ApiError
from router.flow.attempts.admission import queue_timeout
from router.flow.exchange import Exchange
from router.flow.result import GenerationResult
from router.flow.sharing.inflight import InFlightRequest, TrySend

QUEUE_ERRORS: Final = ("queue_timeout", "queue_full", "tenant_queue_full")
LEADER_LOCAL_ERRORS: Final = (*QUEUE_ERRORS, "out_of_resources", "stopping")
"""Error codes that concern only the leader's process. A follower retries: its own process may have capacity."""


class RetryRequest(Exception):  # noqa: N818 - a signal to the gateway, not an error
    """The in-flight request has no response for this client. It has received nothing yet, so it may start over.

    `retry_after`: in seconds, of the error if it has waited in the queue of another process; None: it has not.
    """

    def __init__(self, *, retry_after: int | None = None) -> None:
        super().__init__()
        self.retry_after = retry_after


class ResponseDelivery:
    """The response of an in-flight request to one client.

    - `start` waits for the first token, or for the end where the client wants JSON. It returns the full response if
      there is one. Raises the ApiError with which the generation ended, or RetryRequest; then it is closed.
    - `read` then returns the stream piece by piece; with the last piece, `finished` is set. A generation that fails
      after its first token ends with one error event and no `[DONE]`, or without an end (`is_broken_off`) for a client
      that repeats its request only then. For `try_send`, see Subscriber.
    - `close` must be called when the client needs nothing more; when the last client leaves, the engine is freed.
    """

    __slots__ = (
        "_exchange", "_inflight", "_is_initiator", "_queue_time", "_request", "_retries_after_break", "_retry_after",
        "_subscriber", "finished", "is_broken_off",
    )  # fmt: skip

    def __init__(
        self, inflight: InFlightRequest, request: InferenceRequest, exchange: Exchange, *, is_initiator: bool = False,
        queue_time: float | None = None, retry_after: int = 1, pass_comments: Callable[[bytes], None] | None = None,
        retries_after_break: Callable[[], bool] = bool,
    ) -> None:  # fmt: skip
        """`is_initiator`: the in-flight request was started for this client, so it gets the leader's error as it is.

        `queue_time`: seconds that are left of the client's time in queues; then `start` raises `queue_timeout`, unless
        an engine has the request. None: the queue sees to that. `retry_after`: of that error, in seconds.

        `pass_comments` gets the comments of the engine before its first token. `retries_after_break`: see Caller.
        """
        self._inflight = inflight
        self._request = request
        self._exchange = exchange
        exchange.generation = inflight.record
        self._is_initiator = is_initiator
        self._queue_time = queue_time
        self._retry_after = retry_after
        self._retries_after_break = retries_after_break
        self._subscriber = inflight.subscribe()
        self._subscriber.on_comments = pass_comments
        self.finished = self.is_broken_off = False

    async def start(self) -> bytes | None:
        try:
            if self._queue_time is not None:
                await self._wait_in_queue(self._queue_time)
            await self._subscriber.wait_until_started(needs_end=not self._request.stream)
            return self._beginning()
        except BaseException:  # a cancellation, too: without subscribers, the generation is abandoned
            self.close()
            raise

    def _beginning(self) -> bytes | None:
        """What `start` returns or raises once there is data or a result, which shows the form of the response.

        Another process may lead it for a JSON client, and then there are no frames, only a result.
        """
        inflight = self._inflight
        if self._subscriber.overrun and inflight.result is None and not self._request.stream:
            # It waits for the end, and the frames have grown beyond what is buffered for it. A retry does not join.
            raise RetryRequest
        record, exchange = inflight.record, self._exchange
        exchange.engine, exchange.fallback_model = record.engine, record.fallback_model
        exchange.task = record.origin.task
        exchange.media_type = record.media_type
        exchange.first_token_at = time.perf_counter()
        if inflight.result is None:
            return None
        if inflight.result.is_private and not self._is_initiator:
            raise RetryRequest
        if not inflight.result.complete:
            failure = self._error_or_retry(inflight.result)
            if self._request.stream and inflight.has_data and failure is inflight.result.error:
                return None  # `read` gives the frames so far, then the error event
            exchange.fallback_model = exchange.first_token_at = None  # this request has received no token
            raise failure
        self._record_usage(inflight.result)
        if self._request.stream and inflight.result.body is None:
            return None
        body = self._render_body(inflight.result)
        if body is None:
            raise RetryRequest
        return body

    async def _wait_in_queue(self, seconds: float) -> None:
        """Returns once there is a token or a result, or an engine has the request at the end of the time."""
        inflight = self._inflight
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._subscriber.wait_until_started(needs_end=False)
        if inflight.result is None and not inflight.has_data and not inflight.is_at_engine:
            raise queue_timeout(self._retry_after)

    async def read(self, try_send: TrySend | None = None) -> bytes:
        if self.finished:
            return b""
        data = await self._subscriber.read(try_send)
        if not self._subscriber.finished:
            return data
        self.finished = True
        return data + self._ending()

    def close(self) -> None:
        if self._request.stream and not self.finished:
            self._exchange.broken_stream = self._broken_stream()
        self.finished = True
        self._subscriber.close()

    def position(self) -> int:
        """The frames that the client has got."""
        return self._subscriber.next_frame

    def _error_or_retry(self, result: GenerationResult) -> Exception:
        error = result.error
        if error is None:  # the entry has been stored meanwhile; a retry finds it
            return RetryRequest()
        if self._is_initiator and self._inflight.is_leader:
            return error
        if error.code == MAX_TTFT_EXCEEDED:  # another client's limit
            return RetryRequest()
        if error.code == ENGINE_LOST:  # this request has the same key, so it would take down two engines more
            return error
        if not self._inflight.is_leader and error.code in LEADER_LOCAL_ERRORS:
            return RetryRequest(retry_after=(error.retry_after or 1) if error.code in QUEUE_ERRORS else None)
        # A generation that broke off may succeed at another attempt. A refusal may concern a field that is not part of
        # the key, such as `priority`, which this request may lack or have with another value.
        return RetryRequest() if result.had_data or is_refusal(error.status) else error

    def _render_body(self, result: GenerationResult) -> bytes | None:
        if not self._request.stream and result.body is not None:
            return result.body  # as the engine sent it
        return replay(result.recorded_response, self._request) if result.recorded_response is not None else None

    def _ending(self) -> bytes:
        """What follows the last frame of the stream."""
        result = self._inflight.result
        if self._subscriber.overrun:
            slow = ApiError(502, "The response was interrupted: the client reads too slowly.", kind=UPSTREAM)
            return self._error_event("slow-reader", slow)
        assert result is not None  # a subscriber finishes only with the result, or overrun
        if result.complete:
            self._record_usage(result)
            return result.endings[self._request.include_usage]  # without and with the usage event
        return self._error_event(result.error_reason or "lost", result.error or ApiError(502, "", kind=UPSTREAM))

    def _error_event(self, reason: str, error: ApiError) -> bytes:
        self._exchange.outcome = "failed"
        self._exchange.error_reason = reason
        if not is_refusal(error.status):
            code = ENGINE_LOST if error.code == ENGINE_LOST else ENGINE_FAILED
            error = ApiError(502, error.message, kind=UPSTREAM, code=code)
            if code == ENGINE_FAILED and self._retries_after_break():
                self.is_broken_off = True
                return b""
        return self._request.endpoint.errors.frame(error, self._broken_stream())

    def _broken_stream(self) -> BrokenStream:
        first, last = self._inflight.first_and_last_frames()
        return BrokenStream(self._exchange.request_id, self._request.model, int(time.time()), first, last)

    def _record_usage(self, result: GenerationResult) -> None:
        exchange = self._exchange
        exchange.prompt_tokens, exchange.completion_tokens = result.prompt_tokens, result.completion_tokens
        exchange.generation_ms = result.generation_ms
