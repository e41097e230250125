"""What is learned about drafts from generations and counters; time is a number here."""

from typing import Any

import pytest

from router.core.endpoints.endpoint import InferenceRequest
from router.core.routing.counted_steps import SpeculationCounters
from router.core.routing.draft_stats import DraftStats, MeasuredGeneration, unsupported_fields
from router.core.routing.speeds import HALF_LIFE, MIN_GENERATIONS
from router.core.types import Task
from tests.support.factories import chat, completion, embeddings, messages, responses

BOTH = frozenset("ab")
CODE, UNSURE, CHAT = 7, 4, 0
BINS = {"code": CODE, "chat": CHAT}


def generate(
    seen: DraftStats, family: str, speed: float, *, bin_: int = CODE, times: int = 20, now: float = 0.0, **facts: Any
) -> None:
    """Generations of 60 tokens; `speed` in tokens per second."""
    given: dict[str, Any] = {"engine": family, "tokens": 60, "seconds": 60 / speed} | facts
    for _ in range(times):
        seen.record_generation(MeasuredGeneration(family=family, rivals=BOTH, bin_=bin_, **given), now)


def draft(per_step: float, tokens: int = 60) -> dict[str, Any]:
    """The facts of a generation with a draft that yields this many tokens per step."""
    steps = round(tokens / per_step)
    return {"speculation": SpeculationCounters(steps, tokens - steps), "has_draft": True}


# -- speeds -----------------------------------------------------------------------------------------------------------


def test_a_speed_is_known_after_enough_measurements() -> None:
    seen = DraftStats()
    generate(seen, "a", 50, times=int(MIN_GENERATIONS) - 1)
    assert seen.performance("a", "code", 0).tokens_per_second is None
    generate(seen, "a", 50, times=1)
    assert seen.performance("a", "code", 0).tokens_per_second == pytest.approx(50)
    assert seen.performance("a", "chat", 0).tokens_per_second is None


def test_the_tokens_per_step_are_known_in_each_bin_with_enough_evidence() -> None:
    seen = DraftStats()
    assert seen.tokens_per_step_by_bin("a", 0) == {}
    generate(seen, "a", 50, bin_=CODE, times=40, **draft(4))
    generate(seen, "a", 50, bin_=CHAT, times=40, **draft(1.5))
    by_bin = seen.tokens_per_step_by_bin("a", 0)
    assert by_bin[CODE] == pytest.approx(4, rel=0.1)
    assert by_bin[CHAT] == pytest.approx(1.5, rel=0.1)
    assert seen.tokens_per_step_by_bin("b", 0) == {}


def test_a_family_is_slow_at_a_task_where_another_is_clearly_faster() -> None:
    seen = DraftStats()
    generate(seen, "a", 100)
    assert seen.slow_families(BOTH, CODE, 0) == frozenset()
    generate(seen, "b", 50)
    generate(seen, "b", 100, bin_=CHAT)
    generate(seen, "a", 90, bin_=CHAT)
    assert seen.slow_families(BOTH, CODE, 0) == {"b"}
    assert seen.slow_families(BOTH, CHAT, 0) == frozenset()


def test_an_engine_that_is_slower_under_more_load_is_not_slow() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, level=1)
    generate(seen, "b", 50, level=4)
    assert seen.slow_families(BOTH, CODE, 0) == frozenset()
    generate(seen, "a", 50, level=4)
    assert seen.slow_families(BOTH, CODE, 0) == frozenset()
    generate(seen, "b", 40, level=1)
    assert seen.slow_families(BOTH, CODE, 0) == {"b"}


def test_a_draft_that_is_better_only_between_the_tasks_is_not_slow_there() -> None:
    seen = DraftStats()
    for bin_, per_step in ((CODE, {"a": 4, "b": 1.5}), (UNSURE, {"a": 1.5, "b": 4})):
        for family, yielded in per_step.items():
            generate(seen, family, 20 * yielded, bin_=bin_, times=30 if bin_ == CODE else 8, **draft(yielded))
    assert seen.slow_families(BOTH, CODE, 0) == {"b"}
    assert seen.slow_families(BOTH, UNSURE, 0) == {"a"}


def test_a_slower_machine_is_not_a_worse_draft() -> None:
    seen = DraftStats()
    generate(seen, "a", 30, times=30, **draft(4))
    generate(seen, "b", 60, times=30, **draft(2))
    assert seen.slow_families(BOTH, CODE, 0) == {"a"}
    ranks = seen.rank_drafts({"a": 1, "b": 1}, CODE, 0, {})
    assert ranks["a"] < ranks["b"]


def test_speeds_that_vary_much_are_not_clearly_different_until_there_are_many() -> None:
    seen = DraftStats()

    def vary(times: int) -> None:
        for number in range(times):
            for family, middle in (("a", 100.0), ("b", 75.0)):
                generate(seen, family, middle * (4 if number % 2 else 0.25), times=1)

    vary(14)
    assert seen.slow_families(BOTH, CODE, 0) == frozenset()
    vary(286)
    assert seen.slow_families(BOTH, CODE, 0) == {"b"}


def test_a_few_generations_that_stalled_do_not_make_an_engine_slow() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, times=37)
    generate(seen, "a", 1, times=3)
    generate(seen, "b", 100, times=40)
    assert seen.slow_families(BOTH, CODE, 0) == frozenset()


def test_speeds_decay_until_nothing_is_known() -> None:
    seen = DraftStats()
    generate(seen, "a", 100)
    generate(seen, "b", 50)
    assert seen.slow_families(BOTH, CODE, HALF_LIFE / 2) == {"b"}
    assert seen.slow_families(BOTH, CODE, HALF_LIFE * 2) == frozenset()


def test_replicas_learn_together() -> None:
    seen = DraftStats()
    for replica in ("a.1", "a.2"):
        generate(seen, "a", 60, times=10, engine=replica)
    assert seen.performance("a", "code", 0).tokens_per_second == pytest.approx(60)


def test_a_response_of_a_few_tokens_does_not_measure_the_speed() -> None:
    seen = DraftStats()
    generate(seen, "a", 50, times=50, tokens=3, seconds=0.001)
    generate(seen, "a", 50, times=50, tokens=30, seconds=0)
    assert seen.performance("a", "code", 0).tokens_per_second is None


def test_the_least_known_engine_is_explored_once_another_is_known() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, times=3)
    assert seen.least_measured(BOTH, "code", 0) is None
    generate(seen, "a", 100)
    assert seen.least_measured(BOTH, "code", 0) == "b"
    assert seen.least_measured(BOTH, "chat", 0) is None
    assert seen.least_measured(["a"], "code", 0) is None
    generate(seen, "b", 100, times=40)
    assert seen.least_measured(BOTH, "code", 0) == "a"


def test_an_engine_whose_steps_at_the_task_are_known_is_not_explored_until_that_is_forgotten() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, **draft(4))
    assert seen.least_measured(BOTH, "code", 0) == "b"
    generate(seen, "b", 100, bin_=CHAT, **draft(4))
    assert seen.least_measured(BOTH, "code", 0) == "b"
    generate(seen, "b", 100, times=10, **draft(4))
    assert seen.least_measured(BOTH, "code", 0) is None
    later = 2 * HALF_LIFE
    generate(seen, "a", 100, now=later, **draft(4))
    assert seen.least_measured(BOTH, "code", later) == "b"


# -- tokens per step --------------------------------------------------------------------------------------------------


def count(seen: DraftStats, engine: str, *pairs: tuple[float, float], task: Task | None = None) -> None:
    """Readings of an engine's counters in sequence; the same number of tokens ends between any two."""
    before = 0.0
    for steps, accepted in pairs:
        if task is not None and steps + accepted > before:
            generate(seen, engine, 100, bin_=BINS[task], times=1, tokens=int(steps + accepted - before))
        before = steps + accepted
        seen.record_counters(engine, engine, BOTH, SpeculationCounters(steps, accepted), 0)


def readings(per_step: float, steps: int = 200, times: int = 4) -> list[tuple[float, float]]:
    return [(steps * number, steps * number * (per_step - 1)) for number in range(times)]


def test_the_tokens_of_a_step_are_those_between_two_probes() -> None:
    seen = DraftStats()
    count(seen, "a", (1000, 0), (1200, 500))
    assert seen.performance("a", "code", 0).tokens_per_step == pytest.approx(3.5)


def test_counters_are_attributed_to_the_task_of_the_generations_that_ended_between_two_probes() -> None:
    seen = DraftStats()
    count(seen, "a", *readings(4.0), task="code")
    count(seen, "a", *((600 + steps, 1800 + accepted) for steps, accepted in readings(1.5)), task="chat")
    assert seen.performance("a", "code", 0).tokens_per_step == pytest.approx(4)
    assert seen.performance("a", "chat", 0).tokens_per_step == pytest.approx(1.5)


def test_counters_of_mixed_tasks_do_not_distinguish_tasks() -> None:
    seen = DraftStats()
    for steps, accepted in readings(3.0):
        for bin_ in BINS.values():
            generate(seen, "a", 100, bin_=bin_, times=1, tokens=300)
        seen.record_counters("a", "a", BOTH, SpeculationCounters(steps, accepted), 0)
    assert seen.performance("a", "code", 0).tokens_per_step == seen.performance("a", "chat", 0).tokens_per_step == 3
    ranks = seen.rank_drafts({"a": 1, "b": 1}, CODE, 0, {})
    assert ranks["a"] == ranks["b"]


def test_counters_of_other_clients_are_attributed_to_no_task() -> None:
    seen = DraftStats()
    count(seen, "a", *readings(4.0), task="code")
    generate(seen, "a", 10, times=1, tokens=10)
    seen.record_counters("a", "a", BOTH, SpeculationCounters(10_600, 1800), 0)
    assert seen.performance("a", "code", 0).tokens_per_step == pytest.approx(4)


def test_an_engine_that_reports_each_request_is_not_measured_by_its_counters_too() -> None:
    seen = DraftStats()
    seen.record_counters("a", "a", BOTH, SpeculationCounters(0, 0), 0)
    for number in range(1, 5):
        generate(seen, "a", 100, times=1, **draft(3))
        generate(seen, "a", 100, times=1)
        seen.record_counters("a", "a", BOTH, SpeculationCounters(80 * number, 0), 0)
    assert seen.performance("a", "code", 0).tokens_per_step == pytest.approx(3)


def test_an_engine_that_restarts_counts_from_zero() -> None:
    seen = DraftStats()
    count(seen, "a", (5000, 5000), (300, 300))
    assert seen.performance("a", "code", 0).tokens_per_step == 2


def test_with_few_steps_nothing_is_known() -> None:
    seen = DraftStats()
    count(seen, "a", (0, 0), (50, 0))
    assert seen.performance("a", "code", 0).tokens_per_step is None
    assert seen.pays("a", "b", "code", 1, 0, None) is None


# -- whether drafts pay -----------------------------------------------------------------------------------------------


def without_draft(seen: DraftStats, speed: float, level: int = 1) -> None:
    generate(seen, "plain", speed, has_draft=False, level=level)


@pytest.mark.parametrize(("plain_speed", "pays"), [(60, True), (150, False)])
def test_a_draft_pays_if_the_same_engine_without_it_is_slower(plain_speed: float, pays: bool) -> None:
    seen = DraftStats()
    generate(seen, "a", 100, **draft(3))
    without_draft(seen, plain_speed)
    assert seen.pays("a", "plain", "code", 1, 0, None) is pays
    assert seen.pays_in_bin("a", "plain", CODE, 1, 0) is pays


def test_whether_a_draft_pays_is_unknown_without_the_same_engine_to_compare_with() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, **draft(3))
    generate(seen, "b", 400, has_draft=False)
    assert seen.pays("a", None, "code", 1, 0, None) is None
    assert seen.pays("a", "plain", "code", 1, 0, None) is None


def test_a_draft_that_slows_the_engine_down_at_a_load_does_so_at_higher_ones_and_may_pay_at_lower_ones() -> None:
    seen = DraftStats()
    generate(seen, "a", 20, level=4, **draft(3))
    without_draft(seen, 60, level=4)
    verdicts = [seen.pays_in_bin("a", "plain", CODE, level, 0) for level in (1, 3, 4, 6)]
    assert verdicts == [None, None, False, False]


def test_a_draft_that_pays_at_a_load_does_so_at_lower_ones() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, level=3, **draft(3))
    without_draft(seen, 40, level=3)
    assert [seen.pays_in_bin("a", "plain", CODE, level, 0) for level in (1, 3, 4)] == [True, True, None]


def test_a_draft_pays_for_the_prompts_that_it_is_good_at() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, **draft(4))
    generate(seen, "a", 31, bin_=CHAT, **draft(1.25))
    without_draft(seen, 60)
    assert seen.pays_in_bin("a", "plain", CODE, 1, 0) is True
    assert seen.pays_in_bin("a", "plain", CHAT, 1, 0) is False


def test_a_draft_that_is_hardly_ever_right_does_not_pay_whatever_it_is_compared_with() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, tokens=2000, **draft(1.02, tokens=2000))
    assert seen.pays("a", None, "code", 1, 0, None) is False


def test_a_draft_that_stopped_paying_must_exceed_that_level_to_pay_again() -> None:
    seen = DraftStats()
    generate(seen, "a", 110, tokens=110, **draft(1.1, tokens=110))
    generate(seen, "a", 110, tokens=110, **draft(1.1, tokens=110))
    without_draft(seen, 50)
    assert seen.pays("a", "plain", "code", 1, 0, True) is True
    assert seen.pays("a", "plain", "code", 1, 0, False) is False


# -- what speculation does not support --------------------------------------------------------------------------------


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
