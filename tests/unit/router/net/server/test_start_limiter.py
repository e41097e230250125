"""A burst of requests starts a few at a time, in order; a single request starts at once."""

import asyncio

import pytest

from router.net.server.start_limiter import StartLimiter

pytestmark = pytest.mark.asyncio(loop_scope="session")


def request_starts(limiter: StartLimiter, started: list[int], *numbers: int) -> None:
    for number in numbers:
        limiter.start(lambda number=number: started.append(number), asyncio.get_running_loop())  # type: ignore[misc]


async def test_a_few_start_at_once() -> None:
    started: list[int] = []
    request_starts(StartLimiter(3), started, 1, 2, 3)
    assert started == [1, 2, 3]


async def test_of_many_some_start_in_each_iteration_in_order_of_arrival() -> None:
    started: list[int] = []
    request_starts(StartLimiter(3), started, *range(8))
    seen = [list(started)]
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append(list(started))
    assert seen == [[0, 1, 2], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]


async def test_a_newcomer_starts_after_those_that_wait() -> None:
    started: list[int] = []
    limiter = StartLimiter(2)
    request_starts(limiter, started, 1, 2, 3, 4, 5)
    await asyncio.sleep(0)
    request_starts(limiter, started, 6)
    await asyncio.sleep(0)
    assert started == [1, 2, 3, 4, 5, 6]


async def test_after_a_burst_a_single_request_starts_at_once_again() -> None:
    started: list[int] = []
    limiter = StartLimiter(2)
    request_starts(limiter, started, 1, 2, 3)
    for _ in range(3):
        await asyncio.sleep(0)
    request_starts(limiter, started, 4)
    assert started == [1, 2, 3, 4]
