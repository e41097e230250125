"""The terminal while `roundhouse top` runs: its keys and signals, and that it is restored."""

import asyncio
import os
import pty
import signal
import sys
import termios
from collections.abc import Iterator
from io import FileIO

import pytest

from router.commands.top.screen import ScreenEvents, listen
from tests.support.waiting import TEST_TIMEOUT


@pytest.fixture(autouse=True)
def restored_handlers() -> Iterator[None]:
    """An event loop leaves SIGHUP with its default, also if the tests run under nohup."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileIO]:
    """The keys of the terminal that is standard input."""
    master, terminal = pty.openpty()
    with FileIO(master, "w") as keys, os.fdopen(terminal) as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield keys


async def within(event: asyncio.Event) -> None:
    async with asyncio.timeout(TEST_TIMEOUT):
        await event.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_every_signal_that_ends_a_process_quits(number: signal.Signals) -> None:
    events = ScreenEvents()
    before = signal.signal(number, lambda *_: None)  # else one that is forgotten would end the tests
    try:
        with listen(events):
            os.kill(os.getpid(), number)
            await within(events.quit)
    finally:
        signal.signal(number, before)
    assert not events.redraw.is_set()


async def test_a_resize_draws_again_and_ctrl_z_has_no_effect() -> None:
    events = ScreenEvents()
    stops: list[int] = []
    before = signal.signal(signal.SIGTSTP, lambda number, _: stops.append(number))
    try:
        with listen(events):
            os.kill(os.getpid(), signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGWINCH)
            await within(events.redraw)
        assert stops == []
        os.kill(os.getpid(), signal.SIGTSTP)
        assert stops == [signal.SIGTSTP]
    finally:
        signal.signal(signal.SIGTSTP, before)
    assert not events.quit.is_set()


async def test_a_key_arrives_at_once_and_the_terminal_is_restored(keyboard: FileIO) -> None:
    events = ScreenEvents()
    before = termios.tcgetattr(sys.stdin)
    with listen(events):
        keyboard.write(b"r")
        await within(events.refresh)
        assert not events.quit.is_set()
        keyboard.write(b"q")
        await within(events.quit)
        assert termios.tcgetattr(sys.stdin) != before
    assert termios.tcgetattr(sys.stdin) == before


async def test_a_terminal_that_closes_quits(keyboard: FileIO) -> None:
    events = ScreenEvents()
    with listen(events):
        keyboard.close()
        await within(events.quit)
