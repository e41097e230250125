"""Engines of a GPU whose processes a launcher stops and starts, as the group's state says."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from router.shared.engines.gpu_groups import ProcessReport, ProcessState
from router.upstream.engine import Engine
from router.upstream.sleep.engine_sleep import Check, EngineSleep, SleepError

_START_TIMEOUT: Final = 1800.0  # seconds: as for any start of vLLM
_STOP_TIMEOUT: Final = 120.0  # seconds; a launcher kills a process that does not end
_ANSWER_TIMEOUT: Final = 15.0  # seconds until a launcher must have reported on the engine


class EngineProcesses:
    """What the launchers report. `version`: of the group's state that they are to apply."""

    def __init__(self) -> None:
        self.version = -1
        self._reports: Mapping[str, ProcessReport] = MappingProxyType({})
        self._changed = asyncio.Event()

    def update(self, version: int, reports: Mapping[str, ProcessReport]) -> None:
        self.version = version
        self._reports = reports
        self._changed.set()

    def has(self, engine: str) -> bool:
        return engine in self._reports

    def state_of(self, engine: str) -> ProcessState | None:
        report = self._reports.get(engine)
        return report.state if report is not None else None

    async def wait_until(self, engine: str, wanted: Sequence[ProcessState], timeout: float) -> ProcessState:
        """The first of these states that it is in. Raises SleepError."""
        version, loop = self.version, asyncio.get_running_loop()
        began_at = loop.time()
        while True:
            report = self._reports.get(engine)
            # One for an earlier version may say "running" of a process that is about to be stopped.
            if report is not None and report.version >= version:
                if report.state in wanted:
                    return report.state
                if report.state == "failed":
                    raise SleepError(report.cause or "its process cannot be started")
            most = timeout if report is not None else _ANSWER_TIMEOUT
            self._changed.clear()
            try:
                async with asyncio.timeout_at(began_at + most):
                    await self._changed.wait()
            except TimeoutError:
                raise SleepError(
                    f"its process is not {' or '.join(wanted)} after {most:g} s"
                    if report is not None
                    else "no launcher reports on its process: `roundhouse up` must run it"
                ) from None


class ProcessSleep:
    """The engine sleeps while its process does not run."""

    def __init__(self, processes: EngineProcesses) -> None:
        self._processes = processes

    async def sleep(self, engine: Engine, _: Check) -> None:
        await self._processes.wait_until(engine.name, ("stopped",), _STOP_TIMEOUT)

    async def wake(self, engine: Engine, _: Check) -> None:
        await self._processes.wait_until(engine.name, ("running",), _START_TIMEOUT)

    async def is_sleeping(self, engine: Engine) -> bool | None:
        state = self._processes.state_of(engine.name)
        return None if state is None else state != "running"


class LaunchedSleep:
    """A launcher runs the process. It does not start one again that exits while the engine sleeps, but before it wakes.

    `sleep`: of the process that runs.
    """

    def __init__(self, sleep: EngineSleep, processes: EngineProcesses) -> None:
        self._sleep = sleep
        self._processes = processes

    async def sleep(self, engine: Engine, check: Check) -> None:
        # One that exits, or has not started yet, is stopped by its launcher, and would not answer.
        state: ProcessState = "running"
        if self._processes.has(engine.name):
            state = await self._processes.wait_until(engine.name, ("stopped", "running"), _STOP_TIMEOUT)
        if state == "running":
            await self._sleep.sleep(engine, check)

    async def wake(self, engine: Engine, check: Check) -> None:
        if self._processes.has(engine.name):
            await self._processes.wait_until(engine.name, ("running",), _START_TIMEOUT)
        await self._sleep.wake(engine, check)

    async def is_sleeping(self, engine: Engine) -> bool | None:
        return True if self._processes.state_of(engine.name) == "stopped" else await self._sleep.is_sleeping(engine)
