"""The stream of one engine, from its response's body to the publisher of events.

Theory of operation. A chunk passes from the engine's socket to the client's in one call, without a task or a future:
HTTPConnection.data_received, `_on_chunk`, the recorder's `feed`, InFlightRequest.publish, the delivery's `on_data` of
each client, and the `try_send` of its connection. What a client cannot take now waits in its own buffer.
"""

from collections.abc import Callable
from typing import Protocol

from router.core.endpoints.continuation.continued_stream import DIVERGED
from router.core.endpoints.endpoint import Recorder
from router.core.endpoints.errors.engine_errors import answer_too_large
from router.core.endpoints.recording.recording import ABORTED, EVENT_TOO_LONG, MAX_EVENT_SIZE
from router.core.endpoints.recording.sse import split_comments
from router.flow.attempts.attempt import Attempt
from router.flow.attempts.dispatch_errors import reported_error
from router.flow.attempts.engine_health import EngineHealth
from router.net.client.errors import EngineError, broken_off
from router.upstream.engine import Engine


class Publisher(Protocol):
    """Receives what is for the clients of a stream."""

    def publish(self, frames: bytes) -> None:
        """Complete events."""

    def pass_comments(self, comments: bytes) -> None:
        """Comments that came before the first token, so they are no part of the stream."""


class StreamedResponse(Protocol):
    """See EngineResponse."""

    async def stream_to(self, sink: Callable[[bytes], bool], chunk_timeout: float) -> bool: ...

    def bind_if(self, is_bound: Callable[[], bool]) -> None: ...

    def close(self, *, linger: bool = False) -> None: ...


class EngineStream:
    """The stream of one engine. Events are published as soon as they arrive, from the first token on.

    - `wait_first_token` publishes nothing before the first token, so until then another engine can take over. Comments
      are passed on.
    - `run` publishes the rest, until the engine ends the stream; `recorder` then has the result, if no
      other engine continues it.
    - `close` frees the engine and its slot.
    """

    __slots__ = (
        "_chunk_timeout", "_first_timeout", "_health", "_initial_data", "_publish", "_publisher", "_response",
        "attempt", "recorder",
    )  # fmt: skip

    def __init__(
        self, attempt: Attempt, response: StreamedResponse, recorder: Recorder, health: EngineHealth,
        publisher: Publisher, *, first_timeout: float, chunk_timeout: float,
    ) -> None:  # fmt: skip
        """Maximum seconds from one chunk to the next: before the first token, and after it.

        The engine's watch allows more if it works for others.
        """
        self.attempt = attempt
        self.recorder = recorder
        self._response = response
        self._health = health
        self._first_timeout = first_timeout
        self._chunk_timeout = chunk_timeout
        self._initial_data: list[bytes] = []
        self._publisher = publisher
        self._publish = publisher.publish  # bound once, since it is called for every chunk

    @property
    def engine(self) -> Engine:
        return self.attempt.slot.engine

    async def wait_first_token(self) -> None:
        """Waits for the first token and publishes it. Raises EngineError, or ApiError if the request is at fault."""
        try:
            if not await self._response.stream_to(self._on_first_chunk, self._first_timeout):
                last_event = self._read_last_event()
                self._require_complete()  # a response without any token is valid
                if data := b"".join([*self._initial_data, last_event]):
                    self._publish(data)
        except EngineError as error:
            if error.refusal is not None:
                raise error.refusal from None
            raise

    async def run(self, is_bound: Callable[[], bool]) -> None:
        """Publishes everything after the first token. Raises EngineError if the engine fails or stalls.

        `is_bound`: whether no other engine could go on. If the engine's checks fail, the stream then stays with it.
        """
        self._response.bind_if(is_bound)
        try:
            if not self._is_finished() and not await self._response.stream_to(self._on_chunk, self._chunk_timeout):
                if last_event := self._read_last_event():
                    self._publish(last_event)  # in any case: it is recorded, so another engine goes on after it
                self._require_complete()
        except EngineError as error:
            self._health.record_failure(self.engine, error)
            raise
        # Only now: with a success at each first token, an engine that always stalls after it would never be detected.
        self._health.record_success(self.engine)

    def close(self) -> None:
        self.attempt.slot.release()
        self.close_response()

    def close_response(self) -> None:
        # Once the stream has ended, only the end of the body can follow. The connection can be reused after it.
        self._response.close(linger=self.recorder.ended)

    def _on_first_chunk(self, chunk: bytes) -> bool:
        data = self.recorder.feed(chunk)
        begins = self.recorder.started or self._is_finished()  # a response without any token is valid
        if not begins:
            data, comments = split_comments(data)
            if comments:
                self._publisher.pass_comments(comments)
        # Events before the first token, such as a role, are held back: another engine would send its own.
        if data:
            self._initial_data.append(data)
        if not begins:
            return False
        if self._initial_data:
            self._publish(b"".join(self._initial_data))
        return True

    def _on_chunk(self, chunk: bytes) -> bool:
        recorder = self.recorder
        if data := recorder.feed(chunk):
            self._publish(data)
        # Reads two attributes rather than calling `_is_finished`, because this runs for every chunk.
        return (recorder.ended or recorder.failure is not None) and self._is_finished()

    def _read_last_event(self) -> bytes:
        """After a body without the event that ends a stream: what is to be published of the last event."""
        return self.recorder.feed_end() if self.engine.traits.ends_without_done else b""

    def _require_complete(self) -> None:
        """After `_read_last_event`; raises EngineError if the response is not complete."""
        if self.engine.traits.ends_without_done and (self._is_finished() or self.recorder.end_without_marker()):
            return
        error = self.recorder.error_at_end()
        raise broken_off() if error is None else reported_error(error, self.engine)

    def _is_finished(self) -> bool:
        """Raises EngineError for a failure in the stream."""
        if self.recorder.ended:
            return True
        failure = self.recorder.failure
        if failure is not None:
            raise _error_of_failure(failure, self.engine)
        return False


def _error_of_failure(failure: bytes, engine: Engine) -> EngineError:
    """The error for what a recorder found in the stream: an event that is too long, or one that reports an error."""
    if failure == EVENT_TOO_LONG:
        refusal = answer_too_large("An event of the response", MAX_EVENT_SIZE)
        return EngineError("too-large", f"an event has more than {MAX_EVENT_SIZE >> 20} MiB", refusal=refusal)
    if failure == ABORTED:
        return EngineError("aborted", "the engine cut the response off")
    if failure == DIVERGED:
        return EngineError("diverged", "the engine did not repeat what another one had said")
    return reported_error(failure, engine)
