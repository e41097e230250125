"""Decides whose turn it is at a GPU, in the process that holds the lease of its group.

A switch has three phases, which are in the state that all processes see: new requests of an engine wait (draining), it
is put to sleep (sleeping), and the wanted one wakes up (waking). If that fails, the first one wakes up again
(returning). What is done in a phase can be done again, so a process that takes over the lease goes on where the last
one was.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from router.core.resilience.gpu_turns import GroupMember, TurnRules, excess, next_turn, reconcile
from router.net.redis.pipeline import RedisDownError
from router.net.tasks import cancel_and_wait
from router.shared.engines.gpu_groups import LEASE, GpuGroups, GroupState, GroupView, Order, Switch
from router.upstream.engine import Engine
from router.upstream.sleep.engine_sleep import EngineSleep, NotDecidingError, SleepError

log = logging.getLogger("roundhouse.engines")

MIN_PAUSE: Final = 10.0
"""Seconds after a switch that failed until the next one; twice as long after each further one, up to MAX_PAUSE."""

MAX_PAUSE: Final = 300.0

LOOK_INTERVAL: Final = 15.0
"""Seconds between two looks at what the engines say: others may wake them up, or put them to sleep."""


_MARGIN: Final = 1.0
"""Seconds before the end of a lease in which its holder makes no call any more: one takes some time to arrive."""


class GroupEngine(msgspec.Struct, frozen=True, eq=False):
    """`need`: its part of the capacity. `sleep`: how it is put to sleep."""

    engine: Engine
    need: float
    sleep: EngineSleep

    async def is_sleeping(self) -> bool | None:
        """None if it does not say."""
        try:
            return await self.sleep.is_sleeping(self.engine)
        except SleepError as error:
            log.debug("engine %s does not say whether it sleeps: %s", self.engine.name, error)
            return None


class TurnSwitcher:
    """Of one group. `lead` is called again and again by the holder of its lease."""

    def __init__(
        self, name: str, engines: Mapping[str, GroupEngine], rules: TurnRules, records: GpuGroups, *,
        now: Callable[[], float], record_switch: Callable[[str, bool, float], None],
    ) -> None:  # fmt: skip
        """`now`: by Redis' clock. `record_switch` gets the engine that was to wake up, whether it did, and the seconds
        that it took.
        """
        self._name = name
        self._engines = engines
        self._needs = {name: member.need for name, member in engines.items()}
        self._rules = rules
        self._records = records
        self._now = now
        self._record_switch = record_switch
        self._leads_until = 0.0  # by the loop's clock
        self._action: asyncio.Task[None] | None = None
        self._acts_for = -1  # the version of the state that the action is for
        self._look: asyncio.Task[dict[str, bool | None]] | None = None
        self._looked_at = -LOOK_INTERVAL
        self._looks_for = -1
        self._failures: dict[str, tuple[int, float]] = {}  # in a row, by engine, and until when it is not woken up

    async def stop(self) -> None:
        """Another process decides."""
        action, self._action = self._action, None
        look, self._look = self._look, None
        self._looked_at = -LOOK_INTERVAL
        await cancel_and_wait(*(task for task in (action, look) if task is not None))

    async def lead(self, view: GroupView, asked_at: float) -> GroupState | None:
        """One step. The state that is in effect from now; None if it is that of `view`. Raises RedisDownError.

        `asked_at`: when the view was asked for, by the loop's clock.
        """
        state = view.state
        self._leads_until = asked_at + LEASE - _MARGIN
        if state is None:
            return await self._begin()
        if not {*state.awake, *state.sleeps, state.wakes} <= {*self._engines, ""}:
            return await self._adopt(state)
        if state.phase == "steady":
            return await self._stay(state, view)
        if state.phase == "draining":
            return await self._drain(state, view)
        return await self._act(state)

    async def _adopt(self, state: GroupState) -> GroupState | None:
        """A state with engines that have left the group since."""
        await self.stop()
        awake = {name: since for name, since in state.awake.items() if name in self._engines}
        return await self._set(state, replace(state, phase="steady", sleeps=(), wakes="", awake=awake))

    # -- while nothing changes its place ------------------------------------------------------------------------------

    async def _begin(self) -> GroupState | None:
        """The first state: what the engines say. One that cannot be asked is taken for awake."""
        found = await self._ask()
        sleeping = {name: bool(sleeps) for name, sleeps in found.items()}
        awake, strays = reconcile(self._needs, {}, sleeping, self._rules.capacity, self._now())
        self._looked_at = -LOOK_INTERVAL
        if strays:
            log.info("GPU %s: put to sleep at the start: %s", self._name, ", ".join(strays))
            self._action = asyncio.get_running_loop().create_task(self._repair(strays, ()))
        # No state has had this version: Redis may have been emptied, while processes remember what they apply.
        first = GroupState(version=int(1000 * self._now()))
        return await self._set(first, GroupState(awake=awake, since=self._now()))

    async def _ask(self) -> dict[str, bool | None]:
        answers = await asyncio.gather(*(member.is_sleeping() for member in self._engines.values()))
        return dict(zip(self._engines, answers, strict=True))

    async def _stay(self, state: GroupState, view: GroupView) -> GroupState | None:
        if self._action is not None:  # it puts right what somebody else has done
            if self._action.done():
                self._end_repair(self._action)
            return None
        if (changed := await self._compare(state, view)) is not None or self._action is not None:
            return changed
        if too_many := excess(list(self._members(state, view).values()), self._rules.capacity):
            log.info("GPU %s: there is no room for %s any more", self._name, ", ".join(too_many))
            return await self._set(
                state, replace(state, phase="draining", sleeps=too_many, wakes="", since=self._now())
            )
        if view.order is not None or view.order_text:
            return await self._carry_out(state, view, view.order)
        return await self._choose(state, view)

    async def _compare(self, state: GroupState, view: GroupView) -> GroupState | None:
        """Looks at what the engines say, in a task, and follows it. The state that results, if it changes."""
        now = self._now()
        if self._look is None:
            if now - self._looked_at >= LOOK_INTERVAL:
                self._looks_for = state.version
                self._look = asyncio.get_running_loop().create_task(self._ask())
            return None
        if not self._look.done():
            return None
        found, self._look, self._looked_at = self._look.result(), None, now
        if self._looks_for != state.version:  # a switch has begun since: an engine that it wakes up is no stray
            return None
        known = {name: sleeps for name, sleeps in found.items() if sleeps is not None}
        members = self._members(state, view)
        # Their requests wait there, for longer than they may if others had the GPU first.
        cut_off = [name for name in state.awake if known.get(name) and (members[name].people or members[name].lines)]
        for name in cut_off:
            del known[name]
        result = reconcile(self._needs, state.awake, known, self._rules.capacity, now)
        if result.strays or cut_off:
            if result.strays:
                log.info("GPU %s: awake without a turn, put to sleep: %s", self._name, ", ".join(result.strays))
            if cut_off:
                log.warning("GPU %s: asleep with requests: %s", self._name, ", ".join(cut_off))
            self._action = asyncio.get_running_loop().create_task(self._repair(result.strays, cut_off))
        if result.awake == state.awake:
            return None
        for name in sorted(state.awake.keys() ^ result.awake.keys()):
            log.info("GPU %s: engine %s is found %s", self._name, name, "awake" if name in result.awake else "asleep")
        return await self._set(state, replace(state, awake=result.awake))

    async def _repair(self, strays: Sequence[str], cut_off: Sequence[str]) -> None:
        await self._put_to_sleep(strays)
        await self._wake_up(cut_off)

    def _end_repair(self, action: "asyncio.Task[None]") -> None:
        self._action = None
        failure = action.exception()
        if isinstance(failure, SleepError):
            log.warning("GPU %s: %s", self._name, failure)
        elif failure is not None and not isinstance(failure, NotDecidingError):
            raise failure

    async def _carry_out(self, state: GroupState, view: GroupView, order: Order | None) -> GroupState | None:
        now = self._now()
        if order is None or order.engine not in self._engines:  # of another version of the configuration
            return await self._set(state, state, view.order_text)
        is_awake = order.engine in state.awake
        if order.sleeps:
            new = replace(state, phase="draining", sleeps=(order.engine,), wakes="", since=now) if is_awake else state
            return await self._set(state, new, view.order_text)
        kept = {**state.kept, order.engine: now + self._rules.min_awake}
        if is_awake:
            return await self._set(state, replace(state, kept=kept), view.order_text)
        return await self._choose(replace(state, kept=kept), view, called=order.engine)

    async def _choose(self, state: GroupState, view: GroupView, called: str = "") -> GroupState | None:
        members = self._members(state, view, called)
        turn = next_turn(list(members.values()), self._rules, self._now())
        if turn is None:
            return None
        names = ", ".join(turn.sleeps) or "no other engine"
        log.info("GPU %s: engine %s is to wake up, and to sleep: %s", self._name, turn.wakes, names)
        phase = "draining" if turn.sleeps else "waking"
        new = replace(state, phase=phase, sleeps=turn.sleeps, wakes=turn.wakes, since=self._now())
        return await self._set(state, new, view.order_text if called else b"")

    def _members(self, state: GroupState, view: GroupView, called: str = "") -> dict[str, GroupMember]:
        return {name: self._member(name, state, view, is_called=name == called) for name in self._needs}

    def _member(self, name: str, state: GroupState, view: GroupView, *, is_called: bool) -> GroupMember:
        """What all processes have at an engine, together."""
        found = (each.members.get(name) for each in view.reports.values())
        reports = [report for report in found if report is not None]
        people, lines = sum(report.people for report in reports), sum(report.lines for report in reports)
        _, paused_until = self._failures.get(name, (0, 0.0))
        waiting = reports if self._now() >= paused_until else []
        asked_at = [report.asked_at for report in waiting if report.asked_at is not None]
        if name not in state.awake and waiting and (people or lines):
            # A router that stood still has sent them since, and the engine keeps them until it wakes up.
            asked_at.append(state.asleep.get(name, self._now()))
        return GroupMember(
            name,
            self._needs[name],
            state.awake.get(name),
            people,
            lines,
            used_at=max((report.used_at for report in reports), default=0.0),
            asked_at=min(asked_at, default=None),
            line_at=min((report.line_at for report in waiting if report.line_at is not None), default=None),
            is_called=is_called,
            kept_until=state.kept.get(name, 0.0),
        )

    # -- a switch -----------------------------------------------------------------------------------------------------

    async def _drain(self, state: GroupState, view: GroupView) -> GroupState | None:
        members = self._members(state, view)
        is_called = not state.wakes or state.wakes in state.kept
        # An engine whose requests run to their end for nobody would idle for the rest of the switch.
        if not is_called and not members[state.wakes].is_wanted:  # those that waited have left
            return await self._set(state, replace(state, phase="steady"))
        # A process that has not seen this state may send one more request; one that is dead has no report any more.
        if any(report.version != state.version for report in view.reports.values()) or any(
            members[name].people or members[name].lines for name in state.sleeps
        ):
            return None
        awake = {name: since for name, since in state.awake.items() if name not in state.sleeps}
        return await self._set(state, replace(state, phase="sleeping", awake=awake))

    async def _act(self, state: GroupState) -> GroupState | None:
        """The calls to the engines, in a task: the lease is renewed meanwhile."""
        if self._action is None or self._acts_for != state.version:
            # One for an earlier state may run if another process had the lease in between.
            await self.stop()
            self._acts_for = state.version
            calls = (
                self._put_to_sleep(state.sleeps)
                if state.phase == "sleeping"
                else self._wake_up((state.wakes,) if state.phase == "waking" else state.sleeps)
            )
            self._action = asyncio.get_running_loop().create_task(calls)
        if not self._action.done():
            return None
        failure = self._action.exception()
        self._action = None
        if failure is None:
            return await self._on_done(state)
        if isinstance(failure, NotDecidingError):  # the lease is renewed since; it is done again
            return None
        if isinstance(failure, SleepError):
            return await self._on_failed(state, failure)
        raise failure

    def _check_lease(self) -> None:
        # A process that was stopped for a while goes on with its calls before it knows that another one decides.
        if asyncio.get_running_loop().time() > self._leads_until:
            raise NotDecidingError

    async def _put_to_sleep(self, names: Iterable[str]) -> None:
        for name in names:
            member = self._engines[name]
            await _named(name, member.sleep.sleep(member.engine, self._check_lease))

    async def _wake_up(self, names: Iterable[str]) -> None:
        for name in names:
            member = self._engines[name]
            await _named(name, member.sleep.wake(member.engine, self._check_lease))

    async def _on_done(self, state: GroupState) -> GroupState | None:
        now = self._now()
        if state.phase == "sleeping":
            return await self._set(state, replace(state, phase="waking" if state.wakes else "steady"))
        if state.phase == "returning":
            awake = {**state.awake, **dict.fromkeys(state.sleeps, now)}
            return await self._set(state, replace(state, phase="steady", awake=awake, since=now))
        self._failures.pop(state.wakes, None)
        seconds, name = now - state.since, state.wakes
        kept = {**state.kept, name: now + self._rules.min_awake} if name in state.kept else state.kept
        new = replace(
            state, phase="steady", awake={**state.awake, name: now}, kept=kept, since=now,
            wake_seconds={**state.wake_seconds, name: round(seconds, 1)},
        )  # fmt: skip
        if (result := await self._set(state, new)) is not None:
            log.info("GPU %s: engine %s is awake after %.1f s", self._name, name, seconds)
            self._record(Switch(now, name, state.sleeps, round(seconds, 3)))
        return result

    async def _on_failed(self, state: GroupState, failure: SleepError) -> GroupState | None:
        now, (failures, _) = self._now(), self._failures.get(state.wakes, (0, 0.0))
        self._looked_at = -LOOK_INTERVAL
        if state.phase == "returning":  # it is another one that has failed, and has its pause
            log.warning("GPU %s: %s", self._name, failure)
        else:
            pause = min(MAX_PAUSE, MIN_PAUSE * 2**failures)
            self._failures[state.wakes] = failures + 1, now + pause
            log.warning("GPU %s: %s; the next attempt is in %.0f s", self._name, failure, pause)
        # Only once: if the first one does not wake up either, the next look finds out what runs.
        if state.phase != "returning" and state.sleeps:
            new = replace(state, phase="returning")
        else:
            new = replace(state, phase="steady", since=now)
        result = await self._set(state, new)
        if result is not None and state.phase != "returning":
            self._record(Switch(now, state.wakes, state.sleeps, round(now - state.since, 3), str(failure)))
        return result

    def _record(self, switch: Switch) -> None:
        if switch.wakes:
            self._record_switch(switch.wakes, not switch.error, switch.seconds)
        try:
            self._records.add_switch(self._name, switch)
        except RedisDownError:
            log.debug("GPU %s: Redis is down; the switch is not recorded", self._name)

    async def _set(self, before: GroupState, state: GroupState, order_text: bytes = b"") -> GroupState | None:
        """The state that is in effect; None if another process has taken the lease since."""
        now = self._now()
        # The engine that is to wake up keeps its mark, however long that takes.
        coming = state.wakes if state.phase != "steady" else ""
        kept = {name: until for name, until in state.kept.items() if until > now or name == coming}
        asleep = {name: before.asleep.get(name, now) for name in self._engines if name not in state.awake}
        new = replace(state, version=before.version + 1, asleep=asleep, kept=kept)
        return new if await self._records.set_state(self._name, new, order_text) else None


async def _named(name: str, call: Awaitable[None]) -> None:
    try:
        await call
    except SleepError as error:
        raise SleepError(f"engine {name}: {error}") from error
