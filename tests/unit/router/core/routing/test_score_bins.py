"""The bins of the classifier's score."""

import pytest

from router.core.routing.classify import task_for
from router.core.routing.draft_models.score_bins import BINS, TASKS, bins_of, score_bin, task_of


@pytest.mark.parametrize("log_odds", [-50.0, -6.0, -1.5, -0.1, 0.0, 0.1, 0.9, 2.0, 50.0])
def test_the_bin_of_a_score_is_of_the_task_of_the_score(log_odds: float) -> None:
    assert task_of(score_bin(log_odds)) == task_for(log_odds)


@pytest.mark.parametrize("log_odds", [0.5, 1.5, 4.0, 9.0])
def test_the_bins_are_symmetric(log_odds: float) -> None:
    assert score_bin(log_odds) + score_bin(-log_odds) == BINS - 1


def test_each_bin_is_of_one_task() -> None:
    assert sorted(bin_ for task in TASKS for bin_ in bins_of(task)) == list(range(BINS))
