"""What the flow records about a request that is traced: instants, names and ids. See router.telemetry.tracing.

Theory of operation. The flow makes no spans: it notes facts, and what has ended is submitted once; another thread makes
spans of it. The ids of
spans are chosen when the request or an attempt starts, because engines get them. A generation can outlive the request
that started it, so its facts are submitted on their own. Times are those of time.perf_counter.
"""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from router.core.endpoints.endpoint import Endpoint
from router.core.trace_context import TraceContext, format_traceparent, parse_traceparent
from router.errors import ApiError
from router.flow.lookup import Bypass, Hit, Lookup, Miss, Stale
from router.flow.trace.request_trace import GenerationTrace, RequestTrace, TracedEngine, TracedResponse
from router.flow.trace.trace_events import (
    CacheLookup,
    CacheWrite,
    EndedGeneration,
    EndedRequest,
    EngineAttempt,
    QueueWait,
    new_span_id,
)

T = TypeVar("T")


class RecordedTrace(RequestTrace):
    """- `context`: of the request's span. `parent_span_id`: of the client's span, 0 if it sent none.
    - `leader`: the span of the request whose generation this one shared, if it is known.
    - `submit` takes what has ended, and never waits.
    """

    __slots__ = ("_lookup_started_at", "context", "endpoint", "leader", "lookups", "parent_span_id", "submit")

    def __init__(
        self, endpoint: Endpoint, context: TraceContext, parent_span_id: int, submit: Callable[[object], None]
    ) -> None:
        self.endpoint = endpoint
        self.context = context
        self.parent_span_id = parent_span_id
        self.leader: TraceContext | None = None
        self.lookups: list[CacheLookup] = []
        self.submit = submit
        self._lookup_started_at = 0.0

    def new_generation(self) -> GenerationTrace:
        return RecordedGeneration(self)

    def start_lookup(self) -> None:
        self._lookup_started_at = time.perf_counter()

    def end_lookup(self, lookup: Lookup) -> None:
        reason: str | None = None
        local = False
        match lookup:
            case Hit():
                result, local = "hit", lookup.from_local_cache
            case Stale():
                result, local = "stale", lookup.from_local_cache
            case Miss():
                result, reason = "miss", lookup.reason
            case Bypass():
                result, reason = "bypass", lookup.reason
        self.lookups.append(CacheLookup(self._lookup_started_at, time.perf_counter(), result, reason, local))

    def set_leader(self, generation: GenerationTrace, traceparent: str | None) -> None:
        if traceparent is not None:
            self.leader = parse_traceparent(traceparent)
        elif isinstance(generation, RecordedGeneration) and generation.request is not self:
            self.leader = generation.request.context

    def finish(self, exchange: object, ended_at: float) -> None:
        self.submit(EndedRequest(exchange, ended_at))


class RecordedGeneration(GenerationTrace):
    __slots__ = ("_write_started_at", "attempts", "queue_waits", "request")

    def __init__(self, request: RecordedTrace) -> None:
        self.request = request
        self.queue_waits: list[QueueWait] = []
        self.attempts: list[EngineAttempt] = []
        self._write_started_at = 0.0

    def traceparent(self) -> str | None:
        return format_traceparent(self.request.context)

    def queued(self, slot: Awaitable[T]) -> Awaitable[T]:
        return self._timed(slot)

    async def _timed(self, waiting: Awaitable[T]) -> T:
        started_at = time.perf_counter()
        error_type: str | None = "cancelled"
        try:
            slot = await waiting
            error_type = "blocked" if slot is None else None
            return slot
        except ApiError as error:
            error_type = error.reason
            raise error  # noqa: TRY201 - compiled, a `raise` without it can lose the error after an `await`
        finally:
            self.queue_waits.append(QueueWait(started_at, time.perf_counter(), error_type))

    def start_attempt(self, engine: TracedEngine, traceparent: str | None) -> str | None:
        attempt = EngineAttempt(engine, len(self.attempts) + 1, new_span_id())
        self.attempts.append(attempt)
        return format_traceparent(self.request.context._replace(span_id=attempt.span_id))

    def on_response(self, response: TracedResponse) -> None:
        attempt = self.attempts[-1]
        attempt.status, attempt.connect_seconds = response.status, response.connect_seconds

    def end_attempt(self, error_type: str | None = None) -> None:
        if self.attempts and self.attempts[-1].ended_at is None:
            self.attempts[-1].ended_at = time.perf_counter()
            self.attempts[-1].error_type = error_type

    def on_continued(self, tokens: int) -> None:
        self.attempts[-1].continued_tokens = tokens

    def start_write(self) -> None:
        self.end_attempt()
        self._write_started_at = time.perf_counter()

    def end_write(self, result: str) -> None:
        self.request.submit(CacheWrite(self.request, self._write_started_at, time.perf_counter(), result))

    def finish(self, generation: object, error_type: str | None) -> None:
        self.end_attempt(error_type)
        self.request.submit(EndedGeneration(generation, self))
