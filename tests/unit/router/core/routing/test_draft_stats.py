"""What is learned about drafts from generations and counters; time is a number here."""

import pytest

from router.core.endpoints.endpoint import InferenceRequest
from router.core.routing.draft_stats import (
    HALF_LIFE,
    MIN_GENERATIONS,
    DraftStats,
    SpeculationCounters,
    unsupported_fields,
)
from router.core.types import Task
from tests.support.factories import chat, completion, embeddings, messages, responses

BOTH = ("a", "b")


def generate(seen: DraftStats, family: str, task: Task, speed: float, *, times: int = 20, now: float = 0.0) -> None:
    for _ in range(times):
        seen.record_generation(family, family, task, tokens=60, seconds=60 / speed, now=now)


def test_a_speed_is_known_after_enough_measurements() -> None:
    seen = DraftStats()
    generate(seen, "a", "code", 50, times=int(MIN_GENERATIONS) - 1)
    assert seen.performance("a", "code", 0).tokens_per_second is None
    generate(seen, "a", "code", 50, times=1)
    assert seen.performance("a", "code", 0).tokens_per_second == pytest.approx(50)
    assert seen.performance("a", "chat", 0).tokens_per_second is None


def test_a_family_is_slow_at_a_task_where_another_is_clearly_faster() -> None:
    seen = DraftStats()
    generate(seen, "a", "code", 100)
    assert seen.slow_families(BOTH, "code", 0) == frozenset()
    generate(seen, "b", "code", 50)
    generate(seen, "b", "chat", 100)
    generate(seen, "a", "chat", 90)
    assert seen.slow_families(BOTH, "code", 0) == {"b"}
    assert seen.slow_families(BOTH, "chat", 0) == frozenset()


def test_speeds_that_vary_much_are_not_clearly_different_until_there_are_many() -> None:
    seen = DraftStats()

    def vary(times: int) -> None:
        for number in range(times):
            for family, middle in (("a", 100.0), ("b", 75.0)):
                generate(seen, family, "code", middle * (4 if number % 2 else 0.25), times=1)

    vary(14)
    assert seen.slow_families(BOTH, "code", 0) == frozenset()
    vary(286)
    assert seen.slow_families(BOTH, "code", 0) == {"b"}


def test_a_few_generations_that_stalled_do_not_make_an_engine_slow() -> None:
    seen = DraftStats()
    generate(seen, "a", "code", 100, times=37)
    generate(seen, "a", "code", 1, times=3)
    generate(seen, "b", "code", 100, times=40)
    assert seen.slow_families(BOTH, "code", 0) == frozenset()


def test_measurements_decay_until_nothing_is_known() -> None:
    seen = DraftStats()
    generate(seen, "a", "code", 100)
    generate(seen, "b", "code", 50)
    assert seen.slow_families(BOTH, "code", HALF_LIFE / 2) == {"b"}
    assert seen.slow_families(BOTH, "code", HALF_LIFE * 2) == frozenset()


def test_a_draft_that_was_replaced_by_a_better_one_shows_soon() -> None:
    seen = DraftStats()
    generate(seen, "a", "code", 10, times=100)
    generate(seen, "a", "code", 100, times=100, now=5 * HALF_LIFE)
    assert (seen.performance("a", "code", 5 * HALF_LIFE).tokens_per_second or 0) > 70


def test_replicas_learn_together() -> None:
    seen = DraftStats()
    for replica in ("a.1", "a.2"):
        for _ in range(10):
            seen.record_generation(replica, "a", "code", tokens=60, seconds=1, now=0)
    assert seen.performance("a", "code", 0).tokens_per_second == pytest.approx(60)


def test_a_response_of_a_few_tokens_does_not_measure_the_speed() -> None:
    seen = DraftStats()
    for _ in range(50):
        seen.record_generation("a", "a", "code", tokens=3, seconds=0.001, now=0)
        seen.record_generation("a", "a", "code", tokens=30, seconds=0, now=0)
    assert seen.performance("a", "code", 0).tokens_per_second is None


def test_the_least_known_engine_is_explored_once_another_is_known() -> None:
    seen = DraftStats()
    generate(seen, "a", "code", 100, times=3)
    assert seen.least_measured(BOTH, "code", 0) is None
    generate(seen, "a", "code", 100)
    assert seen.least_measured(BOTH, "code", 0) == "b"
    assert seen.least_measured(BOTH, "chat", 0) is None
    assert seen.least_measured(["a"], "code", 0) is None
    generate(seen, "b", "code", 100, times=40)
    assert seen.least_measured(BOTH, "code", 0) == "a"


def count(seen: DraftStats, engine: str, *pairs: tuple[float, float], task: Task | None = None) -> None:
    """Readings of an engine's counters in sequence; the same number of tokens ends between any two."""
    before = 0.0
    for steps, accepted in pairs:
        if task is not None and steps + accepted > before:
            tokens = int(steps + accepted - before)
            seen.record_generation(engine, engine, task, tokens=tokens, seconds=tokens / 100, now=0)
        before = steps + accepted
        seen.record_counters(engine, engine, SpeculationCounters(steps, accepted), 0)


def test_the_tokens_of_a_step_are_those_between_two_probes() -> None:
    seen = DraftStats()
    count(seen, "a", (1000, 0), (1200, 500))
    assert seen.performance("a", "code", 0).tokens_per_step == pytest.approx(3.5)


def test_counters_are_attributed_to_the_task_of_the_generations_that_ended_between_two_probes() -> None:
    seen = DraftStats()
    count(seen, "a", (0, 0), (200, 600), task="code")
    seen.record_generation("a", "a", "chat", tokens=400, seconds=1, now=0)
    seen.record_counters("a", "a", SpeculationCounters(600, 640), 0)
    assert seen.performance("a", "code", 0).tokens_per_step == pytest.approx(4)
    assert seen.performance("a", "chat", 0).tokens_per_step == pytest.approx(1.1)


def test_counters_of_mixed_tasks_do_not_distinguish_tasks() -> None:
    seen = DraftStats()
    seen.record_counters("a", "a", SpeculationCounters(0, 0), 0)
    for task in ("code", "chat"):
        seen.record_generation("a", "a", task, tokens=300, seconds=1, now=0)
    seen.record_counters("a", "a", SpeculationCounters(200, 400), 0)
    assert seen.performance("a", "code", 0).tokens_per_step == seen.performance("a", "chat", 0).tokens_per_step == 3


def test_counters_of_other_clients_are_attributed_to_no_task() -> None:
    seen = DraftStats()
    count(seen, "a", (0, 0), (200, 600), task="code")
    seen.record_generation("a", "a", "code", tokens=10, seconds=1, now=0)
    seen.record_counters("a", "a", SpeculationCounters(10_200, 600), 0)
    assert seen.performance("a", "code", 0).tokens_per_step == pytest.approx(4)


def test_an_engine_that_restarts_counts_from_zero() -> None:
    seen = DraftStats()
    count(seen, "a", (5000, 5000), (300, 300))
    assert seen.performance("a", "code", 0).tokens_per_step == 2


def test_with_few_steps_nothing_is_known() -> None:
    seen = DraftStats()
    count(seen, "a", (0, 0), (50, 0))
    assert seen.performance("a", "code", 0).tokens_per_step is None
    assert seen.pays("a", BOTH, "code", 0, None) is None


def test_a_draft_with_accepted_tokens_pays_until_another_engine_is_clearly_faster() -> None:
    seen = DraftStats()
    count(seen, "a", (0, 0), (500, 1500), task="code")
    generate(seen, "a", "code", 100)
    assert seen.pays("a", BOTH, "code", 0, None) is True
    generate(seen, "b", "code", 130)
    assert seen.pays("a", BOTH, "code", 0, True) is False
    assert seen.pays("b", BOTH, "code", 0, True) is True


def test_a_draft_that_is_hardly_ever_right_does_not_pay_even_if_no_engine_is_faster() -> None:
    seen = DraftStats()
    count(seen, "a", (0, 0), (1000, 50), task="code")
    generate(seen, "a", "code", 100)
    assert seen.pays("a", ["a"], "code", 0, None) is False


def test_a_draft_that_stopped_paying_must_exceed_that_level_to_pay_again() -> None:
    seen = DraftStats()
    count(seen, "a", (0, 0), (1000, 200))
    assert seen.pays("a", ["a"], "code", 0, True) is True
    assert seen.pays("a", ["a"], "code", 0, False) is False


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        (chat(), ()),
        (chat(min_p=0.1), ("min_p",)),
        (chat(min_p=0.1, temperature=1), ("min_p",)),
        (chat(min_p=0.1, temperature=0), ()),
        (chat(min_p=0), ()),
        (chat(min_p=0.000001), ()),
        (chat(min_p="x"), ()),
        (chat(logit_bias={"5": 1}), ("logit_bias",)),
        (chat(logit_bias={"5": 1}, temperature=0), ("logit_bias",)),
        (chat(logit_bias={}), ()),
        (chat(logit_bias={"5": 1}, min_p=0.5), ("min_p", "logit_bias")),
        (completion(min_p=0.1), ("min_p",)),
        (responses(min_p=0.1), ("min_p",)),
        (messages(min_p=0.1), ()),
        (embeddings(logit_bias={"5": 1}), ()),
    ],
)
def test_unsupported_fields_are_those_that_vllm_refuses_with_speculation(
    request_: InferenceRequest, names: tuple[str, ...]
) -> None:
    assert unsupported_fields(request_) == names
