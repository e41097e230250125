"""The times of spans: instants of a monotonic clock become times of day."""

import time
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource

from router.core.endpoints.chat import CHAT
from router.flow.exchange import Exchange
from router.flow.trace.recorded_trace import RecordedTrace
from router.flow.trace.trace_events import CacheWrite
from router.settings import TracingSettings
from router.telemetry.tracing.spans import SpanMaker
from router.telemetry.tracing.tracer import Tracer


class _Sink:
    def put(self, item: object) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("nanoseconds", "counts"), [(-400, False), (400, False), (-3_600 * 10**9, True), (10**7, True)]
)
def test_spans_of_two_batches_have_the_order_of_what_they_show_unless_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch, nanoseconds: int, counts: bool
) -> None:
    exchange = Exchange(endpoint=CHAT, request_id="r", started_at=0.0)
    Tracer(_Sink(), TracingSettings()).start(exchange)
    assert isinstance(exchange.trace, RecordedTrace)
    clock: dict[str, Any] = {"now": 10**18}
    monkeypatch.setattr(time, "time_ns", lambda: clock["now"])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 10**12)
    maker = SpanMaker(Resource({}), "1")
    (first,) = maker.make([CacheWrite(exchange.trace, 1000.0, 1001.0, "stored")])
    clock["now"] += nanoseconds
    (second,) = maker.make([CacheWrite(exchange.trace, 1001.0, 1002.0, "stored")])
    assert first.end_time is not None
    assert second.start_time is not None
    assert second.start_time - first.end_time == (nanoseconds if counts else 0)
