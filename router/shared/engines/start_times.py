"""How long the last starts of a model's engines took, for all routers.

    rh:1:router:starts:{model}     a list: seconds from the first waiting request to an engine that is up, newest first

Each router that had waiting requests adds what it saw, so one start may count several times.
"""

import logging
from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

from router.core.cache.redis_keys import starts_key
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline

log = logging.getLogger("roundhouse.engines")

MAX_STARTS: Final = 20
"""Starts of a model that are kept."""

_TTL: Final = 30 * 86400  # seconds after the last start
_MAX_DIGITS: Final = 24
_MAX_DURATION: Final = 86400.0  # seconds


def add_commands(model: str, seconds: float) -> list[Command]:
    key = starts_key(model)
    return [("LPUSH", key, f"{seconds:.1f}"), ("LTRIM", key, 0, MAX_STARTS - 1), ("EXPIRE", key, _TTL)]


def read_command(model: str) -> Command:
    return ("LRANGE", starts_key(model), 0, MAX_STARTS - 1)


def decode_starts(reply: Any) -> list[float]:
    """In seconds; what is not a duration is left out."""
    durations = []
    for value in reply if isinstance(reply, list) else ():
        try:
            seconds = float(value) if len(value) <= _MAX_DIGITS else -1.0
        except (TypeError, ValueError):
            continue
        if isfinite(seconds) and 0 <= seconds <= _MAX_DURATION:
            durations.append(seconds)
    return durations


class StartTimes:
    """Adds and reads them. While Redis is down, there are none, and nothing is added."""

    def __init__(self, pipeline: RedisPipeline) -> None:
        self._pipeline = pipeline

    def add(self, model: str, seconds: float) -> None:
        try:
            self._pipeline.send(*add_commands(model, seconds))
        except RedisDownError:
            log.debug("Redis is down: the start of an engine of %s is not recorded", model)

    async def read(self, model: str) -> Sequence[float]:
        try:
            (reply,) = await self._pipeline.execute(read_command(model))
        except RedisDownError:
            return ()
        return decode_starts(reply)
