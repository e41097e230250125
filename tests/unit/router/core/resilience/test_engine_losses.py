import pytest

from router.core.resilience.engine_losses import (
    MAX_AGE,
    MAX_SUSPECTS,
    SAME_LOSS,
    WINDOW,
    Suspect,
    Suspects,
    may_be_a_loss,
)


@pytest.mark.parametrize(
    ("reason", "seconds", "checked"),
    [
        ("reset", 0.1, True),
        ("broken-off", MAX_AGE, True),
        ("error-frame", 5.0, True),  # vLLM's API server outlives its engine core
        ("status-500", 5.0, True),
        ("reset", MAX_AGE + 1, False),  # a long stream whose engine is restarted
        ("timeout", 1.0, False),
        ("slow", 1.0, False),
        ("connect", 0.0, False),  # it was down before
        ("aborted", 1.0, False),  # vLLM is stopped in order
        ("status-503", 1.0, False),
        ("diverged", 1.0, False),
    ],
)
def test_a_connection_that_breaks_soon_after_the_request_may_be_a_lost_engine(
    reason: str, seconds: float, checked: bool
) -> None:
    assert may_be_a_loss(reason, seconds) is checked


@pytest.mark.parametrize(
    ("losses", "now", "stopped"),
    [
        ([("a", 0.0)], 1.0, False),
        ([("a", 0.0), ("b", 1.0)], 1.0, True),
        ([("a", 0.0), ("a", 1.0)], 1.0, False),  # equal requests at one engine
        ([("a", 0.0), ("a", SAME_LOSS)], 3.0, True),  # it was started again
        ([("a", 0.0), ("b", WINDOW)], WINDOW, False),  # a rolling restart
        ([("a", 0.0), ("b", 1.0)], WINDOW, False),
        ([("a", 0.0), ("b", WINDOW - 1), ("c", WINDOW + 1)], WINDOW + 1, True),
    ],
)
def test_a_request_is_stopped_after_two_engines_within_a_minute(
    losses: list[tuple[str, float]], now: float, stopped: bool
) -> None:
    suspect = Suspect()
    for engine, at in losses:
        suspect = suspect.after_loss(engine, at)
    assert suspect.is_stopped(now) is stopped


def test_a_request_that_is_answered_is_no_suspect_any_more() -> None:
    suspects = Suspects()
    suspects.record_loss(7, "a", 0.0)
    suspects.forget(7)
    suspects.record_loss(7, "b", 1.0)
    assert not suspects.is_stopped(7, 1.0)


def test_the_number_of_suspects_is_bounded_and_those_of_long_ago_are_forgotten() -> None:
    suspects = Suspects()
    for digest in range(MAX_SUSPECTS + 10):
        suspects.record_loss(digest, "a", 0.0)
    assert len(suspects) == MAX_SUSPECTS
    suspects.record_loss(1, "a", WINDOW)
    assert list(suspects) == [1]
