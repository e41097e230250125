"""Lets the engines of a GPU take turns: each process applies what is decided, and one of them decides."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from router.flow.gpu.engine_processes import EngineProcesses
from router.flow.gpu.turn_switcher import GroupEngine, TurnSwitcher
from router.net.redis.pipeline import RedisDownError
from router.shared.engines.gpu_groups import GpuGroups, GroupReport, GroupState, MemberReport
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.engines")

INTERVAL: Final = 0.25
"""Seconds between two exchanges."""

SWITCH_INTERVAL: Final = 0.05
"""The same during a switch."""


ALONE_INTERVAL: Final = 2.0
"""Seconds between two looks at the engines while Redis is down."""


class Demand(msgspec.Struct, frozen=True):
    """What this process has at an engine, in all its configurations: requests in flight, and lines among them.

    And since when people and lines wait for it, by Redis' clock.
    """

    in_flight: int = 0
    lines: int = 0
    asked_at: float | None = None
    line_at: float | None = None


class TurnTaker:
    """Of one group in one process."""

    def __init__(
        self, name: str, engines: Mapping[str, GroupEngine], records: GpuGroups, switcher: TurnSwitcher,
        processes: EngineProcesses, *, demand: Callable[[Engine], Demand], set_rest: Callable[[str, str], None],
        now: Callable[[], float], on_awake: Callable[[Engine], Awaitable[None]],
    ) -> None:  # fmt: skip
        """`demand` for an engine. `set_rest` gets an engine's name; see Engine.set_rest. `now`: by Redis' clock.

        `on_awake`: its engine may get requests again.
        """
        self._name = name
        self._engines = engines
        self._records = records
        self._switcher = switcher
        self._processes = processes
        self._demand = demand
        self._set_rest = set_rest
        self._now = now
        self._on_awake = on_awake
        self._state: GroupState | None = None
        self._looked_at = -ALONE_INTERVAL
        self._has_looked = False  # an engine rests though it does not by the state
        self._used_at = dict.fromkeys(engines, 0.0)

    @property
    def name(self) -> str:
        return self._name

    @property
    def state(self) -> GroupState | None:
        """What this process applies."""
        return self._state

    @property
    def engines(self) -> Sequence[str]:
        """Their names."""
        return list(self._engines)

    async def run(self) -> None:
        try:
            while True:
                await self.step()
                in_switch = self._state is not None and self._state.phase != "steady"
                await asyncio.sleep(SWITCH_INTERVAL if in_switch else INTERVAL)
        finally:
            await self._switcher.stop()

    async def step(self) -> None:
        """One exchange, and what follows from it. While Redis is down, the last state holds."""
        try:
            asked_at = asyncio.get_running_loop().time()
            view = await self._records.exchange(self._name, self._report())
            self._processes.update(view.state.version if view.state is not None else -1, view.processes)
            if view.state is not None:
                await self._apply(view.state)
            if view.is_holder:
                state = await self._switcher.lead(view, asked_at)
                if state is not None:
                    await self._apply(state)
            else:  # another one goes on
                await self._switcher.stop()
        except RedisDownError:
            log.debug("GPU %s: Redis is down; no engine changes its state", self._name)
            await self._look_alone()

    async def _look_alone(self) -> None:
        """Without Redis, this process learns of no switch. Another one, which still reaches Redis, may make one.

        An engine that sleeps gets no request from here; one that does not say that it sleeps keeps its state.
        """
        now = asyncio.get_running_loop().time()
        if self._state is None or now - self._looked_at < ALONE_INTERVAL:
            return
        self._looked_at = now
        for name, member in self._engines.items():
            if not member.engine.rest and await member.is_sleeping():
                log.info("GPU %s: engine %s is found asleep, and Redis is down", self._name, name)
                self._set_rest(name, "asleep")
                self._has_looked = True

    def _report(self) -> GroupReport:
        version = self._state.version if self._state is not None else -1
        return GroupReport(version, {name: self._member_report(name) for name in self._engines})

    def _member_report(self, name: str) -> MemberReport:
        demand = self._demand(self._engines[name].engine)
        # A line that has ended may still count as begun.
        people = max(0, demand.in_flight - demand.lines)
        if people:
            self._used_at[name] = self._now()
        return MemberReport(people, demand.lines, self._used_at[name], demand.asked_at, demand.line_at)

    async def _apply(self, state: GroupState) -> None:
        # Not only the version: a failover of Redis may have lost the state that had it before.
        if state == self._state and not self._has_looked:
            return
        self._state, self._has_looked = state, False
        for name, member in self._engines.items():
            rest = state.rest_of(name)
            # Of the engine and not of the last state: a reload may have given this name a new engine.
            was_resting = bool(member.engine.rest)
            self._set_rest(name, rest)
            if was_resting and not rest:
                await self._on_awake(member.engine)
