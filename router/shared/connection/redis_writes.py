"""Whether Redis takes writes, as this process sees it.

Theory of operation. A Redis that is full and may not evict, that cannot save its data, or that lacks replicas refuses
every write and can still be read, so it is not down. A process tries a write that changes nothing every few seconds; it
also learns it from each entry that Redis refuses. In a cluster the trial reaches one server, and entries may be refused
by another. So a refusal counts for a while after the last one.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final, Literal

from router.core.cache.redis_keys import ABSENT_KEY
from router.net.redis.commands import EncodedCommand, encode_command
from router.net.redis.errors import write_refusal
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies
from router.net.redis.refusals import REFUSALS_IN_WORDS, WriteRefusal
from router.net.repeated_warning import RepeatedWarning

log = logging.getLogger("roundhouse.redis")

TRIAL_INTERVAL: Final = 2.0
"""Seconds between two trials."""

REFUSAL_LIFETIME: Final = 5.0
"""Seconds for which a refusal counts."""

# Sets the value of a key that never exists, only if it exists. Redis examines its memory and disk before the key.
_TRIAL: Final[EncodedCommand] = encode_command(("SET", ABSENT_KEY, "", "XX"))


RedisState = Literal["up", "down"] | WriteRefusal


class RedisWrites:
    """`refusal` is why Redis takes no writes; None while it does, and while that is not known.

    The log says it at the start and then once a minute, and says when it is over.
    """

    def __init__(self, pipeline: RedisPipeline, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds that only grow."""
        self._pipeline = pipeline
        self._clock = clock
        self._refusal: WriteRefusal | None = None
        self._refused_at = 0.0
        self._refused_since: float | None = None
        self._warning = RepeatedWarning(log, clock=clock)
        self._other_errors = RepeatedWarning(log, clock=clock)

    @property
    def redis_state(self) -> RedisState:
        return (self._refusal or "up") if self._pipeline.up else "down"

    @property
    def reaches_replica(self) -> bool:
        """Whether the state is "down" since what is reached is a read-only replica."""
        return self._pipeline.reaches_replica

    @property
    def refusal(self) -> WriteRefusal | None:
        return self._refusal

    @property
    def since(self) -> float | None:
        """Since when the state is not "up", in seconds since the epoch by the own clock; None while it is."""
        if not self._pipeline.up:
            return self._pipeline.down_since
        return self._refused_since if self._refusal is not None else None

    def on_refused(self, error: Exception) -> None:
        """Redis has refused an entry."""
        refusal = write_refusal(error)
        if refusal is None:  # no right to write, for example
            self._other_errors.log("cannot write an entry: %s", error)
        else:
            self._on_refusal(refusal)

    async def run(self) -> None:
        while True:
            with contextlib.suppress(RedisDownError):
                self._pipeline.send(_TRIAL, on_reply=self.on_trial)
            await asyncio.sleep(TRIAL_INTERVAL)

    def on_trial(self, replies: Replies | None) -> None:
        """The replies to the trial; None if there are none."""
        if replies is None:
            return
        refusal = write_refusal(replies[0])
        if refusal is not None:
            self._on_refusal(refusal)
        elif self._refusal is not None and self._clock() - self._refused_at >= REFUSAL_LIFETIME:
            self._refusal = None
            self._warning.reset()
            log.info("Redis takes writes again")

    def _on_refusal(self, refusal: WriteRefusal) -> None:
        if refusal != self._refusal:
            self._warning.reset()
            self._refused_since = time.time()
        self._refusal, self._refused_at = refusal, self._clock()
        self._warning.log("%s: nothing is stored; what it has is still served", REFUSALS_IN_WORDS[refusal])
