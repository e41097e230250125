"""What a switch does about the watchdog and restarts of the old engine."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engines.announcer import AnnounceError
from engines.switch.plan import SwitchPlan
from engines.switch.replacement import Replacement, Timing
from engines.switch.request import SwitchFailedError, SwitchRefusedError, SwitchRequest


def replacement(fleet: Any) -> Replacement:
    plan = SwitchPlan(engine="e0", model="llama", revision="new", configured_revision="", versions={})
    spec: Any = SimpleNamespace(name="e0")
    client: Any = None
    return Replacement(
        plan, SwitchRequest(engine="e0"), [spec], fleet, after=False, client=client, report=lambda _: None,
        timing=Timing(),
    )  # fmt: skip


async def test_an_engine_that_is_being_restarted_is_not_switched_and_is_watched_again() -> None:
    watched = {"e0"}

    async def end_watch(engine: Any) -> None:
        watched.remove(engine.name)

    old = SimpleNamespace(name="e0", supervisor=SimpleNamespace(is_restarting=True))
    fleet: Any = SimpleNamespace(
        engines={"e0": old}, end_watch=end_watch, watch=lambda engine: watched.add(engine.name)
    )
    with pytest.raises(SwitchRefusedError, match="e0 is being restarted; try again when it is ready"):
        await replacement(fleet).prepare([], 0)
    assert watched == {"e0"}


async def test_after_a_failed_take_over_the_old_engines_are_announced_again_at_once() -> None:
    # Redis may have executed a take-over whose reply was lost.
    steps: list[str] = []

    class Announcer:
        async def take_over(self, engines: Sequence[object], revisions: object) -> None:
            raise AnnounceError("Redis: timeout")

        async def renew(self) -> None:
            steps.append("renew")

    fleet: Any = SimpleNamespace(
        engines={"e0": SimpleNamespace(name="e0")}, announcer=Announcer(), watch=lambda _: steps.append("undo")
    )
    with pytest.raises(SwitchFailedError, match="Redis: timeout"):
        await replacement(fleet).take_over()
    assert steps == ["renew", "undo"]
