"""The traffic is counted out of the real metrics."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from router.shared.status.traffic import MAX_REFUSED
from router.telemetry.metric_objects import create_objects
from router.telemetry.telemetry import Telemetry
from router.telemetry.traffic_counter import TrafficCounter


async def test_each_count_comes_from_its_metric_once() -> None:
    telemetry = Telemetry(log_format="text")
    telemetry._rejected.labels("no_engine", "t").inc()
    counter = TrafficCounter(telemetry.registry, telemetry.flush)  # what was there before does not count
    assert counter.take() == {}
    for status in ("200", "404", "499", "500", "503", "broken"):
        telemetry._requests.labels("t", "m", "e", "chat", status).inc()
    for number, result in enumerate(("hit", "miss", "coalesced", "stale", "bypass"), 1):
        telemetry._cache.labels("t", "m", result).inc(number)
    for number, kind in enumerate(("prompt", "completion", "saved"), 6):
        telemetry._tokens.labels("t", "m", kind).inc(number)
    telemetry.record_rejection("queue_full")
    expected = {
        "requests": 6, "errors": 3, "hits": 1, "misses": 2, "coalesced": 3, "stale": 4, "bypass": 5, "prompt_tokens": 6,
        "completion_tokens": 7, "saved_tokens": 8, "rejected": 1, "rejected/queue_full/none": 1,
    }  # fmt: skip
    assert counter.take() == expected
    assert counter.take() == {}


async def test_rejected_requests_are_told_apart_by_reason_and_tenant_up_to_a_bound() -> None:
    telemetry = Telemetry(log_format="text")
    counter = TrafficCounter(telemetry.registry, telemetry.flush)
    for number in range(MAX_REFUSED + 9):
        telemetry._rejected.labels("requests_limit", f"t{number}").inc(number + 1)
    taken = counter.take()
    assert taken["rejected"] == sum(range(MAX_REFUSED + 10))
    assert (len(taken), min(taken.values())) == (MAX_REFUSED + 1, 10)
    assert taken["rejected/requests_limit/t58"] == 59


async def test_first_tokens_are_counted_by_cache_result_and_bucket() -> None:
    telemetry = Telemetry(log_format="text")
    counter = TrafficCounter(telemetry.registry, telemetry.flush)
    for model in ("m", "n"):
        for seconds in (0.0002, 0.2, 1000.0):
            telemetry._first_token.labels(model, "HIT").observe(seconds)
        telemetry._first_token.labels(model, "MISS").observe(0.2)
    assert counter.take() == {
        "ttft/HIT/0/0.001": 2, "ttft/HIT/0.1/0.25": 2, "ttft/HIT/300.0/+Inf": 2, "ttft/MISS/0.1/0.25": 2,
    }  # fmt: skip


def test_seconds_are_counted_in_milliseconds() -> None:
    registry = CollectorRegistry()
    seconds = create_objects(registry).counters["llm_gpu_seconds_total"]
    counter = TrafficCounter(registry, lambda: None)
    seconds.labels("t", "m", "spent").inc(0.5004)
    seconds.labels("t", "m", "saved").inc(2)
    assert counter.take() == {"gpu_seconds_spent": 500, "gpu_seconds_saved": 2000}
    seconds.labels("t", "m", "spent").inc(0.0002)
    assert counter.take() == {"gpu_seconds_spent": 1}, "what was rounded off is not lost"


async def test_many_tenants_cost_little() -> None:
    telemetry = Telemetry(log_format="text")
    for tenant in range(500):
        for model in range(5):
            telemetry._requests.labels(str(tenant), str(model), "e", "chat", "200").inc()
            telemetry._cache.labels(str(tenant), str(model), "hit").inc()
    counter = TrafficCounter(telemetry.registry, telemetry.flush)

    def seconds_of(work: Callable[[], object]) -> float:
        started = time.thread_time()
        work()
        return time.thread_time() - started

    samples = telemetry.registry.restricted_registry(["llm_requests_total", "llm_cache_requests_total"])
    render = min(seconds_of(lambda: list(samples.collect())) for _ in range(10))
    assert min(seconds_of(counter.take) for _ in range(10)) < render / 3
