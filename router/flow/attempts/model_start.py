"""What it means for a request that it may wait for an engine of its model to start; see router.flow.attempts.waking."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from router.flow.attempts.wait_plan import WaitPlan
from router.flow.attempts.waking import Waking
from router.flow.caller import RunningHeartbeat
from router.flow.sharing.inflight import InFlightRequest


class ModelStart:
    """Of a request that does not wait.

    - `plan`: how the request waits; None if it does not.
    """

    plan: WaitPlan | None = None

    @property
    def is_shareable(self) -> bool:
        """Whether it may wait together with equal requests."""
        return True

    def has_engines(self, models: Sequence[str]) -> bool:
        """False: none of these models has an engine yet, and one may come."""
        return True

    def must_wait(self) -> bool:
        """Whether only the start of an engine lets the request be answered as it should be, now."""
        return False

    def show_in(self, heartbeat: RunningHeartbeat, inflight: InFlightRequest, *, must_wait: bool) -> None:
        """Lets the comments of a stream say that it waits. `must_wait`: as of now."""


NO_START: Final = ModelStart()


class AwaitedStart(ModelStart):
    """Of a request that may wait, by its plan."""

    def __init__(self, waking: Waking, plan: WaitPlan) -> None:
        self._waking = waking
        self._plan = plan
        self.plan = plan

    @property
    def is_shareable(self) -> bool:
        # If its client has said how long it waits, the others wait longer, or less long.
        return not (self._plan.is_preferred and self._waking.is_asleep(self._plan.model))

    def has_engines(self, models: Sequence[str]) -> bool:
        return self._waking.has_engines(models)

    def must_wait(self) -> bool:
        return self._waking.must_wait(self._plan)

    def show_in(self, heartbeat: RunningHeartbeat, inflight: InFlightRequest, *, must_wait: bool) -> None:
        heartbeat.expect_start(self._plan.model, partial(self._waits, inflight, must_wait=must_wait))

    def _waits(self, inflight: InFlightRequest, *, must_wait: bool) -> bool:
        """Whether an in-flight request waits for an engine to start, or has waited for it.

        `must_wait`: it was known to have to, when the client's request joined it.
        """
        if must_wait:
            return True
        if not inflight.is_leader:  # of another process, which says nothing of that
            return self.must_wait()
        return inflight.wait_plan is not None and inflight.wait_plan.deadline is not None
