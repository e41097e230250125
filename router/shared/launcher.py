"""What `roundhouse up` reads in Redis to replace engines."""

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any, Final, Self

from redis.exceptions import RedisClusterException, RedisError

from router.net.redis.commands import Command
from router.shared.announcements import AnnouncedEngine, Fleet, decode_fleet, read_held_command
from router.shared.recent_prompts import RecentPrompt, decode_prompts, read_prompts_command
from router.shared.redis import open_client

_TIMEOUT: Final = 5.0  # seconds


class LauncherRedis:
    """A connection for the time of one operation: `async with LauncherRedis(url) as redis`.

    If Redis is down, or refuses a command, nothing is known (no requests, no engines).
    """

    def __init__(self, url: str) -> None:
        """Raises RedisUrlError."""
        self._client = open_client(url, timeout=_TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def recent_prompts(self, model: str, count: int) -> list[RecentPrompt]:
        """The newest ones first."""
        return decode_prompts(await self._execute(read_prompts_command(model, count)))

    async def foreign_engines(self, own: Collection[str]) -> Sequence[AnnouncedEngine]:
        """The announced engines whose leases hold, without `own`."""
        reply = await self._execute(read_held_command())
        fleet = decode_fleet(reply) if reply is not None else Fleet()
        return [engine for name, engine in fleet.engines.items() if name not in own]

    async def _execute(self, command: Command) -> Any:
        """The reply; None if there is none, or an error."""
        try:
            return await self._client.execute_command(*command)
        except (RedisError, RedisClusterException, OSError):  # RedisClusterException is no RedisError
            return None
