"""How long a silent response is waited for, and when it is lost."""

from math import inf

import pytest

from router.core.resilience.signs_of_life import CheckResult, SignsOfLife

UP, DOWN, CLOSED = CheckResult.UP, CheckResult.DOWN, CheckResult.CLOSED
Check = tuple[float, CheckResult, float | None, tuple[float, ...] | None]

WORKS: list[Check] = [(second, UP, 1, (second,)) for second in range(0, 22, 2)]  # the last at 20
HANGS: list[Check] = [(second, UP, 1, (5.0,)) for second in range(0, 22, 2)]


def after(checks: list[Check]) -> SignsOfLife:
    signs = SignsOfLife()
    for now, result, running, counters in checks:
        signs = signs.on_check(now, result, running, counters)
    return signs


@pytest.mark.parametrize(
    ("checks", "limit", "until"),
    [
        (WORKS, 15, 35),  # from the last progress
        (WORKS, 1, 25),  # two checks are longer apart than this limit
        (HANGS, 15, 25),  # from the last byte
        ([], 15, 25),
        ([(20, UP, None, ())], 15, 25),  # an engine without counters
        ([(20, UP, 1, (5.0,))], 15, 25),  # one check shows no movement
        ([(18, UP, 0, (5.0,)), (20, UP, 0, (6.0,))], 15, 25),  # nothing runs
        ([(18, UP, 1, (5.0,)), (20, UP, 1, ())], 15, 25),
        ([(18, UP, 1, (5.0,)), (20, UP, None, None)], 15, 25),
        ([(16, UP, 1, (5.0,)), (18, UP, 1, ()), (20, UP, 1, (6.0,))], 15, 35),  # one page was missing
        ([(16, UP, 1, (5.0,)), (18, DOWN, None, ()), (20, UP, 1, (0.0,))], 15, 25),  # started anew
        ([(16, UP, 1, (5.0, 0.9)), (18, DOWN, None, ()), (20, UP, 1, (6.0, 0.1))], 15, 35),  # it was slow to answer
        ([(16, UP, 1, (5.0, 0.9)), (18, DOWN, None, ()), (20, UP, 1, (5.0, 0.9))], 15, 25),
        ([*WORKS, (22, DOWN, None, ())], 15, 35),
    ],
)
def test_silence_is_limited_from_the_last_byte_or_the_last_progress(
    checks: list[Check], limit: float, until: float
) -> None:
    assert after(checks).silent_until(10, limit) == until


@pytest.mark.parametrize(
    ("pages", "unknown"),
    [
        ([None, None], True),
        ([(1.0,), None], False),  # one page was missing
        ([(1.0,), None, None], True),
        ([(1.0,), (), ()], True),  # there had been some
        ([(), ()], False),  # an engine that has none
        ([None, (), None], False),
        ([None, None, (1.0,)], False),
    ],
)
def test_progress_is_unknown_while_counters_cannot_be_read(
    pages: list[tuple[float, ...] | None], *, unknown: bool
) -> None:
    checks: list[Check] = [(second, UP, None, page) for second, page in enumerate(pages)]
    assert after(checks).is_progress_unknown is unknown


def test_while_an_engine_works_only_the_total_timeout_limits_a_silent_response() -> None:
    signs, due = SignsOfLife(), 15.0
    for now in range(0, 600, 4):
        signs = signs.on_check(now, UP, 3, (now,))
        due = max(due, signs.silent_until(0, 15))
        assert due > now


@pytest.mark.parametrize(
    ("checks", "heard_at", "others_heard_at", "works"),
    [
        (WORKS, 18, -inf, True),
        (WORKS, 19, -inf, False),  # what the last check saw may have been before
        (HANGS, 5, -inf, False),
        (HANGS, 5, 7, True),
        (HANGS, 5, 5.5, False),  # streams that stop at the same time
        (HANGS, 5, 4, False),
    ],
)
def test_an_engine_works_if_it_has_done_something_for_anybody_since(
    checks: list[Check], heard_at: float, others_heard_at: float, *, works: bool
) -> None:
    assert after(checks).progressed_since(heard_at, others_heard_at) is works


@pytest.mark.parametrize(
    ("results", "heard_at", "lost"),
    [
        ([DOWN, DOWN], -inf, True),
        ([DOWN, DOWN], 0.5, True),
        ([DOWN, DOWN], 1.5, False),  # it came after the first failed check
        ([DOWN], -inf, False),
        ([UP, DOWN], -inf, False),
        ([DOWN, UP, DOWN], -inf, False),
        ([DOWN, DOWN, DOWN], 1.5, False),
        ([DOWN, DOWN, UP], -inf, False),
        ([CLOSED, CLOSED], -inf, False),  # it may be stopping, and finish its requests
        ([DOWN, CLOSED, DOWN], -inf, False),
    ],
)
def test_a_response_is_lost_if_two_checks_in_a_row_failed_and_no_byte_came_since(
    results: list[CheckResult], heard_at: float, *, lost: bool
) -> None:
    signs = SignsOfLife()
    for now, result in enumerate(results, 1):
        signs = signs.on_check(now, result)
    assert signs.has_lost(heard_at) is lost
