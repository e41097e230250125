"""The order in which the engines of a model are tried."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.ranking import Costs, EngineSnapshot, PromptCost, loads, rank_engines
from router.core.routing.token_bounds import TokenBounds

ENGINE = st.builds(
    EngineSnapshot,
    st.text("abc", min_size=1, max_size=2),
    st.sampled_from(["code", "chat", "any"]),
    st.sampled_from([None, True, False]),
    st.integers(0, 3),
    external_load=st.none() | st.floats(0, 9),
    running=st.none() | st.floats(0, 9),
    waiting=st.none() | st.floats(0, 9),
    max_model_len=st.none() | st.integers(100, 300),
    answer_seconds=st.floats(0, 9),
)


def view(name: str, *, up: bool | None = True, in_flight: int = 0, **more: Any) -> EngineSnapshot:
    return EngineSnapshot(name, "any", up, in_flight, **more)


def order(*engines: EngineSnapshot, length: TokenBounds | None = None, costs: Costs = loads) -> list[str]:
    """The names in the order of the ranking, which must not depend on the order of the arguments."""
    plans = {
        tuple(engine.name for engine in rank_engines(order_given, bounds=length, costs=costs))
        for order_given in permutations(engines)
    }
    assert len(plans) == 1
    return list(plans.pop())


def test_without_engines_there_is_no_ranking() -> None:
    assert rank_engines([]) == []


def test_a_drained_engine_gets_nothing_even_if_there_is_no_other() -> None:
    assert order(view("a", drained=True), view("b", up=False)) == ["b"]
    assert order(view("a", drained=True)) == []


def test_among_engines_of_one_kind_the_least_loaded_comes_first() -> None:
    assert order(view("a", in_flight=3), view("b", in_flight=1), view("c", in_flight=2)) == ["b", "c", "a"]


def test_an_engine_that_is_down_comes_last_but_is_included() -> None:
    assert order(view("down", up=False), view("other", in_flight=9)) == ["other", "down"]


def test_an_engine_without_a_probe_result_counts_as_up() -> None:
    assert order(view("unknown", up=None), view("up")) == ["unknown", "up"]
    assert order(view("b", up=None), view("a", up=True)) == ["a", "b"]


def test_equal_engines_are_ordered_by_name() -> None:
    assert order(view("c"), view("a"), view("b")) == ["a", "b", "c"]


def test_requests_of_other_routers_count_as_load() -> None:
    engines = (
        view("a", in_flight=1, external_load=5.0),
        view("b", in_flight=4, external_load=0.0),
        view("c", in_flight=5),
    )
    assert order(*engines) == ["b", "c", "a"]


LONG = TokenBounds(0, 100, 5000)


def test_a_long_prompt_goes_to_an_engine_that_certainly_accepts_it_before_one_of_its_task() -> None:
    small = view("small", max_model_len=4096, answer_seconds=1.0)
    large = view("large", max_model_len=32768, answer_seconds=2.0)
    assert order(small, large, length=LONG) == ["large", "small"]
    assert order(small, large, length=TokenBounds(0, 100, 4096)) == ["small", "large"]


def test_where_no_engine_certainly_suffices_the_largest_comes_first() -> None:
    engines = view("a", max_model_len=2048), view("b", max_model_len=4096)
    assert order(*engines, length=LONG) == ["b", "a"]


def test_an_engine_with_too_short_a_context_is_excluded() -> None:
    small, large = view("small", max_model_len=2048), view("large", max_model_len=8192)
    assert order(small, large, length=TokenBounds(0, 3000, 9000)) == ["large"]
    assert order(small, length=TokenBounds(3000, 1, 9000)) == []


def test_an_unknown_context_length_alone_decides_nothing() -> None:
    assert order(view("a"), view("b"), length=LONG) == ["a", "b"]
    unknown, known = view("unknown"), view("known", max_model_len=8192, answer_seconds=1.0)
    assert order(unknown, known, length=LONG) == ["unknown", "known"]


@given(st.lists(ENGINE, max_size=6))
def test_every_engine_is_tried_once_and_those_that_are_down_last(engines: list[EngineSnapshot]) -> None:
    ranked = rank_engines(engines)
    assert sorted(ranked, key=repr) == sorted(engines, key=repr)
    downs = [engine.up is False for engine in ranked]
    assert downs == sorted(downs)


def test_the_engine_with_the_least_seconds_for_prompt_and_answer_comes_first() -> None:
    prompts = {"good draft": 0.5, "holds the prompt": 0.1, "idle": 0.7}

    def costs(engines: Sequence[EngineSnapshot]) -> list[PromptCost]:
        return [PromptCost(prompts[engine.name]) for engine in engines]

    def ranked(gain: float) -> list[str]:
        drafts = {"good draft": 2.0, "holds the prompt": 2.0 + gain, "idle": 2.0 + gain}
        return order(*(view(name, answer_seconds=seconds) for name, seconds in drafts.items()), costs=costs)

    assert ranked(1.0) == ["good draft", "holds the prompt", "idle"]
    assert ranked(0.3) == ["holds the prompt", "good draft", "idle"]


def test_the_costs_are_compared_among_engines_whose_answers_take_the_same_time() -> None:
    groups: list[set[str]] = []

    def costs(engines: Sequence[EngineSnapshot]) -> list[PromptCost]:
        groups.append({engine.name for engine in engines})
        return [PromptCost(0.0)] * len(engines)

    engines = view("a", answer_seconds=1.0), view("b", answer_seconds=2.0), view("c", answer_seconds=1.0)
    rank_engines(engines, costs=costs)
    assert groups == [{"a", "c"}, {"b"}]


def test_what_a_prompt_costs_others_decides_only_between_engines_whose_answers_take_different_times() -> None:
    prompts = {"a1": PromptCost(0.1, 9.0), "a2": PromptCost(0.2, 0.0), "b": PromptCost(0.0, 0.0)}

    def costs(engines: Sequence[EngineSnapshot]) -> list[PromptCost]:
        return [prompts[engine.name] for engine in engines]

    first, second = view("a1", answer_seconds=1.0), view("a2", answer_seconds=1.0)
    assert order(first, second, costs=costs) == ["a1", "a2"]
    assert order(first, second, view("b", answer_seconds=5.0), costs=costs) == ["b", "a1", "a2"]


@pytest.mark.parametrize(
    ("running", "waiting", "backlog"),
    [(20.0, 9.0, 0.45), (20.0, 5.0, 0.0), (0.0, 4.0, 0.0), (0.0, 5.0, 5.0), (None, 4.0, 0.0), (20.0, None, 0.0)],
)
def test_only_many_waiting_requests_are_a_backlog(running: float | None, waiting: float | None, backlog: float) -> None:
    assert view("a", running=running, waiting=waiting).backlog == pytest.approx(backlog)
