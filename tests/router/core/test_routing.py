"""In which order the engines of a model are tried."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing import EngineView, plan
from router.core.types import EngineTask, Task

ENGINE = st.builds(
    EngineView,
    st.text("abc", min_size=1, max_size=2),
    st.sampled_from(["code", "chat", "any"]),
    st.sampled_from([None, True, False]),
    st.integers(0, 3),
)
TASKS = st.sampled_from(["code", "chat"])


def view(name: str, task: EngineTask = "any", *, up: bool | None = True, in_flight: int = 0) -> EngineView:
    return EngineView(name, task, up, in_flight)


def order(task: Task, *engines: EngineView) -> list[str]:
    """The names in the order of the plan, which must not depend on the order they are given in."""
    plans = {tuple(engine.name for engine in plan(task, given)) for given in permutations(engines)}
    assert len(plans) == 1
    return list(plans.pop())


def test_no_engines_are_no_plan() -> None:
    assert plan("chat", []) == []


def test_the_draft_for_the_task_comes_first_then_any_then_the_other() -> None:
    engines = view("a", "chat"), view("b", "any"), view("c", "code")
    assert order("code", *engines) == ["c", "b", "a"]
    assert order("chat", *engines) == ["a", "b", "c"]


def test_of_the_same_kind_who_has_less_to_do_comes_first() -> None:
    assert order("chat", view("a", in_flight=3), view("b", in_flight=1), view("c", in_flight=2)) == ["b", "c", "a"]


def test_the_task_counts_more_than_the_load() -> None:
    assert order("code", view("busy", "code", in_flight=50), view("idle", "chat")) == ["busy", "idle"]


def test_an_engine_that_is_known_to_be_down_comes_last_and_not_never() -> None:
    assert order("code", view("down", "code", up=False), view("other", "chat", in_flight=9)) == ["other", "down"]


def test_an_engine_that_nobody_has_asked_yet_may_well_be_up() -> None:
    assert order("code", view("unknown", "code", up=None), view("up", "any")) == ["unknown", "up"]
    assert order("chat", view("b", up=None), view("a", up=True)) == ["a", "b"]


@pytest.mark.parametrize("task", ["code", "chat"])
def test_equals_are_ordered_by_name(task: Task) -> None:
    assert order(task, view("c"), view("a"), view("b")) == ["a", "b", "c"]


@given(TASKS, st.lists(ENGINE, max_size=6))
def test_every_engine_is_tried_once_and_those_that_are_down_last(task: Task, engines: list[EngineView]) -> None:
    found = plan(task, engines)
    assert sorted(found, key=repr) == sorted(engines, key=repr)
    downs = [engine.up is False for engine in found]
    assert downs == sorted(downs)
