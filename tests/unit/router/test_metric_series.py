"""Batched counting equals counting one by one, and nothing is lost."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from router.core.endpoints.chat import CHAT
from router.core.types import CacheStatus
from router.flow.exchange import Exchange, GenerationRecord
from router.metric_series import BatchHistogram
from router.telemetry import Telemetry
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


def work() -> GenerationRecord:
    done = GenerationRecord(
        request_id="r",
        traceparent=None,
        tenant="acme",
        model="m",
        task="chat",
        stream=True,
        started_at=time.perf_counter(),
    )
    done.first_token_at, done.prompt_tokens, done.completion_tokens = done.started_at, 3, 5
    return done


async def test_a_page_shows_all_generations_and_writes_that_ended_before_it() -> None:
    telemetry = Telemetry(log_format="text")
    for number in range(1, 4):
        telemetry.record_generation(work())
        telemetry.record_write("stored")
        counts = counted(telemetry)
        assert counts["llm_cache_writes_total"] == counts["llm_tokens_per_second_count"] == number
        samples = {"prompt": 3 * number, "completion": 5 * number}
        for kind, tokens in samples.items():
            labels = {"tenant": "acme", "model": "m", "kind": kind}
            assert telemetry.registry.get_sample_value("llm_tokens_total", labels) == tokens
