"""The fixture of two routers with one engine; see router_pair. It also needs router_fixtures."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.redis_process import RedisServer
from tests.support.router_pair import ANSWER, RouterPair, pair_config
from tests.support.router_server import MakeRouter
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tcp_proxy import TcpProxy


@pytest_asyncio.fixture(loop_scope="session")
async def pair(own_redis: RedisServer, make_router: MakeRouter) -> AsyncIterator[RouterPair]:
    await own_redis.start()
    proxy = TcpProxy(own_redis.socket)
    await proxy.start()
    engine = ScriptedEngine(*ANSWER, paced=True)
    await engine.start()
    router_pair = RouterPair(
        await make_router(pair_config(proxy.url, engine)),
        await make_router(pair_config(own_redis.url, engine)),
        engine,
        proxy,
    )
    yield router_pair
    proxy.release()
    await engine.stop()
    await proxy.stop()
