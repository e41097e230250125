"""How many engines are lost to equal requests that end them; poisons.py has the scenarios.

After the second loss that a router knows of, it sends none of them. Those that are at other engines by then end these.
"""

from typing import Any

import pytest

from tests.support.scenarios import run_scenarios


@pytest.fixture(scope="module")
def outcomes() -> Any:
    return run_scenarios("tests.simulation.poisons")


@pytest.mark.parametrize(
    ("scenario", "lost"),
    [
        ("shared_by_two_routers", {2}),
        ("not_shared_by_two_routers", {2, 3}),  # mostly, both routers prefer the same engine
        ("repeated_at_another_router", {4}),
        ("not_shared_at_one_router", {2, 3}),  # the first one may move on while the second one is at its engine
        ("at_one_instant_at_one_router", {4, 5}),  # four are at an engine each, and the first one may move on
        ("repeated_all_the_time", {5}),  # as many as are at an engine when the second one ends
        ("waiting_for_a_slot", {2}),
    ],
)
def test_no_engine_gets_a_request_after_two_have_ended_with_it(
    outcomes: dict[str, dict[str, list[Any]]], scenario: str, lost: set[int]
) -> None:
    assert outcomes[scenario]["errors"] == ["engine_lost"]
    assert outcomes[scenario]["lost"][0] in lost
