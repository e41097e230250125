"""Which criterion put an engine behind another is what the ranking was made of."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.ranking import EngineSnapshot, rank_engines
from router.core.routing.ranking_criteria import Criterion, deciding_criteria
from router.core.routing.token_bounds import TokenBounds

BOUNDS = TokenBounds(100, 500, 5000)


def engine(name: str, *, in_flight: int = 0, up: bool | None = True, **facts: Any) -> EngineSnapshot:
    return EngineSnapshot(name, "any", up, in_flight, **facts)


@pytest.mark.parametrize(
    ("worse", "seconds", "criterion"),
    [
        (engine("b", up=False), {"a": 9.0, "b": 1.0}, "up"),
        (engine("b", max_model_len=4000), {"a": 9.0, "b": 1.0}, "context"),
        (engine("b", in_flight=3), {"a": 1.0, "b": 2.0}, "seconds"),
        (engine("b", in_flight=3), {"a": 1.0, "b": 1.0}, "load"),
        (engine("b"), {"a": 1.0, "b": 1.0}, "name"),
        (engine("b", in_flight=3), {}, "load"),
    ],
)
def test_the_first_criterion_in_which_two_engines_differ_decides(
    worse: EngineSnapshot, seconds: dict[str, float], criterion: Criterion
) -> None:
    better = engine("a", max_model_len=8000)
    if criterion != "context":
        better = engine("a")
    assert deciding_criteria([better, worse], seconds, BOUNDS) == [None, criterion]


def test_without_engines_nothing_decides() -> None:
    assert deciding_criteria([], {}) == []


ENGINES = st.lists(
    st.builds(
        engine,
        st.uuids().map(str),
        in_flight=st.integers(0, 2),
        up=st.sampled_from([True, False, None]),
        max_model_len=st.sampled_from([None, 4000, 8000]),
        answer_seconds=st.sampled_from([0.0, 1.0]),
    ),
    max_size=6,
    unique_by=lambda each: each.name,
)


@given(ENGINES)
def test_each_pair_of_neighbours_differs_in_what_is_said_to_decide(engines: list[EngineSnapshot]) -> None:
    ranked = rank_engines(engines, bounds=BOUNDS)
    seconds = {each.name: each.answer_seconds + each.load for each in ranked}
    found = deciding_criteria(ranked, seconds, BOUNDS)
    assert found[:1] == [None] * len(ranked[:1])
    for better, worse, criterion in zip(ranked, ranked[1:], found[1:], strict=False):
        match criterion:
            case "up":
                assert better.up is not False
                assert worse.up is False
            case "context":
                assert (better.max_model_len or 4000) > (worse.max_model_len or 4000)
            case "seconds":
                assert seconds[better.name] < seconds[worse.name]
            case "load":
                assert seconds[better.name] == seconds[worse.name]
                assert better.load < worse.load
            case _:
                assert better.name < worse.name
