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

GRACE_PERIOD: Final = 10.0
"""Seconds that a process has to end once it has been asked to."""

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class StartError(Exception):
    """A process could not be started, or ended before it was ready; the message says why and where its log is."""


class ManagedProcess:
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

    async def wait(self) -> int:
        """Waits for its end; returns its exit code, below 0 for a signal's number."""
        assert self._process is not None
        return await self._process.wait()

    async def wait_until_ready(
        self, is_ready: Callable[[], Awaitable[bool]], *, timeout: float, interval: float = 0.1
    ) -> None:
        """Asks every `interval` seconds. Raises StartError if it ends before, or is not ready in `limit` seconds."""
        ended = asyncio.ensure_future(self.wait())
        try:
            async with asyncio.timeout(timeout):
                while not ended.done():
                    if await is_ready():
                        return
                    await asyncio.wait([ended], timeout=interval)
        except TimeoutError:
            raise StartError(f"{self.name}: not ready after {timeout:g} s; its log: {self.log}") from None
        finally:
            ended.cancel()
        raise StartError(f"{self.name}: {describe_exit(ended.result())} before it was ready; {self._last_log_line()}")

    async def stop(self, grace_period: float = GRACE_PERIOD) -> None:
        """Ends it, and what it started, if it still runs."""
        if self._process is None:
            return
        self._signal_group(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_period):
                await self._process.wait()
        except TimeoutError:
            pass
        self._signal_group(signal.SIGKILL)  # the rest of its group, or itself
        await self._process.wait()

    def kill(self) -> None:
        """Ends it, and what it started, at once; whoever waits for its end need not wait any more."""
        if self._process is not None:
            self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _last_log_line(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"its last line: {lines[-1].strip()[:300]} (all of it: {self.log})" if lines else f"its log: {self.log}"


def describe_exit(code: int) -> str:
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
