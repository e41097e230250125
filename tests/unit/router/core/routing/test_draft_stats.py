"""What is learned about drafts from generations and counters; time is a number here."""

from typing import Any

import pytest

from router.core.endpoints.endpoint import InferenceRequest
from router.core.routing.draft_models.answer_time import FamilyLoad
from router.core.routing.draft_models.counted_steps import SpeculationCounters
from router.core.routing.draft_models.draft_performance import MeasuredGeneration
from router.core.routing.draft_models.draft_stats import DraftStats, unsupported_fields
from router.core.routing.draft_models.speeds import HALF_LIFE, MAX_GAP, MIN_GENERATIONS
from router.core.types import Task
from tests.support.factories import chat, completion, embeddings, messages, responses

BOTH = frozenset("ab")
CODE, UNSURE, CHAT = 7, 4, 0
BINS = {"code": CODE, "chat": CHAT}


def generate(
    seen: DraftStats, family: str, speed: float, *, bin_: int = CODE, times: int = 20, now: float = 0.0, **facts: Any
) -> None:
    """Generations of 60 tokens; `speed` in tokens per second."""
    given: dict[str, Any] = {"engine": family, "model": "llama", "tokens": 60, "seconds": 60 / speed} | facts
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


def test_an_engine_that_is_not_known_is_explored_also_if_another_has_fewer_measurements() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, times=40, **draft(4))
    generate(seen, "b", 100, times=3, **draft(4))
    generate(seen, "b", 100, bin_=CHAT, **draft(4))
    generate(seen, "plain", 100, times=4, has_draft=False)
    assert seen.least_measured([*BOTH, "plain"], "code", 0) == "plain"


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


# -- the time of an answer --------------------------------------------------------------------------------------------


def plain(family: str, *, load: float = 1.0, distance: int = 1) -> FamilyLoad:
    return FamilyLoad(family, distance, False, load)


def drafted(family: str, *, load: float = 1.0, distance: int = 1) -> FamilyLoad:
    return FamilyLoad(family, distance, True, load)


def answer(
    seen: DraftStats, *families: FamilyLoad, bin_: int = CODE, now: float = 0.0, **deviations: float
) -> dict[str, float]:
    """The seconds of 120 tokens."""
    return seen.answer_seconds(families, bin_, 120.0, now, deviations)


def test_an_engine_that_is_clearly_faster_at_a_task_answers_faster_there() -> None:
    seen = DraftStats()
    generate(seen, "a", 100)
    seconds = answer(seen, plain("a"), plain("b"))
    assert seconds["a"] == seconds["b"], "b counts as fast until it is measured"
    generate(seen, "b", 50)
    generate(seen, "b", 100, bin_=CHAT)
    generate(seen, "a", 95, bin_=CHAT)
    seconds = answer(seen, plain("a"), plain("b"))
    assert seconds["b"] == pytest.approx(2 * seconds["a"])
    seconds = answer(seen, plain("a"), plain("b"), bin_=CHAT)
    assert seconds["a"] == seconds["b"], "so the cost decides"


def test_load_does_not_make_an_engine_without_a_draft_slower_than_another() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, level=1)
    generate(seen, "a", 50, level=4)
    generate(seen, "b", 50, level=4)
    seconds = answer(seen, plain("a", load=1), plain("b", load=15))
    assert seconds["a"] == seconds["b"]
    assert 2.4 < seconds["a"] < 2.6, "of both at the load of 8 that they have together"


def test_a_draft_that_is_better_between_the_tasks_answers_faster_there() -> None:
    seen = DraftStats()
    for bin_, per_step in ((CODE, {"a": 4, "b": 1.5}), (UNSURE, {"a": 1.5, "b": 4})):
        for family, yielded in per_step.items():
            generate(seen, family, 20 * yielded, bin_=bin_, times=30 if bin_ == CODE else 8, **draft(yielded))
    seconds = answer(seen, drafted("a"), drafted("b"))
    assert seconds["a"] < 0.6 * seconds["b"]
    seconds = answer(seen, drafted("a"), drafted("b"), bin_=UNSURE)
    assert seconds["b"] < 0.6 * seconds["a"]


def test_a_better_draft_on_a_slower_machine_wins_only_if_it_answers_faster() -> None:
    seen = DraftStats()
    generate(seen, "a", 30, times=30, **draft(4))
    generate(seen, "b", 60, times=30, **draft(2))
    seconds = answer(seen, drafted("a"), drafted("b"))
    assert seconds["a"] == pytest.approx(2 * seconds["b"], rel=0.05)


def test_a_draft_is_expected_to_be_as_fast_at_a_load_as_it_was_at_the_closest() -> None:
    seen = DraftStats()
    generate(seen, "a", 90, level=1, **draft(3))
    generate(seen, "a", 30, level=5, **draft(3))
    generate(seen, "b", 60, level=1, **draft(2))
    seconds = answer(seen, drafted("a", load=16), drafted("b", load=1))
    assert seconds["a"] == pytest.approx(2 * seconds["b"], rel=0.05)
    seconds = answer(seen, drafted("a", load=1), drafted("b", load=1))
    assert seconds["b"] == pytest.approx(1.5 * seconds["a"], rel=0.05)


@pytest.mark.parametrize("has_draft", [True, False])
def test_a_slow_machine_does_not_look_faster_at_a_load_at_which_it_was_not_measured(has_draft: bool) -> None:
    seen = DraftStats()
    for level, speed in ((1, 50), (2, 45), (3, 40), (4, 30), (5, 20)):
        generate(seen, "fast", speed, level=level, has_draft=False)
    generate(seen, "slow", 5, level=1, times=50, has_draft=False)
    for load in (1, 3, 20):
        seconds = answer(seen, FamilyLoad("fast", 1, has_draft, load), plain("slow", load=load))
        assert seconds["slow"] > 5 * seconds["fast"]


def test_no_engine_is_expected_to_be_faster_with_more_load() -> None:
    seen = DraftStats()
    generate(seen, "fast", 30, level=4)
    generate(seen, "slow", 5, level=1)
    seconds = answer(seen, drafted("fast", load=8), drafted("slow", load=8))
    assert seconds["slow"] > 5 * seconds["fast"]


def test_a_better_draft_that_was_slow_at_many_requests_is_tried_again_after_minutes_and_is_then_what_it_is() -> None:
    seen = DraftStats()
    generate(seen, "a", 40, level=3, times=2000, **draft(3))
    generate(seen, "b", 100, level=3, times=2000, **draft(2.5))

    def others_keep_using_b(now: float) -> dict[str, float]:
        generate(seen, "b", 100, level=3, now=now, **draft(2.5))
        return answer(seen, drafted("a"), drafted("b", load=5), now=now)

    seconds = others_keep_using_b(MAX_GAP)
    assert seconds["a"] > seconds["b"]
    seconds = others_keep_using_b(MAX_GAP + 1)
    assert seconds["a"] <= seconds["b"]
    generate(seen, "a", 120, level=1, times=int(MIN_GENERATIONS), now=MAX_GAP + 2, **draft(3))
    seconds = others_keep_using_b(MAX_GAP + 3)
    assert seconds["a"] < 0.9 * seconds["b"]


@pytest.mark.parametrize(("plain_speed", "pays"), [(60, True), (150, False)])
def test_the_same_engine_without_a_draft_answers_faster_where_the_draft_does_not_pay(
    plain_speed: float, pays: bool
) -> None:
    seen = DraftStats()
    generate(seen, "a", 100, **draft(3))
    without_draft(seen, plain_speed)
    seconds = answer(seen, drafted("a"), plain("plain"))
    assert (seconds["a"] < seconds["plain"]) is pays


def test_a_draft_that_is_hardly_ever_right_is_expected_to_be_slower_than_none() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, tokens=2000, **draft(1.02, tokens=2000))
    seconds = answer(seen, drafted("a"), plain("plain"))
    assert seconds["plain"] < seconds["a"]


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 2), (0, 2)])
def test_before_anything_is_measured_the_configured_task_decides(first: int, second: int) -> None:
    seen = DraftStats()
    for kind in (plain, drafted):
        seconds = answer(seen, kind("a", distance=first), kind("b", distance=second))
        assert seconds["a"] < 0.9 * seconds["b"]
    seconds = answer(seen, drafted("a", distance=first), plain("b", distance=second))
    assert seconds["a"] < 0.9 * seconds["b"]


def test_before_a_draft_is_measured_its_task_counts_once() -> None:
    seen = DraftStats()
    seconds = answer(seen, drafted("a", distance=0), drafted("b", distance=2))
    assert seconds["b"] / seconds["a"] == pytest.approx(2 * 0.97 / 0.94, rel=0.001)


def test_an_engine_that_may_have_a_draft_counts_as_one_without_as_long_as_that_is_unknown() -> None:
    seen = DraftStats()
    unknown = FamilyLoad("unknown", 2, None, 1.0)
    seconds = answer(seen, drafted("a", distance=0), unknown, plain("plain", distance=2))
    assert seconds["unknown"] > 1.8 * seconds["plain"]


def test_between_equally_fast_engines_the_configured_task_breaks_the_tie() -> None:
    seen = DraftStats()
    for family in "ab":
        generate(seen, family, 90, **draft(3))
    seconds = answer(seen, drafted("a", distance=0), drafted("b", distance=2))
    assert seconds["a"] < seconds["b"] < 1.1 * seconds["a"]


def test_drafts_within_3_percent_are_equal() -> None:
    seen = DraftStats()
    generate(seen, "a", 90, times=40, **draft(3, tokens=600))
    generate(seen, "b", 90, times=40, **draft(2.95, tokens=600))
    seconds = answer(seen, drafted("a"), drafted("b"))
    assert seconds["a"] == seconds["b"]


def test_without_chance_an_unknown_draft_counts_as_the_worst_known_one() -> None:
    seen = DraftStats()
    generate(seen, "a", 90, **draft(3))
    generate(seen, "b", 36, **draft(1.2))
    seconds = answer(seen, drafted("a"), drafted("b"), drafted("new"))
    assert seconds["new"] == seconds["b"] > seconds["a"]
    seconds = answer(seen, drafted("a"), drafted("b"), drafted("new", distance=0))
    assert seconds["new"] < seconds["b"], "its task breaks the tie"
    assert seconds["new"] > seconds["a"]
    tried = answer(seen, drafted("a"), drafted("b"), drafted("new"), a=0.0, b=0.0, new=3.0)
    assert tried["new"] < tried["a"]


def test_where_all_engines_of_a_family_have_a_backlog_its_task_is_no_reason_to_wait() -> None:
    seen = DraftStats()
    crowded = FamilyLoad("crowded", 0, None, 30.0, backlog=0.4)
    seconds = answer(seen, crowded, FamilyLoad("other", 2, None, 4.0))
    assert seconds["other"] < seconds["crowded"] == pytest.approx(1.2 * seconds["other"])


def test_speeds_that_vary_much_are_not_clearly_different_until_there_are_many() -> None:
    seen = DraftStats()

    def vary(times: int) -> None:
        for number in range(times):
            for family, middle in (("a", 100.0), ("b", 75.0)):
                generate(seen, family, middle * (4 if number % 2 else 0.25), times=1)

    vary(14)
    seconds = answer(seen, plain("a"), plain("b"))
    assert seconds["a"] == seconds["b"]
    vary(400)
    seconds = answer(seen, plain("a"), plain("b"))
    assert seconds["b"] > 1.2 * seconds["a"]


def test_a_few_generations_that_stalled_do_not_make_an_engine_slow() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, times=37)
    generate(seen, "a", 1, times=3)
    generate(seen, "b", 100, times=40)
    seconds = answer(seen, plain("a"), plain("b"))
    assert seconds["a"] == seconds["b"]


def test_speeds_decay_until_nothing_is_known() -> None:
    seen = DraftStats()
    generate(seen, "a", 100)
    generate(seen, "b", 50)
    seconds = answer(seen, plain("a"), plain("b"), now=HALF_LIFE / 2)
    assert seconds["b"] > 1.5 * seconds["a"]
    seconds = answer(seen, plain("a"), plain("b"), now=HALF_LIFE * 2)
    assert seconds["a"] == seconds["b"]


def test_the_expected_length_of_an_answer_follows_those_before_and_ends_at_max_tokens() -> None:
    seen = DraftStats()
    assert seen.expected_tokens("llama", "code", None) == 256
    generate(seen, "a", 100, times=300, tokens=100)
    assert seen.expected_tokens("llama", "code", None) == pytest.approx(100, rel=0.1)
    assert seen.expected_tokens("llama", "chat", None) == seen.expected_tokens("mistral", "code", None) == 256
    assert seen.expected_tokens("llama", "chat", 16) == 16
    generate(seen, "a", 100, times=900, tokens=1)
    assert seen.expected_tokens("llama", "code", None) >= 1


def test_each_choice_of_an_answer_is_one_of_its_own_length() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, times=300, tokens=400, choices=4)
    assert seen.expected_tokens("llama", "code", None) == pytest.approx(100, rel=0.1)


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
    seconds = answer(seen, drafted("a"), drafted("b"))
    assert seconds["a"] == seconds["b"]


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
    verdicts = [seen.pays("a", "plain", "code", level, 0, None) for level in (1, 3, 4, 6)]
    assert verdicts == [None, None, False, False]


def test_a_draft_that_pays_at_a_load_does_so_at_lower_ones() -> None:
    seen = DraftStats()
    generate(seen, "a", 100, level=3, **draft(3))
    without_draft(seen, 40, level=3)
    assert [seen.pays("a", "plain", "code", level, 0, None) for level in (1, 3, 4)] == [True, True, None]


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
