"""The drains of a launcher, by its watchdog or by a switch: it resumes what it has drained, and nothing else.

A key of its own, `rh:1:watchdog:drain:{engine}`, is there while it has an engine drained for a restart or a switch. If
it is killed then, or Redis goes down, the watchdog resumes the engine later because of that key.
"""

from typing import Any

from engines.watchdog.redis_commands import REDIS_FAILURES, RedisCommands
from router.core.cache.redis_keys import watchdog_drain_key
from router.shared.engines.drains import decode_drains, drain_command, read_drains_command, resume_command


class DrainError(Exception):
    """Redis does not know, or did not take the change; the message gives the reason."""


class Drains:
    """Drains and resumes engines in all routers. Every method raises DrainError."""

    def __init__(self, redis: RedisCommands) -> None:
        self._redis = redis

    async def drained(self) -> frozenset[str]:
        """The names of all drained engines."""
        states = decode_drains(await self._execute(*read_drains_command()) or {})
        return frozenset(name for name, state in states.items() if state.drained)

    async def drain(self, engine: str) -> None:
        """For a person to resume."""
        await self._execute(*drain_command(engine))

    async def drain_for_restart(self, engine: str) -> None:
        """Until `resume_after_restart`. An engine that is drained already stays so."""
        if engine in await self.drained():
            return
        await self._execute("SET", watchdog_drain_key(engine), "1")
        await self._execute(*drain_command(engine))

    async def resume_after_restart(self, engine: str) -> bool:
        """Resumes it if a launcher, this one or one that was killed, has drained it for a restart; returns whether."""
        is_drained_by_watchdog = bool(await self._execute("EXISTS", watchdog_drain_key(engine)))
        if is_drained_by_watchdog:
            await self._execute(*resume_command(engine))
            await self._execute("DEL", watchdog_drain_key(engine))
        return is_drained_by_watchdog

    async def _execute(self, *command: Any) -> Any:
        try:
            return await self._redis.execute_command(*command)
        except REDIS_FAILURES as error:
            raise DrainError(f"Redis: {str(error) or type(error).__name__}") from None
