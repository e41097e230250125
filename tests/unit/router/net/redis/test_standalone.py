"""The backend for one server: what a new connection costs."""

from typing import Any
from unittest.mock import Mock

import redis.asyncio as aioredis

from router.net.redis.connection import RedisConnection
from router.net.redis.standalone import StandaloneBackend
from tests.support.redis_process import RedisServer


async def test_the_settings_of_a_server_are_parsed_once(redis_server: RedisServer) -> None:
    pool: Any = Mock(wraps=aioredis.ConnectionPool.from_url(redis_server.url))
    backend = StandaloneBackend(pool)
    for _ in range(3):
        connection = RedisConnection(on_error_reply=lambda _: None)
        await backend.connect(connection, 2)
        assert await connection.execute([("PING",)], 2) == [b"PONG"]
        connection.abort()
    assert pool.make_connection.call_count == 1
