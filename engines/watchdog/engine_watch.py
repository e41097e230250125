"""Watches one engine: reads its metrics again and again, decides, acts, and reports."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from engines.watchdog.decision import Decision, WatchPolicy, WatchState, decide
from engines.watchdog.drains import DrainError, Drains
from engines.watchdog.observation import Observation, observe
from engines.watchdog.periodic import repeat
from engines.watchdog.planned_restart import Outcome
from engines.watchdog.record import Record
from engines.watchdog.scrape import Scrape


class EngineAnnouncer(Protocol):
    """What the watchdog needs of engines.announcer.Announcer."""

    async def change(self, name: str, **changes: Any) -> None: ...


class Restarter(Protocol):
    """What it needs of PlannedRestart."""

    async def run(self, *, stalled: bool) -> Outcome: ...


class EngineWatch:
    """Watches one engine until it is cancelled.

    - Each decision to do something is recorded before it is done, and so is what came of it.
    - Of all watches with the same `turn`, one reads, decides and acts at a time, so that each knows what another has
      drained.
    - An engine that a watchdog has left drained for a restart is resumed.
    """

    def __init__(
        self, engine: str, policy: WatchPolicy, *, scrape: Callable[[], Awaitable[Scrape]], drains: Drains,
        restart: Restarter, others_available: Callable[[], Awaitable[bool]], is_hot: Callable[[], bool], record: Record,
        announcer: EngineAnnouncer, turn: asyncio.Lock, interval: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        """`interval` between two readings, in seconds. The clock is that of the readings."""
        self._engine = engine
        self._policy = policy
        self._scrape = scrape
        self._drains = drains
        self._restart = restart
        self._others_available = others_available
        self._is_hot = is_hot
        self._record = record
        self._announcer = announcer
        self._turn = turn
        self._interval = interval
        self._sleep = sleep
        self._state = WatchState()
        self._last: Scrape | None = None
        self._restarts: Counter[str] = Counter()
        self._may_be_drained = True  # drained, by this watchdog or by one that was killed

    async def run(self) -> None:
        await repeat(self.step, engine=self._engine, record=self._record, interval=self._interval, sleep=self._sleep)

    async def step(self) -> None:
        """One reading, and what follows from it."""
        async with self._turn:
            await self._resume_once()
            scrape = await self._scrape()
            seen = observe(self._last, scrape, hot=self._is_hot())
            self._last = scrape
            others = await self._others_available()
            self._state, decision = decide(self._state, seen, self._policy, scrape.at, others_available=others)
            if decision.action != "keep":
                await self._act(decision, seen)
                self._last = None  # the engine may be another process, and time has passed

    async def _act(self, decision: Decision, seen: Observation) -> None:
        reason = decision.reason or ""
        await self._record.write(self._engine, decision.action, decision.text, seen, reason=reason)
        if decision.action == "drain":
            await self._drain(reason)
        elif decision.action == "drain and restart":
            await self._drain_and_restart(reason)

    async def _drain(self, reason: str) -> None:
        try:
            await self._drains.drain(self._engine)
        except DrainError as error:
            await self._record.write(self._engine, "page", f"it cannot be drained: {error}", reason=reason)

    async def _drain_and_restart(self, reason: str) -> None:
        self._may_be_drained = True
        outcome = await self._restart.run(stalled=reason == "stalled")
        if outcome.event == "restarted":
            self._restarts[reason] += 1
            await self._announcer.change(self._engine, restarts=dict(self._restarts))
            await self._record.write(self._engine, "restarted", outcome.problem, reason=reason)
        else:
            await self._record.write(self._engine, "page", f"not restarted: {outcome.problem}", reason=reason)

    async def resume_if_drained(self) -> None:
        """Returns when Redis has answered."""
        await self._resume_once()
        while self._may_be_drained:
            await self._sleep(self._interval)
            await self._resume_once()

    async def _resume_once(self) -> None:
        if not self._may_be_drained:
            return
        try:
            if await self._drains.resume_after_restart(self._engine):
                await self._record.write(self._engine, "resumed", "a restart or a switch had left it drained")
        except DrainError:  # tried again at the next step
            return
        self._may_be_drained = False
