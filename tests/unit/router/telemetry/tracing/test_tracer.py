"""Which requests are traced, and who closes a tracer."""

import pytest

from router.core.endpoints.chat import CHAT
from router.core.trace_context import parse_traceparent
from router.flow.exchange import Exchange
from router.flow.trace.recorded_trace import RecordedTrace
from router.flow.trace.request_trace import UNTRACED
from router.flow.trace.trace_events import EndedRequest
from router.settings import TracingSettings
from router.telemetry.tracing.tracer import Tracer


class Items(list[object]):
    """A sink that keeps what it gets."""

    closed = 0

    def put(self, item: object) -> None:
        self.append(item)

    def close(self) -> None:
        self.closed += 1


def started(tracer: Tracer, traceparent: str | None = None) -> Exchange:
    trace_id = None if traceparent is None else traceparent[3:35]
    exchange = Exchange(endpoint=CHAT, request_id="r", started_at=0.0, traceparent=traceparent, trace_id=trace_id)
    tracer.start(exchange)
    return exchange


TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT = f"00-{TRACE}-b7ad6b7169203331"


@pytest.mark.parametrize("sample", [0.0, 1.0])
@pytest.mark.parametrize("sampled", [False, True])
def test_the_decision_of_the_client_counts_whatever_the_sample_is(sample: float, sampled: bool) -> None:
    exchange = started(Tracer(Items(), TracingSettings(sample=sample)), f"{CLIENT}-{sampled:02}")
    assert exchange.trace_id == TRACE
    assert (exchange.trace is not UNTRACED) is sampled
    if isinstance(exchange.trace, RecordedTrace):
        assert exchange.trace.parent_span_id == 0xB7AD6B7169203331
        assert exchange.trace.context.trace_id == int(TRACE, 16)


def test_a_new_trace_has_an_id_of_32_digits_and_no_parent() -> None:
    exchange = started(Tracer(Items(), TracingSettings()))
    assert isinstance(exchange.trace, RecordedTrace)
    assert exchange.trace.parent_span_id == 0
    assert exchange.trace_id == f"{exchange.trace.context.trace_id:032x}"


def test_a_request_outside_the_sample_has_no_trace_and_its_engine_learns_that() -> None:
    tracer = Tracer(Items(), TracingSettings(sample=0.5), random=iter([0.4, 0.5]).__next__)
    assert started(tracer).trace is not UNTRACED
    exchange = started(tracer)
    assert exchange.trace is UNTRACED
    assert exchange.trace_id is None
    assert exchange.traceparent is not None
    assert not parse_traceparent(exchange.traceparent).sampled


def test_only_a_traced_request_is_submitted() -> None:
    items = Items()
    tracer = Tracer(items, TracingSettings(sample=0))
    untraced = started(tracer)
    untraced.trace.finish(untraced, 1.0)
    assert items == []
    exchange = started(tracer, f"{CLIENT}-01")
    exchange.trace.finish(exchange, 1.0)
    (item,) = items
    assert isinstance(item, EndedRequest)
    assert (item.exchange, item.ended_at) == (exchange, 1.0)


def test_the_last_of_its_users_closes_a_tracer() -> None:
    items = Items()
    tracer = Tracer(items, TracingSettings())
    assert tracer.share() is tracer
    tracer.release()
    assert items.closed == 0
    tracer.release()
    assert items.closed == 1
