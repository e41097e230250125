"""When an engine that has exited is started again, and when it is not."""

from hypothesis import given
from hypothesis import strategies as st

from engines.restarts import (
    INITIAL_DELAY,
    MAX_DELAY,
    MAX_FAILED_STARTS,
    STABLE_AFTER,
    GiveUp,
    Restart,
    Run,
    decide_restart,
)

SHORT = Run(1.0)
STABLE = Run(STABLE_AFTER)
FAILED = Run(None)
RUNS = st.lists(st.sampled_from([SHORT, STABLE, FAILED]), min_size=1, max_size=30)


def test_the_first_exit_is_followed_by_a_restart_after_the_initial_delay() -> None:
    assert decide_restart([SHORT]) == decide_restart([STABLE]) == Restart(INITIAL_DELAY)


def test_each_further_exit_in_a_row_doubles_the_delay_up_to_the_longest() -> None:
    delays = [decide_restart([SHORT] * count) for count in range(1, 9)]
    assert delays == [Restart(delay) for delay in (1, 2, 4, 8, 16, 32, MAX_DELAY, MAX_DELAY)]


def test_a_stable_run_resets_the_delay() -> None:
    assert decide_restart([*[SHORT] * 8, STABLE]) == Restart(INITIAL_DELAY)
    assert decide_restart([*[SHORT] * 8, STABLE, SHORT]) == Restart(INITIAL_DELAY)
    assert decide_restart([*[SHORT] * 8, STABLE, SHORT, SHORT]) == Restart(2 * INITIAL_DELAY)


def test_an_engine_that_fails_to_start_several_times_in_a_row_is_not_started_again() -> None:
    assert isinstance(decide_restart([SHORT, *[FAILED] * (MAX_FAILED_STARTS - 1)]), Restart)
    decision = decide_restart([SHORT, *[FAILED] * MAX_FAILED_STARTS])
    assert decision == GiveUp(f"it ended {MAX_FAILED_STARTS} times in a row before it was ready")


@given(RUNS)
def test_an_engine_that_was_ready_in_its_last_run_is_always_started_again(runs: list[Run]) -> None:
    decision = decide_restart([*runs, SHORT])
    assert isinstance(decision, Restart)
    assert INITIAL_DELAY <= decision.delay <= MAX_DELAY
