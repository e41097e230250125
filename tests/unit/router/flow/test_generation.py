"""What is notified when a generation has ended."""

import time
from typing import Any

import pytest

from router.flow.exchange import AttemptFacts, GenerationRecord
from router.flow.generation import record_generation
from router.flow.result import LOST
from router.net.client.errors import EngineError
from tests.support.inflight_factory import generation_record, in_flight_request


async def test_a_generation_is_counted_and_measured_and_its_tenant_pays_for_its_tokens() -> None:
    metrics: list[tuple[GenerationRecord, float]] = []
    measured: list[GenerationRecord] = []
    spent: list[tuple[str, int, float]] = []
    reported, estimated = generation_record("acme"), generation_record("beta")
    reported.prompt_tokens, reported.completion_tokens = 3, 4
    estimated.estimated_tokens = 5
    for record in (reported, estimated):
        ended = in_flight_request(record=record)
        record_generation(lambda *facts: metrics.append(facts), measured.append, lambda *use: spent.append(use), ended)
    assert spent == [("acme", 7, 0.0), ("beta", 5, 0.0)], "no engine has worked on them"
    assert [record for record, _ in metrics] == measured == [reported, estimated]


async def test_its_metrics_and_its_tenant_count_the_same_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics: list[tuple[GenerationRecord, float]] = []
    spent: list[tuple[str, int, float]] = []
    record = generation_record("acme")
    record.attempts, record.first_token_at = [AttemptFacts(engine="a", sent_at=1.0)], 1.5
    now = [10.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def slow_metrics(*facts: Any) -> None:
        metrics.append(facts)
        now[0] += 1.0

    ended = in_flight_request(record=record)
    record_generation(slow_metrics, lambda _: None, lambda *use: spent.append(use), ended)
    ((_, _, paid),) = spent
    assert paid == record.gpu_seconds(metrics[0][1])


def test_milliseconds_of_a_generation_are_rounded_since_their_sum_is_a_saving() -> None:
    record = generation_record("acme")
    assert record.generation_ms(2.0) == 0  # it was not sent
    record.attempts = [AttemptFacts(engine="a", sent_at=1.0)]
    assert [record.generation_ms(now) for now in (1.0044, 1.0047)] == [4, 5]


def test_gpu_seconds_are_those_of_the_attempt_at_the_engine_that_worked_on_it() -> None:
    record = generation_record("acme")
    assert record.gpu_seconds(2.0) == 0.0, "it was not sent"
    record.attempts = [AttemptFacts(engine="a", sent_at=1.0)]
    assert record.gpu_seconds(2.0) == 0.0, "no token came, so the engine may have refused it"
    record.error_reason = LOST
    assert record.gpu_seconds(2.0) == 1.0, "it was cancelled while the engine worked on it"
    record.error_reason, record.first_token_at = None, 1.5
    assert record.gpu_seconds(2.25) == 1.25


def test_what_an_engine_said_before_it_broke_off_counts_as_its_seconds_and_the_response_is_from_the_last_one() -> None:
    record = generation_record("acme")
    first, second, third = record.attempts = [
        AttemptFacts(engine=name, sent_at=sent_at) for name, sent_at in (("a", 1.0), ("b", 2.0), ("c", 8.0))
    ]
    first.failed_before_token(EngineError("reset", "it fails"), 2.0)
    second.failed_after_token(EngineError("lost", "it fails"), 5.0)
    record.first_token_at = 3.0
    assert record.gpu_seconds(10.0) == 3.0 + 2.0
    assert record.engine == "c"
    third.failed_before_token(EngineError("timeout", "it fails"), 6.0)
    assert record.gpu_seconds(10.0) == 3.0
    assert record.engine == "b", "the client has only what that one said"


def test_a_generation_is_at_no_engine_if_the_last_one_was_not_reached() -> None:
    record = generation_record("acme")
    record.attempts = [AttemptFacts(engine="a", sent_at=1.0)]
    assert record.engine == "a"
    record.attempts[0].failed_before_token(EngineError("local", "it fails"), 1.0)
    assert record.engine is None
