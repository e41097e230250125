"""What is recorded of a traced request. Times are those of time.perf_counter."""

import time
from random import getrandbits
from typing import NamedTuple

from router.flow.trace.request_trace import RequestTrace, TracedEngine


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

    request: RequestTrace
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


class EndedRequest:
    """A request that has ended, at an instant of time.perf_counter. `exchange`: its Exchange."""

    __slots__ = ("ended_at", "exchange")

    def __init__(self, exchange: object, ended_at: float) -> None:
        self.exchange = exchange
        self.ended_at = ended_at


class EndedGeneration:
    """A generation that has ended. `record`: its GenerationRecord; `trace`: its RecordedGeneration."""

    __slots__ = ("record", "trace")

    def __init__(self, record: object, trace: object) -> None:
        self.record = record
        self.trace = trace


def new_trace_id() -> int:
    return getrandbits(128) or 1  # 0 stands for none


def new_span_id() -> int:
    return getrandbits(64) or 1
