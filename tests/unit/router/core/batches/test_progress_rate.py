"""How fast the lines of a batch are done."""

import pytest

from router.core.batches.progress_rate import ProgressRate


def rate_of(*looks: tuple[float, int]) -> ProgressRate:
    rate = ProgressRate()
    for at, done in looks:
        rate.add(at, done)
    return rate


def test_nothing_is_known_before_time_has_passed() -> None:
    for rate in (rate_of(), rate_of((5, 3)), rate_of((5, 3), (5, 9))):
        assert rate.per_second is None
        assert rate.seconds_left(100) is None


def test_the_time_left_follows_from_the_rate() -> None:
    rate = rate_of((10, 0), (20, 50))
    assert rate.per_second == 5
    assert rate.seconds_left(100) == 10


def test_while_no_line_is_done_the_time_left_is_unknown() -> None:
    rate = rate_of((0, 7), (30, 7))
    assert rate.per_second == 0
    assert rate.seconds_left(100) is None


def test_the_rate_is_that_of_the_last_minute() -> None:
    slow_then_fast = [(float(at), at if at <= 100 else 100 + 10 * (at - 100)) for at in range(0, 201, 5)]
    assert rate_of(*slow_then_fast).per_second == pytest.approx(10)


def test_two_looks_are_enough_however_far_apart_they_are() -> None:
    assert rate_of((0, 0), (500, 100)).per_second == pytest.approx(0.2)


def test_fewer_lines_than_before_begin_it_anew() -> None:
    rate = rate_of((0, 0), (10, 100), (20, 60))
    assert rate.per_second is None
    rate.add(30, 80)
    assert rate.per_second == 2


def test_only_the_time_in_which_lines_run_counts() -> None:
    rate = ProgressRate()
    found = []
    for at, status, done, paused in (
        (0, "validating", 0, False), (10, "in_progress", 0, False), (20, "in_progress", 50, False),
        (30, "in_progress", 50, True), (100, "in_progress", 50, False), (110, "in_progress", 70, False),
    ):  # fmt: skip
        rate.look(at, status, done, paused=paused)
        found.append(rate.per_second)
    assert found == [None, None, 5, None, None, 2]
