"""What the flow records about a request that is traced: instants, names and ids. See router.telemetry.tracing.

Theory of operation. A request that is not traced has no RequestTrace, so it costs one test. That of a traced request
makes no spans: the flow notes facts, and what has ended is submitted once; another thread makes spans of it. The ids of
spans are chosen when the request or an attempt starts, because engines get them. A generation can outlive the request
that started it, so its facts are submitted on their own. Times are those of time.perf_counter.
"""

import time
from collections.abc import Callable
from random import getrandbits
from typing import NamedTuple, Protocol

from router.core.endpoints.endpoint import Endpoint
from router.core.trace_context import TraceContext, format_traceparent, parse_traceparent
from router.flow.lookup import Bypass, Hit, Lookup, Miss, Stale


class TracedEngine(Protocol):
    """What is recorded of an engine; see Engine."""

    name: str
    model: str

    @property
    def address(self) -> str: ...


class TracedResponse(Protocol):
    """What is recorded of an engine's response; see EngineResponse."""

    @property
    def status(self) -> int: ...

    @property
    def connect_seconds(self) -> float | None: ...


class CacheLookup(NamedTuple):
    """`result`: hit, stale, miss or bypass; `reason` of the last two."""

    started_at: float
    ended_at: float
    result: str
    reason: str | None
    from_local_cache: bool


class QueueWait(NamedTuple):
    """The time in the queue for an engine; `error_type`: why it ended without a slot."""

    started_at: float
    ended_at: float
    error_type: str | None


class CacheWrite(NamedTuple):
    """The write of an entry and its result; see entry_store.WriteResult."""

    request: "RequestTrace"
    started_at: float
    ended_at: float
    result: str


class EngineAttempt:
    """One request to an engine.

    `number`: from 1, over all engines. `error_type`: why it failed; None if it succeeded or has not ended.
    `continued_tokens`: if it went on with a stream, the tokens that had been generated; else None.
    `connect_seconds`: how long a new connection took; None for a connection that was open already.
    """

    __slots__ = (
        "address", "connect_seconds", "continued_tokens", "ended_at", "engine", "error_type", "model", "number",
        "span_id", "started_at", "status",
    )  # fmt: skip

    def __init__(self, engine: TracedEngine, number: int, span_id: int) -> None:
        self.engine = engine.name
        self.address = engine.address
        self.model = engine.model
        self.number = number
        self.span_id = span_id
        self.started_at = time.perf_counter()
        self.ended_at: float | None = None
        self.error_type: str | None = None
        self.status: int | None = None
        self.connect_seconds: float | None = None
        self.continued_tokens: int | None = None


class RequestTrace:
    """The trace of one request.

    - `context`: of the request's span. `parent_span_id`: of the client's span, 0 if it sent none.
    - `leader`: the span of the request whose generation this one shared, if it is known.
    - `submit` takes what has ended, and never waits.
    """

    __slots__ = ("context", "endpoint", "leader", "lookups", "parent_span_id", "submit")

    def __init__(
        self, endpoint: Endpoint, context: TraceContext, parent_span_id: int, submit: Callable[[object], None]
    ) -> None:
        self.endpoint = endpoint
        self.context = context
        self.parent_span_id = parent_span_id
        self.leader: TraceContext | None = None
        self.lookups: list[CacheLookup] = []
        self.submit = submit

    @property
    def traceparent(self) -> str:
        return format_traceparent(self.context)

    def add_lookup(self, started_at: float, lookup: Lookup) -> None:
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
        self.lookups.append(CacheLookup(started_at, time.perf_counter(), result, reason, local))

    def set_leader(self, generation: "GenerationTrace | None", traceparent: str | None) -> None:
        """`generation`: of this process. `traceparent`: of a leader in another process."""
        if traceparent is not None:
            self.leader = parse_traceparent(traceparent)
        elif generation is not None and generation.request is not self:
            self.leader = generation.request.context


class GenerationTrace:
    """The attempts of a generation at engines, for the request that started it."""

    __slots__ = ("_write_started_at", "attempts", "queue_waits", "request")

    def __init__(self, request: RequestTrace) -> None:
        self.request = request
        self.queue_waits: list[QueueWait] = []
        self.attempts: list[EngineAttempt] = []
        self._write_started_at = 0.0

    def add_queue_wait(self, started_at: float, error_type: str | None) -> None:
        self.queue_waits.append(QueueWait(started_at, time.perf_counter(), error_type))

    def start_attempt(self, engine: TracedEngine) -> str:
        """Returns the `traceparent` for the engine."""
        attempt = EngineAttempt(engine, len(self.attempts) + 1, new_span_id())
        self.attempts.append(attempt)
        return format_traceparent(self.request.context._replace(span_id=attempt.span_id))

    def on_response(self, response: TracedResponse) -> None:
        attempt = self.attempts[-1]
        attempt.status, attempt.connect_seconds = response.status, response.connect_seconds

    def end_attempt(self, error_type: str | None = None) -> None:
        """Ends the last attempt, unless it has ended."""
        if self.attempts and self.attempts[-1].ended_at is None:
            self.attempts[-1].ended_at = time.perf_counter()
            self.attempts[-1].error_type = error_type

    def on_continued(self, tokens: int) -> None:
        """The last attempt goes on with a stream of which so many tokens had been generated."""
        self.attempts[-1].continued_tokens = tokens

    def start_write(self) -> None:
        self.end_attempt()
        self._write_started_at = time.perf_counter()

    def end_write(self, result: str) -> None:
        self.request.submit(CacheWrite(self.request, self._write_started_at, time.perf_counter(), result))


def new_trace_id() -> int:
    return getrandbits(128) or 1  # 0 stands for none


def new_span_id() -> int:
    return getrandbits(64) or 1
