"""Keeps an engine running: starts it, waits until it is ready, and starts it again when it exits or hangs."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from engines.gpu_memory import is_out_of_memory, with_less_memory
from engines.logs import rotate_if_large
from engines.process import ManagedProcess, StartError, describe_exit
from engines.restarts import MAX_FAILED_STARTS, STABLE_AFTER, GiveUp, Run, decide_restart

HEALTH_INTERVAL: Final = 5.0
"""Seconds between two health checks of an engine that serves."""

UNRESPONSIVE_AFTER: Final = 60.0
"""Seconds without a successful health check after which a running engine is killed."""

# Runs that `decide_restart` can depend on: the wait stops growing far earlier.
_KEPT_RUNS: Final = 16 + MAX_FAILED_STARTS


class EngineSupervisor:
    """Supervises one engine.

    - `start` returns when the engine is ready, and raises StartError if it cannot be started.
    - `run` then restarts it whenever it exits, after a growing wait, and returns when it gives up; see decide_restart.
    - An engine whose health checks fail for UNRESPONSIVE_AFTER seconds is killed, and then started again.
    - What is left of the engine's process group is killed before a restart, since it may hold the port or GPU memory.
    - A start that fails for want of GPU memory is tried once more with less, for as long as this process lives.
    """

    def __init__(
        self, process: ManagedProcess, is_ready: Callable[[], Awaitable[bool]], *, ready_timeout: float,
        poll_interval: float, report: Callable[[str], None], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        health_interval: float = HEALTH_INTERVAL, unresponsive_after: float = UNRESPONSIVE_AFTER,
    ) -> None:  # fmt: skip
        """`ready_timeout` and `poll_interval` in seconds; `report` gets a line for a person about each event."""
        self._process = process
        self._is_ready = is_ready
        self._ready_timeout = ready_timeout
        self._poll_interval = poll_interval
        self._report = report
        self._sleep = sleep
        self._health_interval = health_interval
        self._unresponsive_after = unresponsive_after
        self._runs: list[Run] = []
        self._uses_less_memory = False

    @property
    def name(self) -> str:
        return self._process.name

    async def start(self) -> None:
        """Raises StartError; then nothing of the engine runs any more."""
        try:
            await self._start_once()
        except StartError:
            less = self._arguments_with_less_memory()
            if less is None:
                raise
            self._uses_less_memory = True
            self._process.argv = less
            option = " ".join(less[-2:])
            self._report(f"{self.name}: the GPU has too little free memory; trying once more with {option}")
            await self._start_once()

    async def run(self) -> None:
        """Returns when the engine is not started again. Call it after `start`."""
        ready_at: float | None = time.monotonic()
        while True:
            if ready_at is not None:
                how = describe_exit(await self._wait_for_exit())
                self._add_run(Run(time.monotonic() - ready_at))
                self._report(f"{self.name} {how}; its log: {self._process.log}")
            decision = decide_restart(self._runs)
            if isinstance(decision, GiveUp):
                self._report(f"{self.name} is not started again: {decision.reason}; its log: {self._process.log}")
                return
            await self._process.stop()  # what is left of its process group
            self._report(f"{self.name}: restart in {decision.delay:g} s")
            await self._sleep(decision.delay)
            try:
                await self.start()
            except StartError as error:
                self._report(str(error))
                self._add_run(Run(None))
                ready_at = None
            else:
                ready_at = time.monotonic()
                self._report(f"{self.name} is ready again")

    async def _start_once(self) -> None:
        try:
            await self._process.start()
            await self._process.wait_until_ready(
                self._is_ready, timeout=self._ready_timeout, interval=self._poll_interval
            )
        except BaseException:
            await self._process.stop()
            raise

    async def _wait_for_exit(self) -> int:
        """Also looks after the engine until then: its health, and the size of its log."""
        exited = asyncio.ensure_future(self._process.wait())
        healthy_at = time.monotonic()
        try:
            while not (await asyncio.wait([exited], timeout=self._health_interval))[0]:
                await asyncio.to_thread(rotate_if_large, self._process.log)
                if await self._is_ready():
                    healthy_at = time.monotonic()
                elif time.monotonic() - healthy_at >= self._unresponsive_after:
                    self._report(f"{self.name} failed its health checks for {self._unresponsive_after:g} s; killing it")
                    self._process.kill()
                    healthy_at = time.monotonic()
            return exited.result()
        finally:
            exited.cancel()

    def _arguments_with_less_memory(self) -> list[str] | None:
        if self._uses_less_memory or not is_out_of_memory(self._process.read_log_end()):
            return None
        return with_less_memory(self._process.argv)

    def _add_run(self, run: Run) -> None:
        if run.ready_seconds is not None and run.ready_seconds >= STABLE_AFTER:
            self._runs.clear()
        self._runs = [*self._runs, run][-_KEPT_RUNS:]
