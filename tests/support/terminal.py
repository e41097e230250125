"""A command in a terminal of its own (a pty), for tests that press keys and look at the screen."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from tests.support.waiting import TEST_TIMEOUT, eventually

ENTER_SCREEN: Final = "\x1b[?1049h"
LEAVE_SCREEN: Final = "\x1b[?1049l"
SHOW_CURSOR: Final = "\x1b[?25h"

_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TerminalCommand:
    """`roundhouse` with a terminal as its input and output; `output` is all that it has written."""

    def __init__(
        self, *arguments: object, env: Mapping[str, str] | None = None, size: tuple[int, int] = (80, 24)
    ) -> None:
        """`size`: width and height."""
        self._argv = [sys.executable, "-m", "router", *map(str, arguments)]
        self._env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": "", **(env or {})}
        self._master, self._terminal = pty.openpty()
        self._size = size
        self.output = ""
        self.settings_before = termios.tcgetattr(self._terminal)

    async def __aenter__(self) -> Self:
        self.resize(*self._size)
        env = {name: value for name, value in self._env.items() if value}
        self.process = await asyncio.create_subprocess_exec(
            *self._argv, stdin=self._terminal, stdout=self._terminal, stderr=self._terminal, env=env,
            start_new_session=True,
        )  # fmt: skip
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        os.close(self._terminal)

    def _read(self) -> None:
        self.output += os.read(self._master, 1 << 16).decode(errors="replace")

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def text(self) -> str:
        return _CONTROL.sub("", self.output)

    async def shows(self, text: str, *, after: int = 0) -> None:
        """Waits until the text is on the screen, drawn after the first `after` characters of `text`."""
        await eventually(lambda: text in self.text[after:])

    async def exit_code(self) -> int:
        async with asyncio.timeout(TEST_TIMEOUT):
            return await self.process.wait()

    @property
    def is_restored(self) -> bool:
        """Whether the terminal is as it was: its settings, the usual screen, and the cursor."""
        entered = self.output.rfind(ENTER_SCREEN)
        return (
            termios.tcgetattr(self._terminal) == self.settings_before
            and self.output.rfind(LEAVE_SCREEN) > entered
            and (entered < 0 or self.output.rfind(SHOW_CURSOR) > entered)
        )
