"""What is notified when a generation has ended."""

import time
from typing import Any

import pytest

from router.flow.attempts.continuation.run_to_end import has_survivor
from router.flow.exchange import AttemptFacts, Continuation, GenerationRecord
from router.flow.generation import record_generation
from router.flow.result import LOST
from tests.support.inflight_factory import generation_record


def test_a_generation_is_counted_and_measured_and_its_tenant_pays_for_its_tokens() -> None:
    metrics: list[tuple[GenerationRecord, float]] = []
    measured: list[GenerationRecord] = []
    spent: list[tuple[str, int, float]] = []
    reported, estimated = generation_record("acme"), generation_record("beta")
    reported.prompt_tokens, reported.completion_tokens = 3, 4
    estimated.estimated_tokens = 5
    for record in (reported, estimated):
        record_generation(lambda *facts: metrics.append(facts), measured.append, lambda *use: spent.append(use), record)
    assert spent == [("acme", 7, 0.0), ("beta", 5, 0.0)], "no engine has worked on them"
    assert [record for record, _ in metrics] == measured == [reported, estimated]


def test_its_metrics_and_its_tenant_count_the_same_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics: list[tuple[GenerationRecord, float]] = []
    spent: list[tuple[str, int, float]] = []
    record = generation_record("acme")
    record.attempt, record.first_token_at = AttemptFacts(sent_at=1.0), 1.5
    now = [10.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def slow_metrics(*facts: Any) -> None:
        metrics.append(facts)
        now[0] += 1.0

    record_generation(slow_metrics, lambda _: None, lambda *use: spent.append(use), record)
    ((_, _, paid),) = spent
    assert paid == record.gpu_seconds(metrics[0][1])


def test_milliseconds_of_a_generation_are_rounded_since_their_sum_is_a_saving() -> None:
    record = generation_record("acme")
    assert record.generation_ms(2.0) == 0  # it was not sent
    record.attempt = AttemptFacts(sent_at=1.0)
    assert [record.generation_ms(now) for now in (1.0044, 1.0047)] == [4, 5]


def test_gpu_seconds_are_those_of_the_attempt_at_the_engine_that_worked_on_it() -> None:
    record = generation_record("acme")
    assert record.gpu_seconds(2.0) == 0.0, "it was not sent"
    record.attempt = AttemptFacts(sent_at=1.0)
    assert record.gpu_seconds(2.0) == 0.0, "no token came, so the engine may have refused it"
    record.error_reason = LOST
    assert record.gpu_seconds(2.0) == 1.0, "it was cancelled while the engine worked on it"
    record.error_reason, record.first_token_at = None, 1.5
    assert record.gpu_seconds(2.25) == 1.25


@pytest.mark.parametrize(
    ("results", "survived"),
    [([], True), (["continued"], True), (["complete"], False), (["continued", "complete"], False)],
)
def test_a_response_that_lacked_only_its_end_is_no_sign_that_its_engine_lived(
    results: list[str], survived: bool
) -> None:
    record = generation_record("acme")
    record.continuations += [Continuation("reset", result) for result in results]
    assert has_survivor(record) is survived
