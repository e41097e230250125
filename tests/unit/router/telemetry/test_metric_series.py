"""Batched counting equals counting one by one, and nothing is lost."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from router.core.endpoints.chat import CHAT
from router.core.resilience.breaker import BreakerState
from router.core.types import CacheStatus
from router.flow.exchange import AttemptFacts, Exchange, GenerationRecord
from router.shared.engines.announcements import AnnouncedEngine
from router.telemetry.announced_metrics import announced_families
from router.telemetry.batch_histogram import BatchHistogram
from router.telemetry.telemetry import Telemetry
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from tests.support.inflight_factory import generation_record
from tests.support.waiting import eventually

BUCKETS = (0.25, 0.5, 1, 8)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 1.0, 7.0, 9.0]) | st.floats(0, 16))))
def test_batched_values_give_the_same_buckets_as_single_ones(batches: list[list[float]]) -> None:
    batched = BatchHistogram("b", "", buckets=BUCKETS, registry=CollectorRegistry())
    single = Histogram("b", "", buckets=BUCKETS, registry=CollectorRegistry())
    for values in batches:
        for value in values:
            single.observe(value)
        batched.observe_many(values)
    grouped, expected = [
        {(s.name, s.labels.get("le")): s.value for family in one.collect() for s in family.samples}
        for one in (batched, single)
    ]
    assert grouped.pop(("b_sum", None)) == pytest.approx(expected.pop(("b_sum", None)))
    grouped.pop(("b_created", None), None), expected.pop(("b_created", None), None)
    assert grouped == expected


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.25, 0.3, 1.0, 9.0]), st.integers(1, 5))))
def test_a_weighted_value_counts_as_often_as_its_weight_says(values: list[tuple[float, int]]) -> None:
    weighted = BatchHistogram("b", "", buckets=BUCKETS, registry=CollectorRegistry())
    single = BatchHistogram("b", "", buckets=BUCKETS, registry=CollectorRegistry())
    weighted.observe_weighted(values)
    single.observe_many([value for value, weight in values for _ in range(weight)])
    found, expected = [
        {(s.name, s.labels.get("le")): s.value for family in one.collect() for s in family.samples}
        for one in (weighted, single)
    ]
    for name in [("b_bucket", "0.25"), ("b_bucket", "0.5"), ("b_bucket", "8.0"), ("b_count", None)]:
        assert found[name] == expected[name]
    assert found["b_sum", None] == pytest.approx(expected["b_sum", None])


def hit(number: int) -> Exchange:
    exchange = Exchange(endpoint=CHAT, request_id=f"r{number}", started_at=0.0)
    exchange.model, exchange.engine, exchange.task = "m", "e", "chat"
    exchange.cache_status, exchange.status, exchange.completion_tokens = CacheStatus.HIT, 200, 7
    return exchange


def counted(telemetry: Telemetry) -> dict[str, float]:
    page = text_string_to_metric_families(telemetry.render().decode())
    return {sample.name: sample.value for family in page for sample in family.samples if "le" not in sample.labels}


async def test_a_page_shows_everything_that_was_counted_before_it() -> None:
    telemetry = Telemetry(log_format="text")
    for number in range(3):
        telemetry.record(hit(number), 0.5)
        counts = counted(telemetry)
        assert counts["llm_requests_total"] == counts["llm_cache_requests_total"] == number + 1
        for name in ("llm_request_duration_seconds", "llm_time_to_first_token_seconds", "llm_router_overhead_seconds"):
            assert (counts[f"{name}_count"], counts[f"{name}_sum"]) == (number + 1, (number + 1) / 2)
        assert counts["llm_tokens_total"] == 7 * (number + 1)


def exported_value(telemetry: Telemetry) -> float | None:
    """The exported value, which other workers can read."""
    labels = {"tenant": "default", "model": "m", "engine": "e", "task": "chat", "status": "200"}
    return telemetry.registry.get_sample_value("llm_requests_total", labels)


async def test_counted_values_are_flushed_soon_without_a_scrape() -> None:
    telemetry = Telemetry(log_format="text")
    for wanted in (1, 2):
        telemetry.record(hit(wanted), 0.5)

        async def known(wanted: int = wanted) -> bool:
            return exported_value(telemetry) == wanted

        await eventually(known)


async def test_at_the_end_everything_is_flushed_and_later_values_at_once() -> None:
    telemetry = Telemetry(log_format="text")
    telemetry.record(hit(1), 0.5)
    telemetry.close()
    assert exported_value(telemetry) == 1
    telemetry.record(hit(2), 0.5)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert exported_value(telemetry) == 2


def work(*, stream: bool = True, choices: int = 1) -> GenerationRecord:
    done = generation_record("acme", model="m", stream=stream, choices=choices)
    done.first_token_at, done.prompt_tokens, done.completion_tokens = time.perf_counter(), 3, 5
    return done


async def test_a_page_shows_all_generations_and_writes_that_ended_before_it() -> None:
    telemetry = Telemetry(log_format="text")
    for number in range(1, 4):
        telemetry.record_generation(work(), time.perf_counter())
        telemetry.record_write("stored")
        counts = counted(telemetry)
        assert counts["llm_cache_writes_total"] == counts["llm_tokens_per_second_count"] == number
        samples = {"prompt": 3 * number, "completion": 5 * number}
        for kind, tokens in samples.items():
            labels = {"tenant": "acme", "model": "m", "kind": kind}
            assert telemetry.registry.get_sample_value("llm_tokens_total", labels) == tokens


def sample(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    telemetry.flush()
    return telemetry.registry.get_sample_value(name, labels)


async def test_the_latency_between_tokens_is_the_mean_of_a_stream_once_for_each_token() -> None:
    telemetry = Telemetry(log_format="text")
    now = time.perf_counter()
    for seconds, tokens, choices in ((4.0, 5, 1), (6.0, 8, 2)):  # a second each; in steps of two seconds
        done = work(choices=choices)
        done.first_token_at, done.completion_tokens = now - seconds, tokens
        telemetry.record_generation(done, now)
    json_answer = work(stream=False)
    one_token = work()
    one_token.completion_tokens = 1
    for done in (json_answer, one_token):
        telemetry.record_generation(done, time.perf_counter())
    name = "llm_inter_token_latency_seconds"
    assert sample(telemetry, f"{name}_count", model="m") == 4 + 6
    assert sample(telemetry, f"{name}_sum", model="m") == pytest.approx(4 * 1.0 + 6 * 2.0, rel=0.01)
    assert sample(telemetry, f"{name}_bucket", model="m", le="0.5") == 0


async def test_gpu_seconds_count_from_sending_to_the_engine_that_answered() -> None:
    telemetry = Telemetry(log_format="text")
    spent = {"tenant": "acme", "model": "m", "kind": "spent"}
    refused = work()
    refused.first_token_at, refused.attempts = None, [AttemptFacts(engine="e", sent_at=time.perf_counter() - 100)]
    telemetry.record_generation(refused, time.perf_counter())
    assert sample(telemetry, "llm_gpu_seconds_total", **spent) is None, "an engine that refuses does not work"
    done, lost = work(), work()
    now = time.perf_counter()
    done.attempts = [
        AttemptFacts(engine="e", sent_at=now - 100, error_reason="timeout"),
        AttemptFacts(engine="e", sent_at=now - 3),
    ]
    lost.first_token_at, lost.attempts = None, [AttemptFacts(engine="e", sent_at=now - 5)]
    lost.error_reason = "lost"  # all clients left
    for one in (done, lost):
        telemetry.record_generation(one, now)
    assert sample(telemetry, "llm_gpu_seconds_total", **spent) == pytest.approx(3 + 5)
    assert sample(telemetry, "llm_energy_joules_total", **spent) is None, "the power is unknown"


async def test_the_energy_of_a_generation_counts_where_the_power_of_its_engine_is_known() -> None:
    telemetry, engine = (
        Telemetry(log_format="text"),
        Engine(EngineConfig(name="e", model="m", task="any", url="", served_model="m")),
    )
    engine.set_announced(
        AnnouncedEngine(name="e", model="m", task="any", url="", served_model="m", power_watts=500.0)
    )  # fmt: skip
    telemetry.update_gauges([engine], lambda _: BreakerState.CLOSED, redis_up=True)
    telemetry.record(saved(2000), 0.5)
    labels = {"model": "m", "tenant": "default", "kind": "saved"}
    assert sample(telemetry, "llm_gpu_seconds_total", **labels) == 2
    assert sample(telemetry, "llm_energy_joules_total", **labels) is None, "no generation was measured yet"
    engine.start_request()
    engine.start_request()
    now, done = time.perf_counter(), work()
    done.attempts = [AttemptFacts(engine="e", sent_at=now, energy=engine.energy.start(now))]
    telemetry.record_generation(done, time.perf_counter())
    seconds = sample(telemetry, "llm_gpu_seconds_total", tenant="acme", model="m", kind="spent")
    joules = sample(telemetry, "llm_energy_joules_total", tenant="acme", model="m", kind="spent")
    assert seconds is not None
    assert joules == pytest.approx(250 * seconds), "two requests share the power"
    telemetry.record(saved(2000), 0.5)
    assert sample(telemetry, "llm_energy_joules_total", **labels) == pytest.approx(2 * 250)


def test_a_launcher_cannot_make_series_with_the_reasons_that_it_reports() -> None:
    restarts = {"stalled": 2} | {f"reason {number}": 1 for number in range(50)}
    engine = AnnouncedEngine(name="e", model="m", task="any", url="", served_model="m", restarts=restarts)
    family = next(each for each in announced_families([engine]) if each.name == "roundhouse_watchdog_restarts")
    assert {one.labels["reason"]: one.value for one in family.samples} == {"stalled": 2, "other": 50}


def saved(milliseconds: int) -> Exchange:
    exchange = hit(1)
    exchange.generation_ms = milliseconds
    return exchange


@pytest.mark.parametrize("status", list(CacheStatus))
async def test_what_was_not_generated_for_the_request_is_saved(status: CacheStatus) -> None:
    telemetry, exchange = Telemetry(log_format="text"), saved(1500)
    exchange.cache_status = status
    telemetry.record(exchange, 0.5)
    expected = 1.5 if status in (CacheStatus.HIT, CacheStatus.STALE, CacheStatus.COALESCED) else None
    assert sample(telemetry, "llm_gpu_seconds_total", tenant="default", model="m", kind="saved") == expected


# -- exemplars --------------------------------------------------------------------------------------------------------


def traced(seconds: float, number: int) -> tuple[Exchange, float]:
    exchange = hit(number)
    exchange.trace_id = f"{number:032x}"
    return exchange, seconds


def exemplars(telemetry: Telemetry, name: str) -> dict[str, tuple[dict[str, str], float]]:
    page = telemetry.render(as_openmetrics=True).decode()
    return {
        sample.labels["le"]: (sample.exemplar.labels, sample.exemplar.value)
        for family in parse_openmetrics(page)  # type: ignore[no-untyped-call]  # it has no types
        for sample in family.samples
        if family.name == name and sample.exemplar is not None
    }


async def test_each_bucket_has_the_trace_of_its_latest_request() -> None:
    telemetry = Telemetry(log_format="text")
    for seconds, number in ((0.003, 1), (0.004, 2), (0.005, 3), (0.2, 4), (1000.0, 5)):
        telemetry.record(*traced(seconds, number))
    expected = {
        "0.005": ({"trace_id": f"{3:032x}"}, 0.005), "0.25": ({"trace_id": f"{4:032x}"}, 0.2),
        "+Inf": ({"trace_id": f"{5:032x}"}, 1000.0),
    }  # fmt: skip
    assert exemplars(telemetry, "llm_request_duration_seconds") == expected
    assert exemplars(telemetry, "llm_time_to_first_token_seconds") == expected
    telemetry.record(*traced(0.21, 6))
    assert exemplars(telemetry, "llm_request_duration_seconds") == {
        **expected, "0.25": ({"trace_id": f"{6:032x}"}, 0.21)
    }  # fmt: skip


async def test_without_traces_and_in_the_text_format_there_are_no_exemplars() -> None:
    telemetry = Telemetry(log_format="text")
    telemetry.record(hit(1), 0.5)
    assert exemplars(telemetry, "llm_request_duration_seconds") == {}
    telemetry.record(*traced(0.5, 2))
    assert b"trace_id" not in telemetry.render()


async def test_a_request_without_a_first_token_has_an_exemplar_of_its_duration_only() -> None:
    telemetry = Telemetry(log_format="text")
    exchange, seconds = traced(0.5, 1)
    exchange.cache_status, exchange.status, exchange.outcome = CacheStatus.MISS, 502, "refused"
    telemetry.record(exchange, seconds)
    assert len(exemplars(telemetry, "llm_request_duration_seconds")) == 1
    assert exemplars(telemetry, "llm_time_to_first_token_seconds") == {}
