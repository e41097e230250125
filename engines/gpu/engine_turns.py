"""The engines of a launcher that take turns at GPUs: it does what the routers decide.

A router decides which engines of a group are awake, see router.shared.engines.gpu_groups. The launcher stops and starts
the processes of engines that sleep so. Of the others, it ends the supervision while they sleep: one that exits then is
started again only when it is to wake up, since it would take memory that another engine has.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from engines.process import StartError
from engines.spec import GpuSpec
from router.shared.engines.gpu_groups import GroupState, ProcessReport, ProcessState
from router.shared.engines.launcher import LauncherRedis

INTERVAL: Final = 0.25
"""Seconds between two reports of a launcher."""


class TurnFleet(Protocol):
    """What is needed of an EngineFleet; each for an engine that it has, by its name."""

    def has(self, name: str) -> bool: ...

    def stops_to_sleep(self, name: str) -> bool: ...

    def is_running(self, name: str) -> bool:
        """Whether it is ready."""

    async def rouse(self, name: str) -> None:
        """Starts it if it does not run, and supervises it. Raises StartError."""

    async def rest(self, name: str, *, stops: bool) -> None:
        """Ends its supervision, and its process if it `stops`, or is not ready."""


class _Member:
    """`is_awake`: whether it is to be; None before that is known. `failure`: why it was not started."""

    def __init__(self) -> None:
        self.is_awake: bool | None = None
        self.failure = ""
        self.change: asyncio.Task[None] | None = None

    @property
    def is_changing(self) -> bool:
        return self.change is not None and not self.change.done()


class EngineTurns:
    """Of one launcher. While Redis is down, nothing changes."""

    def __init__(
        self, gpus: Sequence[GpuSpec], redis_url: str, fleet: TurnFleet, report: Callable[[str], None]
    ) -> None:
        """`report` gets a line for a person about each event. Raises RedisUrlError."""
        self._gpus = gpus
        self._redis = LauncherRedis(redis_url)
        self._fleet = fleet
        self._report = report
        self._members = {name: _Member() for gpu in gpus for name in gpu.engines}
        self._versions: dict[str, int] = {}  # by group, of the state that is applied

    async def first_awake(self, gpu: GpuSpec, engines: Sequence[str]) -> list[str]:
        """Of these engines, those that are to be awake at the start: those that were, else the first ones."""
        state = await self._redis.turns_of(gpu.name)
        return gpu.first(engines if state is None else state.running)

    def is_resting(self, name: str) -> bool:
        member = self._members.get(name)
        return member is not None and member.is_awake is False

    def begin(self, name: str, *, is_awake: bool) -> None:
        """It has been started, or left alone, at the start of the fleet."""
        self._members[name].is_awake = is_awake

    async def run(self) -> None:
        while True:
            for gpu in self._gpus:
                await self._step(gpu)
            await asyncio.sleep(INTERVAL)

    async def aclose(self) -> None:
        changes = [member.change for member in self._members.values() if member.change is not None]
        for change in changes:
            change.cancel()
        await asyncio.gather(*changes, return_exceptions=True)
        await self._redis.aclose()

    async def _step(self, gpu: GpuSpec) -> None:
        state: GroupState | None = None
        version = self._versions.get(gpu.name, -1)
        for name in gpu.engines:
            if self._fleet.has(name):
                report = ProcessReport(version, self._state_of(name), self._members[name].failure)
                state = await self._redis.report_process(gpu.name, name, report)
        if state is not None and state.version != version:
            self._versions[gpu.name] = state.version
            for name in gpu.engines:
                if self._fleet.has(name):
                    self._change(name, is_awake=name in state.running)

    def _state_of(self, name: str) -> ProcessState:
        member = self._members[name]
        if member.is_changing:
            return "changing"
        if member.failure:
            return "failed"
        if self._fleet.is_running(name):
            return "running"
        return "changing" if member.is_awake else "stopped"

    def _change(self, name: str, *, is_awake: bool) -> None:
        member = self._members[name]
        # A new state in which it is to be awake, after a start that failed, is another attempt of the routers.
        if is_awake == member.is_awake and not (is_awake and member.failure):
            return
        member.is_awake, member.failure = is_awake, ""
        member.change = asyncio.get_running_loop().create_task(self._carry_out(name, member, member.change))

    async def _carry_out(self, name: str, member: _Member, earlier: "asyncio.Task[None] | None") -> None:
        is_awake = member.is_awake
        if earlier is not None:
            # A start that nobody waits for any more. What it has left is ended below.
            earlier.cancel()
            await asyncio.gather(earlier, return_exceptions=True)
        try:
            if is_awake:
                await self._fleet.rouse(name)
            else:
                await self._fleet.rest(name, stops=self._fleet.stops_to_sleep(name))
        except StartError as error:
            member.failure = str(error)
            self._report(f"{name} does not wake up: {error}")
