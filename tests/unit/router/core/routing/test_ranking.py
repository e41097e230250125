"""The order in which the engines of a model are tried."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.context_length import TokenBounds
from router.core.routing.draft_preference import DraftRank
from router.core.routing.ranking import EngineSnapshot, rank_engines
from router.core.types import EngineTask, Task

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
    slow=st.booleans(),
    draft_rank=st.none() | st.builds(DraftRank, st.integers(0, 2), st.integers(0, 2)),
)
TASKS = st.sampled_from(["code", "chat"])


def view(
    name: str, task: EngineTask = "any", *, up: bool | None = True, in_flight: int = 0, **more: Any
) -> EngineSnapshot:
    return EngineSnapshot(name, task, up, in_flight, **more)


def order(task: Task, *engines: EngineSnapshot, length: TokenBounds | None = None) -> list[str]:
    """The names in the order of the ranking, which must not depend on the order of the arguments."""
    plans = {
        tuple(engine.name for engine in rank_engines(task, order_given, bounds=length))
        for order_given in permutations(engines)
    }
    assert len(plans) == 1
    return list(plans.pop())


def test_without_engines_there_is_no_ranking() -> None:
    assert rank_engines("chat", []) == []


def test_a_drained_engine_gets_nothing_even_if_there_is_no_other() -> None:
    assert order("chat", view("a", "chat", drained=True), view("b", "code", up=False)) == ["b"]
    assert order("chat", view("a", drained=True)) == []


def test_the_draft_for_the_task_comes_first_then_any_then_the_other() -> None:
    engines = view("a", "chat"), view("b", "any"), view("c", "code")
    assert order("code", *engines) == ["c", "b", "a"]
    assert order("chat", *engines) == ["a", "b", "c"]


def test_among_engines_of_one_kind_the_least_loaded_comes_first() -> None:
    assert order("chat", view("a", in_flight=3), view("b", in_flight=1), view("c", in_flight=2)) == ["b", "c", "a"]


def test_the_task_takes_precedence_over_the_load() -> None:
    assert order("code", view("busy", "code", in_flight=50), view("idle", "chat")) == ["busy", "idle"]


def test_an_engine_that_is_down_comes_last_but_is_included() -> None:
    assert order("code", view("down", "code", up=False), view("other", "chat", in_flight=9)) == ["other", "down"]


def test_an_engine_without_a_probe_result_counts_as_up() -> None:
    assert order("code", view("unknown", "code", up=None), view("up", "any")) == ["unknown", "up"]
    assert order("chat", view("b", up=None), view("a", up=True)) == ["a", "b"]


@pytest.mark.parametrize("task", ["code", "chat"])
def test_equal_engines_are_ordered_by_name(task: Task) -> None:
    assert order(task, view("c"), view("a"), view("b")) == ["a", "b", "c"]


def test_requests_of_other_routers_count_as_load() -> None:
    engines = (
        view("a", in_flight=1, external_load=5.0),
        view("b", in_flight=4, external_load=0.0),
        view("c", in_flight=5),
    )
    assert order("chat", *engines) == ["b", "c", "a"]


def test_an_engine_with_a_backlog_comes_last_whatever_its_task() -> None:
    backlogged = view("crowded", "code", running=20.0, waiting=9.0)
    assert order("code", backlogged, view("other", "chat", running=3.0, waiting=0.0)) == ["other", "crowded"]
    assert order("code", backlogged, view("unknown", "chat")) == ["unknown", "crowded"]


@pytest.mark.parametrize(("running", "waiting"), [(20.0, 5.0), (0.0, 4.0), (None, 4.0), (20.0, None), (400.0, 90.0)])
def test_a_few_waiting_requests_are_no_backlog(running: float | None, waiting: float | None) -> None:
    engines = view("own", "code", running=running, waiting=waiting), view("other", "chat", running=0.0, waiting=0.0)
    assert order("code", *engines) == ["own", "other"]


def test_an_engine_measured_as_slower_comes_last_whatever_its_label() -> None:
    engines = view("labelled", "code", slow=True), view("fast", "chat"), view("other", "any", slow=True)
    assert order("code", *engines) == ["fast", "labelled", "other"]


LONG = TokenBounds(0, 100, 5000)


def test_a_long_prompt_goes_to_an_engine_that_certainly_accepts_it_before_one_of_its_task() -> None:
    small, large = view("small", "code", max_model_len=4096), view("large", "chat", max_model_len=32768)
    assert order("code", small, large, length=LONG) == ["large", "small"]
    assert order("code", small, large, length=TokenBounds(0, 100, 4096)) == ["small", "large"]


def test_where_no_engine_certainly_suffices_the_largest_comes_first() -> None:
    engines = view("a", "code", max_model_len=2048), view("b", "chat", max_model_len=4096)
    assert order("code", *engines, length=LONG) == ["b", "a"]


def test_an_engine_with_too_short_a_context_is_excluded() -> None:
    small, large = view("small", "code", max_model_len=2048), view("large", "chat", max_model_len=8192)
    assert order("code", small, large, length=TokenBounds(0, 3000, 9000)) == ["large"]
    assert order("code", small, length=TokenBounds(3000, 1, 9000)) == []


def test_an_unknown_context_length_alone_decides_nothing() -> None:
    assert order("code", view("a", "code"), view("b", "chat"), length=LONG) == ["a", "b"]
    unknown, known = view("unknown", "code"), view("known", "chat", max_model_len=8192)
    assert order("code", unknown, known, length=LONG) == ["unknown", "known"]


@given(TASKS, st.lists(ENGINE, max_size=6))
def test_every_engine_is_tried_once_and_those_that_are_down_last(task: Task, engines: list[EngineSnapshot]) -> None:
    ranked = rank_engines(task, engines)
    assert sorted(ranked, key=repr) == sorted(engines, key=repr)
    downs = [engine.up is False for engine in ranked]
    assert downs == sorted(downs)


def test_the_rank_of_a_draft_counts_in_place_of_its_configured_task() -> None:
    worse, better = view("a", "code", draft_rank=DraftRank(2, 1)), view("b", "chat", draft_rank=DraftRank(0, 0))
    assert order("code", worse, better, view("plain", "any")) == ["b", "plain", "a"]
