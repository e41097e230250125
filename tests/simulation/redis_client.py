"""The part of redis-py's client that a purge needs, over a simulated connection."""

from collections.abc import AsyncIterator
from typing import Any, Final

import redis.exceptions

from router.net.redis.errors import RedisBackendError
from router.net.redis.standalone import StandaloneBackend

_TIMEOUT: Final = 5.0  # seconds


class OperatorClient:
    """Raises redis-py's exceptions, as the real client does."""

    def __init__(self, backend: StandaloneBackend) -> None:
        self._backend = backend

    async def execute_command(self, *words: Any, **_: Any) -> Any:
        (reply,) = await self._execute([words])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _execute(self, commands: list[Any]) -> list[Any]:
        try:
            return await self._backend.execute(commands, _TIMEOUT)
        except RedisBackendError as error:
            raise redis.exceptions.ConnectionError(str(error)) from error

    def pipeline(self, *, transaction: bool = False) -> "_Pipeline":
        return _Pipeline(self)

    async def scan_iter(self, *, match: str, count: int) -> AsyncIterator[bytes]:
        cursor = b"0"
        while True:
            cursor, keys = await self.execute_command("SCAN", cursor, "MATCH", match, "COUNT", count)
            for key in keys:
                yield key
            if cursor == b"0":
                return

    async def wait(self, replicas: int, timeout: int) -> int:
        return int(await self.execute_command("WAIT", replicas, timeout))


class _Pipeline:
    def __init__(self, client: OperatorClient) -> None:
        self._client = client
        self._commands: list[Any] = []

    def execute_command(self, *words: Any) -> None:
        self._commands.append((*words[0].split(), *words[1:]))  # as redis-py does with `MEMORY USAGE`

    async def execute(self, *, raise_on_error: bool = True) -> list[Any]:
        commands, self._commands = self._commands, []
        replies = await self._client._execute(commands) if commands else []
        return [_to_redis_py(*pair) for pair in zip(commands, replies, strict=True)]


def _to_redis_py(command: Any, reply: Any) -> Any:
    if command[0] != "INFO" or not isinstance(reply, bytes):
        return reply
    pairs = [line.split(":") for line in reply.decode().splitlines() if ":" in line]
    return {name: int(value) if value.isdigit() else value for name, value in pairs}
