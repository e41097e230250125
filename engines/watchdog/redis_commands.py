"""What the watchdog needs of a redis-py client, and how that fails."""

from typing import Any, Final, Protocol

from redis.exceptions import RedisClusterException, RedisError

REDIS_FAILURES: Final = (RedisError, RedisClusterException, OSError)
"""RedisClusterException, for a cluster without a reachable node, is no RedisError."""


class RedisCommands(Protocol):
    async def execute_command(self, *command: Any) -> Any: ...
