"""The client of the engines' launcher can be cancelled at any time."""

import asyncio
from typing import Any

from router.shared.connection.redis import open_client
from tests.support.redis_process import RedisServer


async def test_a_task_that_sends_commands_all_the_time_ends_when_it_is_cancelled(redis_server: RedisServer) -> None:
    client = open_client(redis_server.url, timeout=5)

    async def send() -> Any:
        while True:
            await client.execute_command("PING")

    for loop_iterations in range(200):
        task = asyncio.ensure_future(send())
        for _ in range(loop_iterations):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled()
    await client.aclose()
