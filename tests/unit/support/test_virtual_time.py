"""Tests on virtual time: a wait costs nothing, and what fails beside the test fails it."""

import asyncio
import time

import pytest

from tests.support import virtual_time
from tests.support.virtual_time import on_virtual_time, run_on_virtual_time


@on_virtual_time
async def test_an_hour_passes_at_once_for_all_clocks() -> None:
    started = time.monotonic(), time.time(), asyncio.get_running_loop().time()
    await asyncio.sleep(3600)
    ended = time.monotonic(), time.time(), asyncio.get_running_loop().time()
    assert [round(after - before) for before, after in zip(started, ended, strict=True)] == [3600] * 3


def test_afterwards_the_clock_is_real() -> None:
    real = time.time()
    run_on_virtual_time(asyncio.sleep(3600))
    assert real <= time.time() < real + 3600


def test_an_exception_of_the_test_or_of_a_callback_fails_it() -> None:
    async def raises() -> None:
        raise ZeroDivisionError

    async def has_callback_that_raises() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run_on_virtual_time(raises())
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_on_virtual_time(has_callback_that_raises())


def test_a_test_that_does_not_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(virtual_time, "_LIMIT", 10.0)
    with pytest.raises(TimeoutError):
        run_on_virtual_time(hangs())


def test_the_seed_decides_the_order_of_what_is_due_at_the_same_instant() -> None:
    orders: set[tuple[int, ...]] = set()

    async def note() -> None:
        order: list[int] = []
        for number in range(3):
            asyncio.get_running_loop().call_later(1, order.append, number)
        await asyncio.sleep(2)
        orders.add(tuple(order))

    for seed in range(20):
        run_on_virtual_time(note(), seed)
    assert len(orders) > 1
