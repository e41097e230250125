"""Makes OpenTelemetry's spans from the facts of what has ended.

Theory of operation. The SDK's tracer makes a span when something starts and chooses its id then. Here the ids and
instants are known already and everything has ended, so spans are made as the SDK passes them to exporters. Instants of
time.perf_counter become times of day with the offset between the two clocks. It is the same for all batches until the
time of day is set.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from router.core.trace_context import TraceContext
from router.flow.exchange import Exchange, GenerationRecord
from router.flow.trace.recorded_trace import RecordedGeneration, RecordedTrace
from router.flow.trace.trace_events import CacheWrite, EndedGeneration, EndedRequest, EngineAttempt, new_span_id
from router.telemetry.tracing.attributes import Attributes, attempt_attributes, lookup_attributes, request_attributes

_STARTED: Final = "first token"

_OK: Final = Status(StatusCode.UNSET)
_FAILED: Final = Status(StatusCode.ERROR)
_FLAGS: Final = TraceFlags(TraceFlags.SAMPLED)
_CLOCK_WAS_SET: Final = 1_000_000  # nanoseconds between two measurements of the offset


class SpanMaker:
    """Makes the spans of requests, generations and cache writes. See docs/tracing.md for their names."""

    def __init__(self, resource: Resource, version: str) -> None:
        self._resource = resource
        self._scope = InstrumentationScope("roundhouse", version)
        self._offset = _measure_offset()

    def make(self, items: Sequence[object]) -> list[ReadableSpan]:
        measured = _measure_offset()
        # The measurements differ by some hundred nanoseconds, which would reverse the order of spans of two batches.
        if abs(measured - self._offset) > _CLOCK_WAS_SET:
            self._offset = measured
        batch = _Batch(self._resource, self._scope, self._offset)
        return [span for item in items for span in batch.spans(item)]


def _measure_offset() -> int:
    return time.time_ns() - time.perf_counter_ns()


class _Batch:
    def __init__(self, resource: Resource, scope: InstrumentationScope, offset: int) -> None:
        self._resource = resource
        self._scope = scope
        self._offset = offset

    def spans(self, item: object) -> Iterator[ReadableSpan]:
        match item:
            case EndedRequest(exchange=Exchange(trace=RecordedTrace() as trace) as exchange):
                yield from self._request(exchange, trace, item.ended_at)
            case EndedGeneration(record=GenerationRecord() as record, trace=RecordedGeneration() as generation):
                yield from self._generation(record, generation)
            case CacheWrite(RecordedTrace() as request, started_at, ended_at, result):
                attributes: Attributes = {"roundhouse.cache.write": result}
                yield self._child(request, "cache write", started_at, ended_at, attributes)

    def _request(self, exchange: Exchange, trace: RecordedTrace, ended_at: float) -> Iterator[ReadableSpan]:
        for lookup in trace.lookups:
            attributes = lookup_attributes(lookup, exchange.key)
            yield self._child(trace, "cache lookup", lookup.started_at, lookup.ended_at, attributes)
        state = TraceState.from_header([exchange.tracestate]) if exchange.tracestate is not None else None
        context = _span_context(trace.context, state)
        parent = trace.context._replace(span_id=trace.parent_span_id)
        operation = exchange.endpoint.operation
        failed = exchange.outcome == "failed" or exchange.status >= 500
        first_token = exchange.first_token_at
        yield ReadableSpan(
            operation if exchange.model is None else f"{operation} {exchange.model}",
            context,
            _span_context(parent, state, is_remote=True) if trace.parent_span_id else None,
            self._resource,
            request_attributes(exchange),
            [] if first_token is None else [Event(_STARTED, timestamp=self._time_of(first_token))],
            [Link(_span_context(trace.leader, None))] if trace.leader is not None else [],
            SpanKind.SERVER,
            status=_FAILED if failed else _OK,
            start_time=self._time_of(exchange.started_at),
            end_time=self._time_of(ended_at),
            instrumentation_scope=self._scope,
        )

    def _generation(self, record: GenerationRecord, trace: RecordedGeneration) -> Iterator[ReadableSpan]:
        for wait in trace.queue_waits:
            attributes: Attributes = {"error.type": wait.error_type} if wait.error_type is not None else {}
            yield self._child(trace.request, "queue", wait.started_at, wait.ended_at, attributes)
        for attempt in trace.attempts:
            yield self._attempt(record, attempt, trace)

    def _attempt(self, record: GenerationRecord, attempt: EngineAttempt, trace: RecordedGeneration) -> ReadableSpan:
        request = trace.request
        attributes = attempt_attributes(attempt, request.endpoint)
        events = []
        if attempt.connect_seconds is not None:
            connected = Event("connected", timestamp=self._time_of(attempt.started_at + attempt.connect_seconds))
            events.append(connected)
        if record.first_token_at is not None and attempt is _responding(trace.attempts, record.first_token_at):
            events.append(Event(_STARTED, timestamp=self._time_of(record.first_token_at)))
        if record.not_stored_reason is not None and attempt is trace.attempts[-1]:
            attributes["roundhouse.cache.not_stored"] = str(record.not_stored_reason.value)
        if attempt.continued_tokens is not None:
            continued: Attributes = {"roundhouse.continued.tokens": attempt.continued_tokens}
            events.append(Event("continued", continued, timestamp=self._time_of(attempt.started_at)))
        ended_at = attempt.ended_at
        return ReadableSpan(
            f"{request.endpoint.operation} {attempt.model}",
            _span_context(request.context._replace(span_id=attempt.span_id), None),
            _span_context(request.context, None),
            self._resource,
            attributes,
            events,
            (),
            SpanKind.CLIENT,
            status=_OK if attempt.error_type is None else _FAILED,
            start_time=self._time_of(attempt.started_at),
            end_time=self._time_of(attempt.started_at if ended_at is None else ended_at),
            instrumentation_scope=self._scope,
        )

    def _child(
        self, request: RecordedTrace, name: str, started_at: float, ended_at: float, attributes: Attributes
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            _span_context(request.context._replace(span_id=new_span_id()), None),
            _span_context(request.context, None),
            self._resource,
            attributes,
            kind=SpanKind.INTERNAL,
            start_time=self._time_of(started_at),
            end_time=self._time_of(ended_at),
            instrumentation_scope=self._scope,
        )

    def _time_of(self, instant: float) -> int:
        """Nanoseconds since the epoch."""
        return int(instant * 1e9) + self._offset


def _responding(attempts: Sequence[EngineAttempt], first_token_at: float) -> EngineAttempt:
    """The attempt that had the first token: the earlier ones failed without one, the later ones continue its stream."""
    return next((each for each in reversed(attempts) if each.started_at <= first_token_at), attempts[-1])


def _span_context(context: TraceContext, state: TraceState | None, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, is_remote, _FLAGS, state)
