"""The terminal while `roundhouse top` runs: keys, resizes and signals become events, and it is restored at the end."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Final

_QUIT_KEYS: Final = b"qQ"
_REFRESH_KEYS: Final = b"rR \r\n"
_MAX_KEYS: Final = 1024  # bytes read at once
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ScreenEvents:
    """`quit`: q, Ctrl-C, or another signal that ends a process; `refresh`: r; `redraw`: a resize, or new data."""

    def __init__(self) -> None:
        self.quit = asyncio.Event()
        self.refresh = asyncio.Event()
        self.redraw = asyncio.Event()

    def on_keys(self, keys: bytes) -> None:
        if not keys or any(key in _QUIT_KEYS for key in keys):  # no keys: the terminal is closed
            self.quit.set()
        elif any(key in _REFRESH_KEYS for key in keys):
            self.refresh.set()


@contextlib.contextmanager
def listen(events: ScreenEvents) -> Iterator[None]:
    """Passes on what happens at the terminal, whose settings are restored in any case.

    Ctrl-Z has no effect, since a shell would get the terminal as it is here.
    """
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, events.quit.set)
    loop.add_signal_handler(signal.SIGWINCH, events.redraw.set)
    on_stop = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        with _single_keys(events, loop):
            yield
    finally:
        signal.signal(signal.SIGTSTP, on_stop)
        for number in (*_STOP_SIGNALS, signal.SIGWINCH):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _single_keys(events: ScreenEvents, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Each key arrives at once and is not echoed. Does nothing if standard input is no terminal."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()

    def read() -> None:
        try:
            events.on_keys(os.read(keyboard, _MAX_KEYS))
        except OSError:  # the terminal is closed
            events.quit.set()

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        with contextlib.suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
