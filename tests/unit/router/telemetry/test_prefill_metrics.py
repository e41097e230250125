"""What is counted of the estimates that engines are chosen by."""

import time

from router.core.routing.prefix_tokens import PrefixTokens
from router.flow.exchange import NOT_PLACED, AttemptFacts, GenerationRecord, PromptPlacement
from router.telemetry.telemetry import Telemetry
from tests.support.chosen_prompt import chosen_prompt
from tests.support.inflight_factory import generation_record


def generation(placement: PromptPlacement, *, engine: str = "a", stream: bool = True) -> GenerationRecord:
    now = time.perf_counter()
    record = generation_record("acme", model="m", stream=stream)
    record.attempts, record.first_token_at, record.placement = (
        [AttemptFacts(engine=engine, sent_at=now)],
        now,
        placement,
    )
    return record


def tokens(telemetry: Telemetry, engine: str) -> dict[str, float]:
    telemetry.flush()
    name = "roundhouse_prefix_tokens_total"
    found = {
        result: telemetry.registry.get_sample_value(name, {"engine": engine, "result": result})
        for result in ("expected", "new", "found")
    }
    return {result: value for result, value in found.items() if value is not None}


async def test_tokens_are_counted_by_engine_and_found_ones_only_where_an_engine_reports_them() -> None:
    telemetry = Telemetry(log_format="text")
    for engine, held in (
        ("a", PrefixTokens(80, 20, 75)), ("a", PrefixTokens(0, 10, 0)), ("b", PrefixTokens(5, 5, None)),
    ):  # fmt: skip
        telemetry.record_generation(generation(chosen_prompt(held=held), engine=engine), time.perf_counter())
    assert tokens(telemetry, "a") == {"expected": 80, "new": 30, "found": 75}
    assert tokens(telemetry, "b") == {"expected": 5, "new": 5}
    telemetry.record_generation(generation(chosen_prompt(held=PrefixTokens(1, 2, 3))), time.perf_counter())
    assert tokens(telemetry, "a") == {"expected": 81, "new": 32, "found": 78}


async def test_the_expected_time_to_the_first_token_counts_for_streams_that_had_a_choice() -> None:
    telemetry = Telemetry(log_format="text")
    for each in (
        generation(chosen_prompt(ttft=0.25)),
        generation(chosen_prompt(ttft=1.5)),
        generation(chosen_prompt(ttft=3.0), stream=False),  # its first token is its last
        generation(NOT_PLACED),
    ):
        telemetry.record_generation(each, time.perf_counter())
    telemetry.flush()
    name = "roundhouse_expected_ttft_seconds"
    value = telemetry.registry.get_sample_value
    assert (value(f"{name}_count", {"model": "m"}), value(f"{name}_sum", {"model": "m"})) == (2, 1.75)
    assert value(f"{name}_bucket", {"model": "m", "le": "0.25"}) == 1


async def test_without_a_choice_nothing_is_counted() -> None:
    telemetry = Telemetry(log_format="text")
    telemetry.record_generation(generation(NOT_PLACED), time.perf_counter())
    telemetry.flush()
    assert b"roundhouse_prefix_tokens_total{" not in telemetry.render()
    assert b"roundhouse_expected_ttft_seconds_bucket{" not in telemetry.render()
