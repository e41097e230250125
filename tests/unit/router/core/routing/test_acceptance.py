"""What is learned of two drafts from the tokens per step of requests, in simulated time and with seeded randomness."""

from math import exp
from random import Random
from statistics import NormalDist, fmean

import pytest

from router.core.routing.draft_models.acceptance import Acceptance
from router.core.routing.draft_models.answer_time import FamilyLoad, StepRate, answer_seconds
from router.core.routing.draft_models.score_bins import bins_of, score_bin

SEEDS = range(10)
HOUR = 3600.0
FAMILIES = {"a": 1, "b": 1}
LOADS = [FamilyLoad(family, distance, True, 1.0) for family, distance in FAMILIES.items()]
RATES = dict.fromkeys(FAMILIES, StepRate(40.0, True))


def worth(draft: str, log_odds: float) -> float:
    """The mean tokens per step. The drafts are equally good at -2, where the classifier says chat: mathematics, say."""
    code_share = 1 / (1 + exp(-(log_odds + 2) / 1.5))
    return 1.6 + 2.2 * code_share if draft == "coder" else 3.0 - 1.4 * code_share


class Simulation:
    """Requests with scores of code, of chat and between them, one after the other; `seconds` apart."""

    def __init__(self, seed: int, *, seconds: float = 1.0) -> None:
        self._random = Random(seed)
        self._acceptance = Acceptance()
        self._seconds = seconds
        self._now = 0.0
        self.drafts = {"a": "coder", "b": "chatty"}
        self.results: list[tuple[float, float, str]] = []
        """Of each request: its score, the mean tokens per step of the draft that it got, and its family."""

    def run(self, requests: int) -> None:
        for _ in range(requests):
            self._now += self._seconds
            center, spread = self._random.choice([(4.0, 2.5), (-4.5, 2.5), (-1.0, 2.0)])
            self._serve(self._random.gauss(center, spread))

    def best(self, log_odds: float) -> float:
        return max(worth(draft, log_odds) for draft in self.drafts.values())

    def share_of_best(self, results: list[tuple[float, float, str]]) -> float:
        """Of the tokens per step that the best draft for each prompt yields in hindsight."""
        return fmean(got for _, got, _ in results) / fmean(self.best(score) for score, _, _ in results)

    def _serve(self, log_odds: float) -> None:
        family, random = self._choose(score_bin(log_odds)), self._random
        mean = worth(self.drafts[family], log_odds)
        steps = random.randint(10, 80)
        accepted = round(steps * max(0.0, random.gauss(mean, 0.25 * mean) - 1))
        self._acceptance.observe(family, FAMILIES, score_bin(log_odds), steps, accepted, self._now)
        self.results.append((log_odds, mean, family))

    def _choose(self, bin_: int) -> str:
        values = {}
        for family, distance in FAMILIES.items():
            deviation = NormalDist().inv_cdf(self._random.random())
            values[family] = self._acceptance.value(family, bin_, distance, self._now, deviation)
        seconds = answer_seconds(LOADS, 200.0, values, RATES)
        return min(FAMILIES, key=lambda family: (seconds[family], self._random.random()))


def test_after_200_requests_the_tokens_per_step_are_within_5_percent_of_hindsight() -> None:
    after = []
    for seed in SEEDS:
        simulation = Simulation(seed)
        simulation.run(400)
        after.append(simulation.share_of_best(simulation.results[200:]))
        assert simulation.share_of_best(simulation.results[:200]) > 0.90, "while it learns"
    assert fmean(after) > 0.95
    assert min(after) > 0.93, "the mean of 200 requests has a standard error of 1 %"


@pytest.mark.parametrize("is_code", [True, False])
def test_at_no_task_is_the_better_of_the_two_drafts_for_all_of_it_missed(is_code: bool) -> None:
    routed, fixed = [], []
    for seed in SEEDS:
        simulation = Simulation(seed)
        simulation.run(400)
        results = [result for result in simulation.results[200:] if (result[0] > 0) is is_code]
        routed.append(fmean(got for _, got, _ in results))
        fixed.append(max(fmean(worth(draft, score) for score, _, _ in results) for draft in ("coder", "chatty")))
    assert fmean(routed) > 0.97 * fmean(fixed)


def test_prompts_between_the_tasks_get_the_draft_that_is_better_there() -> None:
    shares = []
    for seed in SEEDS:
        simulation = Simulation(seed)
        simulation.run(600)
        # Chat by the sign of the score, but the code draft is better.
        families = [family for score, _, family in simulation.results[200:] if -1 < score < 0]
        shares.append(families.count("a") / len(families))
    assert fmean(shares) > 0.75


def test_a_replaced_draft_is_noticed_within_tens_of_requests() -> None:
    right_after, later = [], []
    for seed in SEEDS:
        simulation = Simulation(seed)
        simulation.run(300)
        simulation.drafts = {"a": "chatty", "b": "coder"}
        simulation.run(100)
        right_after.append(simulation.share_of_best(simulation.results[300:320]))
        later.append(simulation.share_of_best(simulation.results[350:]))
    assert fmean(right_after) < 0.8, "or the simulation says nothing"
    assert fmean(later) > 0.93


def test_a_request_a_minute_is_enough_to_learn() -> None:
    shares = []
    for seed in SEEDS:
        simulation = Simulation(seed, seconds=60)
        simulation.run(400)
        shares.append(simulation.share_of_best(simulation.results[200:]))
    assert fmean(shares) > 0.95


def test_equal_seeds_give_equal_choices() -> None:
    first, second = Simulation(3), Simulation(3)
    first.run(100)
    second.run(100)
    assert first.results == second.results


def test_a_neighbouring_bin_lends_what_it_knows_until_there_is_more() -> None:
    acceptance = Acceptance()
    for _ in range(20):
        acceptance.observe("a", FAMILIES, 6, 100, 200, 0.0)
    near, far = acceptance.estimate("a", 7, 0.0), acceptance.estimate("a", 0, 0.0)
    assert near is not None
    assert near.mean == pytest.approx(3)
    assert far is None
    for _ in range(20):
        acceptance.observe("a", FAMILIES, 7, 100, 50, 0.0)
    learned = acceptance.estimate("a", 7, 0.0)
    assert learned is not None
    assert learned.mean == pytest.approx(1.6, abs=0.15)


def test_what_is_not_used_any_more_becomes_uncertain_with_the_requests_of_others() -> None:
    acceptance = Acceptance()
    for _ in range(10):
        acceptance.observe("b", FAMILIES, 7, 50, 50, 0.0)

    def standard_error() -> float:
        estimate = acceptance.estimate("b", 7, 0.0)
        return estimate.standard_error if estimate is not None else 9.0

    before = standard_error()
    for _ in range(60):
        acceptance.observe("a", FAMILIES, 7, 50, 50, 0.0)
    assert standard_error() > 1.5 * before


def test_knowledge_lasts_for_hours_but_not_for_days() -> None:
    acceptance = Acceptance()
    for _ in range(10):
        acceptance.observe("a", FAMILIES, 7, 50, 50, 0.0)
    assert acceptance.estimate("a", 7, 3 * HOUR) is not None
    assert acceptance.estimate("a", 7, 48 * HOUR) is None


def test_the_mean_over_bins_is_weighted_by_evidence() -> None:
    acceptance = Acceptance()
    for bin_, accepted, times in ((7, 300, 30), (4, 0, 10), (0, 900, 30)):
        for _ in range(times):
            acceptance.observe("a", ["b"], bin_, 100, accepted, 0.0)
    mean = acceptance.mean_over("a", bins_of("code"), 0.0)
    assert mean is not None
    assert 3 < mean.mean < 4
    assert acceptance.mean_over("b", bins_of("code"), 0.0) is None


def test_a_request_without_a_step_says_nothing() -> None:
    acceptance = Acceptance()
    acceptance.observe("a", FAMILIES, 7, 0, 0, 0.0)
    assert acceptance.mean_over("a", bins_of("code"), 0.0) is None


def test_an_impossible_number_of_accepted_tokens_is_ignored() -> None:
    acceptance = Acceptance()
    for accepted in [50] * 20 + [2**53] * 2:
        acceptance.observe("a", FAMILIES, 7, 50, accepted, 0.0)
    estimate = acceptance.estimate("a", 7, 0.0)
    assert estimate is not None
    assert estimate.mean == pytest.approx(2)
