"""A signal ends a command that has to tidy up, whatever Python was doing when it arrived."""

import asyncio
import gc
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from router.commands.termination import Termination, cancelled_by_signals, exit_if_ended


def test_a_signal_exits_with_its_number() -> None:
    with pytest.raises(SystemExit) as caught:
        Termination().on_signal(signal.SIGTERM, None)
    assert caught.value.code == 143


def test_a_signal_whose_exception_was_ignored_exits_at_the_next_check() -> None:
    termination = Termination()
    termination.check()
    with suppress(SystemExit):
        termination.on_signal(signal.SIGHUP, None)
    with pytest.raises(SystemExit) as caught:
        termination.check()
    assert caught.value.code == 129


def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    async def command() -> None:
        with cancelled_by_signals():
            # The handler itself: if there were none, the signal would end the tests.
            handler: Callable[..., Any] = signal.getsignal(signal.SIGTERM)  # type: ignore[assignment]
            asyncio.get_running_loop().call_soon(handler, signal.SIGTERM, None)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            await asyncio.sleep(60)

    with pytest.raises(SystemExit) as caught:
        asyncio.run(asyncio.wait_for(command(), 30))
    assert caught.value.code == 143


def test_a_signal_just_before_the_tasks_turn_ends_its_wait_and_not_the_next_one() -> None:
    """After this wait, the task could stand in a read of standard input, which no later cancellation would end."""
    went_on: list[bool] = []

    async def command() -> None:
        with cancelled_by_signals():
            handler: Callable[..., Any] = signal.getsignal(signal.SIGTERM)  # type: ignore[assignment]
            asyncio.get_running_loop().call_soon(handler, signal.SIGTERM, None)
            await asyncio.sleep(0)
            went_on.append(True)

    with pytest.raises(SystemExit) as caught:
        asyncio.run(command())
    assert (caught.value.code, went_on) == (143, [])


def test_a_signal_between_a_coroutine_and_its_await_ends_the_command_without_a_warning() -> None:
    async def command() -> None:
        with cancelled_by_signals():
            handler: Callable[..., Any] = signal.getsignal(signal.SIGTERM)  # type: ignore[assignment]
            coroutine = asyncio.sleep(60)
            handler(signal.SIGTERM, None)
            await coroutine

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with suppress(SystemExit):
            asyncio.run(command())
        gc.collect()
    assert caught == []


def test_a_read_after_a_swallowed_cancellation_is_not_begun() -> None:
    exit_if_ended()  # without a command
    read: list[bool] = []

    async def command() -> None:
        with cancelled_by_signals():
            exit_if_ended()
            handler: Callable[..., Any] = signal.getsignal(signal.SIGTERM)  # type: ignore[assignment]
            asyncio.get_running_loop().call_soon(handler, signal.SIGTERM, None)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            exit_if_ended()
            read.append(True)

    with pytest.raises(SystemExit) as caught:
        asyncio.run(command())
    assert (caught.value.code, read) == (143, [])
