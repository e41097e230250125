"""The time by Redis' clock, which all router processes have in common.

Theory of operation. When an entry was created decides how old it is for every process, so they must agree on the time.
Routers' wall clocks differ, and can be set; Redis has one clock. A process asks Redis for the time again and again
(TIME), over the connections that listen. The reply was made between the moment at which the command was sent and the
one at which the reply was read, both by this process' monotonic clock: two bounds for how far ahead Redis' clock is.
The estimate moves only where a reply proves it wrong, so it is never off by more than such a command takes. Between
two replies it goes on with the monotonic clock, which nobody can set.

A cluster has a clock for each server. The median of them counts, which one wrong clock does not move.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from router.net.redis.commands import EncodedCommand, encode_command

log = logging.getLogger("roundhouse.redis")

TIME_COMMAND: Final[EncodedCommand] = encode_command(("TIME",))

_LOGGED_STEP: Final = 1.0  # seconds; a change beyond that is logged


class RedisClock:
    """What Redis' clock shows, without asking it.

    - Before Redis has been asked, it is this machine's wall clock. While Redis is away, it goes on.
    - It is off by at most the time that TIME takes, to Redis and back.
    - Where Redis' clock is set, or another server takes over whose clock differs, it follows with the next reply.
    - What this machine's wall clock shows makes no difference once Redis has been asked.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Both in seconds; `wall` since the epoch."""
        self.monotonic = monotonic
        self._offset = wall() - monotonic()  # seconds from the monotonic clock to Redis'
        self._synchronized = False
        self._server_offsets: list[float | None] = []  # the same for each server that is listened to

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.monotonic() + self._offset

    def to_redis_time(self, instant: float) -> float:
        """An instant of this process' monotonic clock, as one of Redis'."""
        return instant + self._offset

    def to_monotonic(self, instant: float) -> float:
        """An instant of Redis' clock, as one of this process' monotonic clock."""
        return instant - self._offset

    def set_server_count(self, count: int) -> None:
        """From now on, so many servers are asked, each by its number; 0 where nobody listens."""
        self._server_offsets = [None] * count

    def update(self, reply: Any, sent_at: float, server: int | None = None) -> None:
        """Takes in the reply to ASK_TIME. `sent`: the monotonic time before the command was sent.

        Without a number of a server, it counts only while nobody listens.
        """
        received = self.monotonic()
        shown = _parse_time(reply)
        if shown is None or (server is None and self._server_offsets):
            return
        low, high = shown - received, shown - sent_at
        before = self._server_offsets[server] if server is not None else None
        if before is None:
            before = self._offset if self._synchronized else (low + high) / 2
        offset = min(max(before, low), high)
        if server is not None:
            self._server_offsets[server] = offset
            known = [each for each in self._server_offsets if each is not None]
            if len(known) < len(self._server_offsets):
                return
            offset = sorted(known)[(len(known) - 1) // 2]
        self._set_offset(offset)

    def _set_offset(self, offset: float) -> None:
        change, self._offset = offset - self._offset, offset
        if self._synchronized and abs(change) > _LOGGED_STEP:
            direction = "forward" if change > 0 else "back"
            log.warning("Redis' clock has gone %s by %.1f s; ages of entries are wrong by that", direction, abs(change))
        self._synchronized = True


def _parse_time(reply: Any) -> float | None:
    """Seconds since the epoch; None for what is no reply to TIME, such as a refusal."""
    if not isinstance(reply, list):
        return None
    try:
        seconds, microseconds = reply
        return int(seconds) + int(microseconds) / 1e6
    except (TypeError, ValueError):
        return None
