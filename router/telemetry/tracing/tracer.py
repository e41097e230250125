"""Decides which requests are traced, and passes what has ended on to be exported.

OpenTelemetry is imported only when a Tracer is opened: see router.telemetry.tracing.otlp.
"""

import random
from collections.abc import Callable
from typing import Protocol

from router.core.trace_context import TraceContext, format_traceparent, parse_traceparent
from router.flow.exchange import Exchange
from router.flow.trace.recorded_trace import RecordedTrace
from router.flow.trace.trace_events import new_span_id, new_trace_id
from router.settings import TracingSettings


class Sink(Protocol):
    """Where facts of what has ended go. `put` never waits; `close` waits for the export, within a bound."""

    def put(self, item: object) -> None: ...

    def close(self) -> None: ...


class Tracer:
    """Traces the requests of one configuration of tracing; runtimes with the same one share it.

    - A client's decision counts: a request is traced if its `traceparent` has the sampled flag, and only then. Of the
      requests without one, `sample` is the share that is traced.
    - An engine learns the decision, so that one that exports spans too, such as vLLM, does not begin traces of its own.
    - It is closed when the last of its users has called `release`, which may then wait for a few seconds.
    """

    def __init__(self, sink: Sink, settings: TracingSettings, random: Callable[[], float] = random.random) -> None:
        """`random` returns numbers from 0 up to 1."""
        self.settings = settings
        # The same for all requests that are not traced, since nothing records it.
        self._not_sampled = format_traceparent(TraceContext(new_trace_id(), new_span_id(), False))
        self._sink = sink
        self._random = random
        self._users = 1

    def share(self) -> "Tracer":
        """The same tracer, for a further user."""
        self._users += 1
        return self

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self._sink.close()

    def start(self, exchange: Exchange) -> None:
        if exchange.traceparent is not None:
            trace_id, parent_span_id, sampled = parse_traceparent(exchange.traceparent)
        elif self._random() < self.settings.sample:
            trace_id, parent_span_id, sampled = new_trace_id(), 0, True
        else:
            exchange.traceparent = self._not_sampled
            return
        if sampled:
            context = TraceContext(trace_id, new_span_id(), sampled)
            exchange.trace = RecordedTrace(exchange.endpoint, context, parent_span_id, self._sink.put)
            exchange.trace_id = f"{trace_id:032x}"
