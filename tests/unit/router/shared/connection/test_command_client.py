"""The client of the engines' launcher can be cancelled at any time."""

import asyncio
import gc
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from router.shared.connection.redis import CommandClient, open_client
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


async def test_a_cancelled_command_that_fails_later_is_not_in_the_log() -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    fails = asyncio.Event()

    class Client:
        async def execute_command(self, *_: str) -> None:
            await fails.wait()
            raise RedisConnectionError("Connection closed by server.")

    command = asyncio.ensure_future(CommandClient(Client()).execute_command("PING"))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    command.cancel()
    await asyncio.wait([command])
    fails.set()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()  # asyncio logs it when the task is deleted
    asyncio.get_running_loop().set_exception_handler(None)
    assert not logged
