"""Whether an engine works, as far as can be seen from outside: its checks, its counters, and what its requests get.

A request that gets no bytes may wait for an engine that has stopped, or for one that computes: a long prompt, a full
queue, arguments of a tool that a parser holds back. One clock cannot distinguish these. So the limits for silence count
from the last sign of life: a byte of the response (comments too), or progress of the engine. An engine makes progress
if it has running requests, and its counters have moved since the check before that it answered. One without counters
makes none, so there the limits count from the last byte.

All instants are seconds of one monotonic clock.
"""

from enum import Enum
from math import inf
from typing import Final

import msgspec
from msgspec.structs import replace

LOST_CHECKS: Final = 2
"""Failed checks in a row after which an engine has lost its requests. A single one may be a pause, or a lost packet."""

UNREAD_CHECKS: Final = 2
"""Checks in a row without counters after which it is unknown whether an engine makes progress."""

PROGRESS_TTL: Final = 5.0
"""Seconds for which progress counts at least; two readings of an engine's counters may be four seconds apart."""

SAME_TIME: Final = 1.0
"""Seconds. Bytes of another response that came so soon after this one's last may be of the same moment."""


class CheckResult(Enum):
    """- UP: it answers that it is well.
    - DOWN: it does not answer, or that it is not well.
    - CLOSED: it accepts no connections. It may be stopping, and finish what it has; if it has died, the connections of
      its requests break by themselves.
    """

    UP = "up"
    DOWN = "down"
    CLOSED = "closed"


class SignsOfLife(msgspec.Struct, frozen=True):
    """What the checks of one engine have shown.

    - `checked_at`: the last one with counters. `counters`: what it read; empty if there was none.
    - `unread_checks`: those in a row whose counters could not be read, or were missing after there had been some.
    - `progressed_at`: the last one that found progress. `progressed_after`: the one before; progress came after it.
    - `down_checks`: failed ones in a row. `down_since`: the first of these.
    """

    checked_at: float = -inf
    counters: tuple[float, ...] = ()
    unread_checks: int = 0
    progressed_at: float = -inf
    progressed_after: float = -inf
    down_checks: int = 0
    down_since: float = inf

    def on_check(
        self, now: float, result: CheckResult, running: float | None = None, counters: tuple[float, ...] | None = ()
    ) -> "SignsOfLife":
        """`running`: requests that it computes; None is unknown. `counters`: None if they could not be read."""
        if result is CheckResult.DOWN:
            since = now if self.down_checks == 0 else self.down_since
            return replace(self, down_checks=self.down_checks + 1, down_since=since)
        up = replace(self, down_checks=0, down_since=inf)
        if result is CheckResult.CLOSED:
            return up
        if not counters:
            is_unread = counters is None or self.has_had_counters
            return replace(up, unread_checks=self.unread_checks + 1 if is_unread else 0)
        # After a failed check it may be another process: then the first counter, which never falls in one, is less.
        is_same = self.down_checks == 0 or counters[:1] >= self.counters[:1]
        if running and self.counters and counters != self.counters and is_same:
            up = replace(up, progressed_at=now, progressed_after=self.checked_at)
        return replace(up, counters=counters, unread_checks=0, checked_at=now)

    @property
    def has_had_counters(self) -> bool:
        return self.checked_at > -inf

    @property
    def is_progress_unknown(self) -> bool:
        """Whether its counters cannot be read. A single missing page does not matter, see PROGRESS_TTL."""
        return self.unread_checks >= UNREAD_CHECKS

    def silent_until(self, heard_at: float, limit: float) -> float:
        """Until when a response may be silent. `heard_at`: its last byte, or when its request was sent."""
        return max(heard_at + limit, self.progressed_at + max(limit, PROGRESS_TTL))

    def progressed_since(self, heard_at: float, others_heard_at: float) -> bool:
        """Whether it has done something for anybody since. `others_heard_at`: the last byte of another response."""
        return self.progressed_after >= heard_at or others_heard_at > heard_at + SAME_TIME

    def has_lost(self, heard_at: float) -> bool:
        """Whether a response will not come from it. `heard_at`: the last byte; -inf if there was none."""
        return self.down_checks >= LOST_CHECKS and heard_at < self.down_since
