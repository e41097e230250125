"""One process of the tree: started with its output in a log file, waited for, and ended with all that it started."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

GRACE: Final = 10.0
"""Seconds that a process has to end once it has been asked to."""

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class StartError(Exception):
    """A process could not be started, or ended before it was ready; the message says why and where its log is."""


class Child:
    """A process in a session of its own, so that a Ctrl-C reaches only the one that knows in which order to end them.

    - `start` returns at once; `wait_until` returns when a check says that it is ready.
    - What it prints is in `log`, which begins anew at each start.
    - `stop` ends its whole process group, by force after a grace.
    - On Linux it ends by itself when this process dies.
    """

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        """`env` is what it needs beside this process's own environment."""
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._env = {**os.environ, **(env or {})}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Raises StartError."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._env,
                    start_new_session=True,
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                )
        except OSError as error:
            raise StartError(f"{self.name}: cannot start {self._argv[0]}: {error.strerror}") from None

    async def ended(self) -> int:
        """Waits for its end; returns its exit code, below 0 for a signal's number."""
        assert self._process is not None
        return await self._process.wait()

    async def wait_until(self, ready: Callable[[], Awaitable[bool]], *, limit: float, interval: float = 0.1) -> None:
        """Asks every `interval` seconds. Raises StartError if it ends before, or is not ready in `limit` seconds."""
        ended = asyncio.ensure_future(self.ended())
        try:
            async with asyncio.timeout(limit):
                while not ended.done():
                    if await ready():
                        return
                    await asyncio.wait([ended], timeout=interval)
        except TimeoutError:
            raise StartError(f"{self.name}: not ready after {limit:g} s; its log: {self.log}") from None
        finally:
            ended.cancel()
        raise StartError(f"{self.name}: {how_it_ended(ended.result())} before it was ready; {self._last_words()}")

    async def stop(self, grace: float = GRACE) -> None:
        """Ends it, and what it started, if it still runs."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                await self._process.wait()
        except TimeoutError:
            pass
        self._signal(signal.SIGKILL)  # the rest of its group, or itself
        await self._process.wait()

    def kill(self) -> None:
        """Ends it, and what it started, at once; whoever waits for its end need not wait any more."""
        if self._process is not None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"its last line: {lines[-1].strip()[:300]} (all of it: {self.log})" if lines else f"its log: {self.log}"


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _die_with_parent() -> None:
    """In the child, before its program: SIGTERM when the parent dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
