"""Keeps an engine running: starts it, waits until it is ready, and starts it again when it exits or hangs."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from engines.gpu.gpu_memory import is_out_of_memory, with_less_memory
from engines.logs import rotate_if_large
from engines.process import ManagedProcess, StartError, describe_exit
from engines.restarts import INITIAL_DELAY, MAX_FAILED_STARTS, STABLE_AFTER, GiveUp, Run, decide_restart

HEALTH_INTERVAL: Final = 5.0
"""Seconds between two health checks of an engine that serves."""

UNRESPONSIVE_AFTER: Final = 60.0
"""Seconds of failing health checks after which a running engine is killed."""

MIN_FAILED_CHECKS: Final = 6
"""Failed checks in a row that there must be as well: time also passes while this process is suspended."""

# Runs that `decide_restart` can depend on: the wait stops growing far earlier.
_KEPT_RUNS: Final = 16 + MAX_FAILED_STARTS


class RestartRefusedError(Exception):
    """The engine cannot be restarted now."""


class EngineSupervisor:
    """Supervises one engine.

    - `start` returns when the engine is ready, and raises StartError if it cannot be started.
    - `run` then restarts it whenever it exits, after a growing wait; see decide_restart. When it gives up, it waits for
      `restart`.
    - An engine whose health checks fail for UNRESPONSIVE_AFTER seconds is killed, and then started again.
    - What is left of the engine's process group is killed before a restart, since it may hold the port or GPU memory.
    - A start that fails for want of GPU memory is tried once more with less. If that succeeds, it stays so.
    """

    def __init__(
        self, process: ManagedProcess, is_ready: Callable[[], Awaitable[bool]], *, ready_timeout: float,
        poll_interval: float, report: Callable[[str], None], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        health_interval: float = HEALTH_INTERVAL, unresponsive_after: float = UNRESPONSIVE_AFTER,
        on_restarted: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        """`ready_timeout` and `poll_interval` in seconds; `report` gets a line for a person about each event.

        `on_restarted` is called when the engine is ready again.
        """
        self._process = process
        self._is_ready = is_ready
        self._ready_timeout = ready_timeout
        self._poll_interval = poll_interval
        self._report = report
        self._sleep = sleep
        self._health_interval = health_interval
        self._unresponsive_after = unresponsive_after
        self._on_restarted = on_restarted
        self._runs: list[Run] = []
        self._uses_less_memory = False
        self._is_starting = False
        self._request: asyncio.Future[None] | None = None  # of the restart under way, if one was requested
        self._requested = asyncio.Event()
        self._kills = False  # whether the restart under way leaves the engine no time to end

    @property
    def name(self) -> str:
        return self._process.name

    @property
    def is_restarting(self) -> bool:
        """Whether a restart that was requested is under way."""
        return self._request is not None

    @property
    def is_starting(self) -> bool:
        """Whether `run` starts it again, so that it may run and not be ready."""
        return self._is_starting

    async def start(self) -> None:
        """Raises StartError; then nothing of the engine runs any more."""
        try:
            await self._start_once()
        except StartError:
            less = self._arguments_with_less_memory()
            if less is None:
                raise
            option = " ".join(less[-2:])
            self._report(f"{self.name}: the GPU has too little free memory; trying once more with {option}")
            await self._sleep(INITIAL_DELAY)  # the memory of the first try may not be free yet
            argv, self._process.argv = self._process.argv, less
            try:
                await self._start_once()
            except BaseException:  # also after a cancellation
                self._process.argv = argv
                raise
            self._uses_less_memory = True

    async def run(self) -> None:
        """Runs until it is cancelled. Call it after `start`."""
        ready_at: float | None = time.monotonic()
        try:
            while True:
                if ready_at is not None:
                    await self._wait_for_exit_or_request(ready_at)
                if self._kills:
                    self._process.kill()
                await self._process.stop()  # the engine if it is to be restarted, or what is left of its process group
                self._kills = False
                await self._wait_before_restart()
                ready_at = time.monotonic() if await self._start_again() else None
        finally:
            if self._request is not None:
                self._request.cancel()

    async def restart(self, *, kill: bool = False) -> None:
        """Stops the engine and starts it again, at once also if it waits for a restart or has been given up.

        `kill`: with SIGKILL, for an engine that still has requests. Then routers see at once that its connections
        break, and other engines go on with its streams. vLLM 0.32 leaves them open and silent after a SIGTERM.

        Returns when it is ready. Raises StartError if it cannot be started; it is then restarted as after an exit.
        Raises RestartRefusedError while it is being started. `run` must be running.
        """
        if self._is_starting or self._request is not None:
            raise RestartRefusedError(f"{self.name} is being started already")
        self._kills = kill
        self._request = asyncio.get_running_loop().create_future()
        # `run` stops the process: from here, a signal could hit the next process, which `run` may have started by then.
        self._requested.set()
        await self._request

    async def _wait_for_exit_or_request(self, ready_at: float) -> None:
        code = await self._wait_for_exit()
        if code is None:
            self._report(f"{self.name}: restarting on request")
        else:
            self._add_run(Run(time.monotonic() - ready_at))
            self._report(f"{self.name} {describe_exit(code)}; its log: {self._process.log}")

    async def _wait_before_restart(self) -> None:
        if self._request is not None:
            return
        decision = decide_restart(self._runs)
        if isinstance(decision, GiveUp):
            self._report(f"{self.name} is not started again: {decision.reason}; its log: {self._process.log}")
            await self._requested.wait()
            return
        self._report(f"{self.name}: restart in {decision.delay:g} s")
        waits = [asyncio.ensure_future(self._sleep(decision.delay)), asyncio.ensure_future(self._requested.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _start_again(self) -> bool:
        """Whether the engine is ready."""
        self._is_starting = True
        failure: StartError | None = None
        try:
            await self.start()
            if self._on_restarted is not None:
                await self._on_restarted()
        except Exception as error:  # noqa: BLE001 - the last line of defence, see below
            # The last line of defence: an engine must not lose its supervision. All but StartError is unexpected.
            failure = error if isinstance(error, StartError) else StartError(f"{self.name}: cannot start: {error!r}")
            self._report(str(failure))
            self._add_run(Run(None))
        else:
            self._report(f"{self.name} is ready again")
        finally:
            self._is_starting = False
        request, self._request = self._request, None
        self._requested.clear()
        if request is not None and not request.done():  # done: its caller was cancelled
            request.set_exception(failure) if failure is not None else request.set_result(None)
        return failure is None

    async def _start_once(self) -> None:
        if await self._is_healthy():
            raise StartError(f"{self.name}: another process answers at its address")
        try:
            await self._process.start()
            await self._process.wait_until_ready(
                self._is_healthy, timeout=self._ready_timeout, interval=self._poll_interval
            )
        except StartError:  # after a cancellation, `up` stops the process
            await self._process.stop()
            raise

    async def _is_healthy(self) -> bool:
        try:
            return await self._is_ready()
        except Exception:  # noqa: BLE001 - the last line of defence, see below
            # The last line of defence: a check that raises must not end the supervision.
            return False

    async def _wait_for_exit(self) -> int | None:
        """The exit code, or None if a restart was requested first.

        Until then, it checks the engine's health and the size of its log.
        """
        exited = asyncio.ensure_future(self._process.wait())
        requested = asyncio.ensure_future(self._requested.wait())
        failing_since = 0.0
        failed_checks = 0
        try:
            while True:
                await asyncio.wait(
                    [exited, requested], timeout=self._health_interval, return_when=asyncio.FIRST_COMPLETED
                )
                if exited.done():
                    return exited.result()
                if requested.done():
                    return None
                await asyncio.to_thread(rotate_if_large, self._process.log)
                if await self._is_healthy():
                    failed_checks = 0
                    continue
                failing_since = failing_since if failed_checks else time.monotonic()
                failed_checks += 1
                failing_for = time.monotonic() - failing_since
                if failed_checks >= MIN_FAILED_CHECKS and failing_for >= self._unresponsive_after:
                    self._report(f"{self.name} failed its health checks for {failing_for:.0f} s; killing it")
                    self._process.kill()
                    failed_checks = 0
        finally:
            exited.cancel()
            requested.cancel()

    def _arguments_with_less_memory(self) -> list[str] | None:
        if self._uses_less_memory or not is_out_of_memory(self._process.read_log_end()):
            return None
        return with_less_memory(self._process.argv)

    def _add_run(self, run: Run) -> None:
        if run.ready_seconds is not None and run.ready_seconds >= STABLE_AFTER:
            self._runs.clear()
        self._runs = [*self._runs, run][-_KEPT_RUNS:]
