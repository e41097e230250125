"""A burst of requests starts a few at a time, in order; a single request starts at once."""

import asyncio

import pytest

from router.net.server.start_limiter import StartLimiter

pytestmark = pytest.mark.asyncio(loop_scope="session")


def come(turns: StartLimiter, begun: list[int], *numbers: int) -> None:
    for number in numbers:
        turns.start(lambda number=number: begun.append(number), asyncio.get_running_loop())  # type: ignore[misc]


async def test_a_few_start_at_once() -> None:
    begun: list[int] = []
    come(StartLimiter(3), begun, 1, 2, 3)
    assert begun == [1, 2, 3]


async def test_of_many_some_start_in_each_iteration_in_order_of_arrival() -> None:
    begun: list[int] = []
    come(StartLimiter(3), begun, *range(8))
    seen = [list(begun)]
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append(list(begun))
    assert seen == [[0, 1, 2], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]


async def test_a_newcomer_starts_after_those_that_wait() -> None:
    begun: list[int] = []
    turns = StartLimiter(2)
    come(turns, begun, 1, 2, 3, 4, 5)
    await asyncio.sleep(0)
    come(turns, begun, 6)
    await asyncio.sleep(0)
    assert begun == [1, 2, 3, 4, 5, 6]


async def test_after_a_burst_a_single_request_starts_at_once_again() -> None:
    begun: list[int] = []
    turns = StartLimiter(2)
    come(turns, begun, 1, 2, 3)
    for _ in range(3):
        await asyncio.sleep(0)
    come(turns, begun, 4)
    assert begun == [1, 2, 3, 4]
