"""Every module of the integration tests starts with an empty Redis.

The processes of pytest-xdist run the modules in another order each time: keys, breakers or drains that a module left
there would change what a router does in the next one.
"""

import pytest_asyncio

from tests.support.redis_process import RedisServer


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def _empty_redis(redis_server: RedisServer) -> None:
    await redis_server.command("FLUSHALL")
