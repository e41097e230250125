"""Calls of the process that decides: not after the end of its lease. Whole switches are in tests/world."""

import asyncio
from types import SimpleNamespace
from typing import Any

from router.core.resilience.gpu_turns import TurnRules
from router.flow.gpu.turn_switcher import GroupEngine, TurnSwitcher
from router.shared.engines.gpu_groups import LEASE, GroupState, GroupView
from router.upstream.sleep.engine_sleep import Check
from tests.support.virtual_time import on_virtual_time

WAKING = GroupState(version=7, phase="waking", wakes="b")


class SlowSleep:
    """`seconds` before the call that wakes the engine up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.begun = self.calls = 0

    async def wake(self, _: object, check: Check) -> None:
        self.begun += 1
        await asyncio.sleep(self._seconds)
        check()
        self.calls += 1


class Records:
    def __init__(self) -> None:
        self.states: list[GroupState] = []

    async def set_state(self, _: str, state: GroupState, __: bytes) -> bool:
        self.states.append(state)
        return True

    def add_switch(self, *_: object) -> None:
        pass


def switcher(sleep: SlowSleep, records: Any) -> TurnSwitcher:
    fake: Any = sleep
    engine: Any = SimpleNamespace(name="b")
    return TurnSwitcher(
        "gpu0", {"b": GroupEngine(engine, 1.0, fake)}, TurnRules(1.0, 30.0, 120.0), records,
        now=asyncio.get_running_loop().time, record_switch=lambda *_: None,
    )  # fmt: skip


def view(state: GroupState) -> GroupView:
    return GroupView(True, state, None, b"", {}, {})


async def lead(leading: TurnSwitcher) -> None:
    await leading.lead(view(WAKING), asyncio.get_running_loop().time())
    await asyncio.sleep(0)


@on_virtual_time
async def test_a_call_that_is_due_after_the_end_of_the_lease_is_not_made() -> None:
    sleep, records = SlowSleep(LEASE), Records()
    leading = switcher(sleep, records)
    await lead(leading)
    await asyncio.sleep(LEASE + 1)
    assert (sleep.begun, sleep.calls) == (1, 0)
    await lead(leading)
    assert not records.states, "it has not failed"
    await lead(leading)
    assert sleep.begun == 2, "the lease is renewed, so it is done again"
    await leading.stop()


@on_virtual_time
async def test_a_call_is_made_while_the_lease_is_renewed() -> None:
    sleep, records = SlowSleep(LEASE), Records()
    leading = switcher(sleep, records)
    for _ in range(round(LEASE) + 3):
        await lead(leading)
        await asyncio.sleep(1)
    assert sleep.calls == 1
    assert [state.phase for state in records.states] == ["steady"]
