"""The time by Redis' clock, which all router processes share.

Theory of operation. An entry's creation time decides its age in every process, so the processes must agree on the time.
The routers' wall clocks differ and can be set; Redis has one clock. A process sends TIME repeatedly over the listener's
connections. Redis makes the reply between the moment at which the command is sent and the moment at which the reply is
read, both by this process' monotonic clock. That gives a lower and an upper bound for the offset of Redis' clock. The
estimate changes only when it is outside these bounds, so its error is at most the round trip of one such command.
Between two replies the estimate advances with the monotonic clock, which cannot be set.

A cluster has one clock per server. The median of their offsets is used, since one wrong clock does not change it.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from router.net.redis.commands import EncodedCommand, encode_command

log = logging.getLogger("roundhouse.redis")

TIME_COMMAND: Final[EncodedCommand] = encode_command(("TIME",))

_END_OF_TIME: Final = 1e11  # seconds since the epoch, in the year 5138; a later time is no time
_LOGGED_STEP: Final = 1.0  # seconds; a larger change of the offset is logged


class RedisClock:
    """An estimate of Redis' clock that is read without a command.

    - Before the first reply, it is this machine's wall clock. While Redis is down, it keeps running.
    - Its error is at most the round trip of TIME.
    - When Redis' clock is set, or a server with another clock takes over, it follows with the next reply.
    - After the first reply, this machine's wall clock makes no difference.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Both clocks in seconds; `wall` since the epoch."""
        self.monotonic = monotonic
        self._offset = wall() - monotonic()  # Redis' clock minus the monotonic clock, in seconds
        self._synchronized = False
        self._server_offsets: list[float | None] = []  # of each server that the listener is connected to

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.monotonic() + self._offset

    def to_redis_time(self, instant: float) -> float:
        return instant + self._offset

    def to_monotonic(self, instant: float) -> float:
        return instant - self._offset

    def set_server_count(self, count: int) -> None:
        """Starts anew with this many servers, numbered from 0; 0 while the listener is not connected."""
        self._server_offsets = [None] * count

    def update(self, reply: Any, sent_at: float, server: int | None = None) -> None:
        """Processes the reply to TIME_COMMAND. `sent_at`: the monotonic time before the command was sent.

        A reply without a server's number (the pipeline's probe) counts only while the listener is not connected.
        """
        received_at = self.monotonic()
        redis_time = _parse_time(reply)
        if redis_time is None or (server is None and self._server_offsets):
            return
        low, high = redis_time - received_at, redis_time - sent_at
        previous = self._server_offsets[server] if server is not None else None
        if previous is None:
            # The wall clock that the offset starts with is no estimate of Redis' clock; the middle of the bounds is.
            previous = self._offset if self._synchronized else (low + high) / 2
        offset = min(max(previous, low), high)
        if server is not None:
            self._server_offsets[server] = offset
            known = [each for each in self._server_offsets if each is not None]
            if len(known) < len(self._server_offsets):  # no median until every server has answered
                return
            offset = sorted(known)[(len(known) - 1) // 2]
        self._set_offset(offset)

    def _set_offset(self, offset: float) -> None:
        change, self._offset = offset - self._offset, offset
        if self._synchronized and abs(change) > _LOGGED_STEP:
            direction = "forward" if change > 0 else "back"
            log.warning("Redis' clock has jumped %s by %.1f s; entry ages are wrong by this", direction, abs(change))
        self._synchronized = True


def _parse_time(reply: Any) -> float | None:
    """Seconds since the epoch; None if it is not a valid reply to TIME, such as an error."""
    if not isinstance(reply, list):
        return None
    try:
        seconds, microseconds = reply
        redis_time = int(seconds) + int(microseconds) / 1e6
    except (TypeError, ValueError, OverflowError):
        return None
    return redis_time if 0 <= redis_time < _END_OF_TIME else None
