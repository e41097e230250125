"""Drafts are ordered by what is expected of them; the settings still rank them against engines without a draft."""

import pytest

from router.core.routing.draft_preference import DraftRank, rank_drafts


def test_the_best_draft_gets_the_smallest_distance() -> None:
    ranks = rank_drafts({"code": 0, "chat": 2}, {"code": 1.5, "chat": 3.0})
    assert ranks == {"chat": DraftRank(0, 0), "code": DraftRank(2, 1)}


@pytest.mark.parametrize("values", [{"a": 3.0, "b": 3.0}, {"a": 3.0, "b": 2.95}])
def test_drafts_that_are_equally_good_are_equal_so_that_affinity_and_load_decide(values: dict[str, float]) -> None:
    assert rank_drafts({"a": 1, "b": 1}, values) == {"a": DraftRank(1, 0), "b": DraftRank(1, 0)}


def test_between_equally_good_drafts_the_configured_task_decides() -> None:
    assert rank_drafts({"code": 0, "chat": 2}, {"code": 2.95, "chat": 3.0}) == {
        "code": DraftRank(0, 0),
        "chat": DraftRank(2, 1),
    }


def test_a_draft_alone_keeps_its_distance() -> None:
    assert rank_drafts({"chat": 2}, {"chat": 9.0}) == {"chat": DraftRank(2, 0)}
    assert rank_drafts({}, {}) == {}


def test_drafts_that_differ_are_ordered_even_at_one_distance() -> None:
    ranks = rank_drafts({"a": 1, "b": 1, "c": 1}, {"a": 1.5, "b": 3.0, "c": 2.0})
    assert sorted(ranks, key=lambda family: ranks[family]) == ["b", "c", "a"]
