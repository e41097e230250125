"""One process of the tree: started with its output in a log file, awaited, and stopped with its children."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from engines.logs import rotate

GRACE_PERIOD: Final = 10.0
"""Seconds between SIGTERM and SIGKILL."""

_LOG_END: Final = 256 << 10  # bytes
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class StartError(Exception):
    """A process cannot be started, or exited before it was ready; the message gives the reason and its log."""


class ManagedProcess:
    """A process in its own session, so that Ctrl-C reaches only `up`, which stops the processes in order.

    - `start` returns at once; `wait_until_ready` returns when a check reports that it is ready.
    - `log` has its output. Each start begins a new one; engines.logs.rotate keeps the last ones.
    - It may be started again after it has exited.
    - `stop` ends its whole process group, with SIGKILL after the grace period.
    - On Linux it receives SIGTERM when this process dies.
    """

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        """`env` is added to this process's environment."""
        self.name = name
        self.log = log
        self.argv = list(argv)
        self._env = {**os.environ, **(env or {})}
        self._process: asyncio.subprocess.Process | None = None
        # The process group to stop; None once it has been, since the id may then belong to another one.
        self._group: int | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Raises StartError."""
        self._group = None  # if this start fails, there is nothing to stop
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            rotate(self.log)
            # For appending, so that the file can be emptied while the child writes. The child has its own descriptor;
            # the parent's is closed after the start.
            with self.log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self.argv,
                    # So that no child reads from the terminal.
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._env,
                    start_new_session=True,
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                )
            self._group = self._process.pid
        except OSError as error:
            raise StartError(f"{self.name}: cannot start {self.argv[0]}: {error.strerror}") from None
        except subprocess.SubprocessError as error:  # in the child, before it executes the program
            raise StartError(f"{self.name}: cannot start {self.argv[0]}: {error}") from None

    async def wait(self) -> int:
        """Waits for its exit; returns the exit code, negative for a signal."""
        assert self._process is not None
        return await self._process.wait()

    async def wait_until_ready(
        self, is_ready: Callable[[], Awaitable[bool]], *, timeout: float, interval: float = 0.1
    ) -> None:
        """Checks every `interval` seconds.

        Raises StartError if the process exits first or is not ready within `timeout` seconds.
        """
        # One future for all rounds, so that an exit ends the wait at once.
        exited = asyncio.ensure_future(self.wait())
        try:
            async with asyncio.timeout(timeout):
                while not exited.done():
                    if await is_ready() and not exited.done():
                        return
                    await asyncio.wait([exited], timeout=interval)
        except TimeoutError:
            raise StartError(f"{self.name}: not ready after {timeout:g} s; its log: {self.log}") from None
        finally:
            exited.cancel()
        raise StartError(f"{self.name}: {describe_exit(exited.result())} before it was ready; {self._last_log_line()}")

    async def stop(self, grace_period: float = GRACE_PERIOD) -> None:
        """Stops it and its children, if it still runs; only its children if it has exited."""
        process, group = self._process, self._group
        if process is None or group is None:
            return
        _signal_group(group, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_period):
                await process.wait()
        except TimeoutError:
            pass
        _signal_group(group, signal.SIGKILL)  # children that outlive it, or the process itself after the timeout
        await process.wait()
        if self._group == group:
            self._group = None

    def kill(self) -> None:
        """Kills it and its children at once; a concurrent `stop` returns then."""
        if self._group is not None:
            _signal_group(self._group, signal.SIGKILL)

    def read_log_end(self) -> str:
        """The last part of its log; empty if there is none."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_END))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def _last_log_line(self) -> str:
        lines = [line for line in self.read_log_end().splitlines() if line.strip()]
        return f"its last line: {lines[-1].strip()[:300]} (full log: {self.log})" if lines else f"its log: {self.log}"


def _signal_group(group: int, number: signal.Signals) -> None:
    # PermissionError: a child with another user's id, which is not ours to end.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _die_with_parent() -> None:
    """Runs in the child before exec: the kernel sends SIGTERM to it when the parent dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
