"""Writes what the watchdog saw and did to a stream in Redis, `rh:1:watchdog:log`, for people to read."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import asdict

from engines.watchdog.observation import Observation
from engines.watchdog.redis_commands import REDIS_FAILURES, RedisCommands
from router.core.cache.redis_keys import WATCHDOG_LOG_KEY

MAX_RECORDS: Final = 1000
"""About as many records are kept."""


class Record:
    """The watchdog's log: a line for a person through `report`, and an entry with the figures in Redis.

    Redis being down loses the entry and nothing else.
    """

    def __init__(self, redis: RedisCommands, report: Callable[[str], None]) -> None:
        self._redis = redis
        self._report = report

    async def write(self, engine: str, event: str, text: str, seen: Observation | None = None, **more: str) -> None:
        """`event` names what is done; `seen` is what it was decided from, of which only known figures are written."""
        self._report(f"{engine}: watchdog: {event}" + (f": {text}" if text else ""))
        figures = asdict(seen) if seen is not None else {}
        fields: dict[str, str] = {"engine": engine, "event": event, "text": text, **more}
        fields |= {name: _format(value) for name, value in figures.items() if value is not None}
        try:
            pairs = [word for pair in fields.items() for word in pair]
            await self._redis.execute_command("XADD", WATCHDOG_LOG_KEY, "MAXLEN", "~", MAX_RECORDS, "*", *pairs)
        except REDIS_FAILURES as error:
            self._report(f"{engine}: watchdog: cannot write to Redis: {str(error) or type(error).__name__}")


def _format(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}"
