"""What clients get from engines that are silent, at default settings; silence.py has the scenarios."""

from typing import Any

import pytest

from tests.support.scenarios import run_scenarios

Outcome = list[Any]
"""How a request ended, its status, after how many seconds, and how many generations it took."""


@pytest.fixture(scope="module")
def outcomes() -> Any:
    return run_scenarios("tests.simulation.silence")


def whole(seconds: float, generations: int = 1) -> Outcome:
    return ["complete", 200, pytest.approx(seconds, abs=1.0), generations]


def failed(status: int, seconds: float, generations: int = 1) -> Outcome:
    return ["failed", status, pytest.approx(seconds, abs=1.0), generations]


# They are streams, and have had a heartbeat before: the error is an event.
ENDED = failed(200, 30)
MOVED = whole(17.0, 2)  # 10 s at the engine that freezes then, and 7 s until two checks of it have failed
SLOW = ("2", "4", "6", "8", "10")


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("parser_holds_arguments_back", {"2": whole(61), "4": whole(35)}),
        ("long_prompt", {"2": whole(90), "4": whole(90)}),
        ("hung_generation", {"2": whole(15.2, 2)}),  # `between_tokens`: the engine does nothing meanwhile
        ("slow_prompts_with_counters", {**dict.fromkeys(SLOW, whole(50)), "20": whole(0.1)}),
        ("slow_prompts_without_counters", {**dict.fromkeys(SLOW, ENDED), "12": whole(40), "20": whole(0.1)}),
        ("hung_engine_without_counters", {**dict.fromkeys(SLOW, ENDED), "20": failed(503, 0, 0)}),
        ("frozen_engine", {**dict.fromkeys(SLOW[:4], MOVED), "20": whole(0.1)}),
        ("engine_pauses_with_a_stream_that_cannot_move", {"2": whole(22), "4": MOVED, "6": MOVED}),
        ("engine_pauses_with_a_stream_whose_tokens_are_not_counted", {"2": whole(22), "4": MOVED}),
        ("flapping_engine_alone", {**dict.fromkeys(SLOW, whole(41)), "20": whole(0.1)}),
        ("flapping_engine_of_two", {**dict.fromkeys(SLOW, whole(41)), "20": whole(0.1)}),
        ("only_engine_pauses", {"2": whole(13), "4": whole(13)}),
        ("batch_of_prompts", {"0": failed(504, 30 + 64 * 1.6)}),
    ],
)
def test_a_silent_request_waits_for_an_engine_that_works_and_leaves_one_that_does_not(
    outcomes: dict[str, dict[str, Outcome]], scenario: str, expected: dict[str, Outcome]
) -> None:
    assert outcomes[scenario] == expected
