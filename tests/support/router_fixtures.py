"""Fixtures of the integration tests: Redis and engines start once, the router for each test.

They live on the session's event loop, so a module that uses them is marked `pytest.mark.asyncio(loop_scope="session")`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio as aioredis

from router.net.redis.connect import open_client
from tests.support.redis_process import RedisServer
from tests.support.router_server import (
    LLAMA,
    MISTRAL,
    EngineSet,
    MakeRouter,
    RouterServer,
    ScriptedRouter,
    router_config,
)
from tests.support.scripted_engine import ScriptedEngine
from tests.support.simulated_engine import SimulatedEngine


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_redis() -> AsyncIterator[RedisServer]:
    server = RedisServer()
    try:
        await server.start()
        yield server
    finally:
        server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def redis_server(shared_redis: RedisServer) -> RedisServer:
    """A Redis that all tests share; a test must not break it. Every module starts with an empty one.

    The processes of pytest-xdist run the modules in another order each time: keys, breakers or drains that a module
    left there would change what a router does in the next one.
    """
    await shared_redis.command("FLUSHALL")
    return shared_redis


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that the test may freeze and kill; the test starts it."""
    server = RedisServer()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def running_engines() -> AsyncIterator[EngineSet]:
    started = EngineSet(
        # Drafts of one token that is always accepted: equally good (the last step of a response, which may have one
        # token, hardly counts), so that the configured task decides between them.
        chat=SimulatedEngine(LLAMA, max_model_len=4096, draft="d", acceptance=1.0, num_speculative_tokens=1),
        code=SimulatedEngine(LLAMA, max_model_len=4096, draft="d", acceptance=1.0, num_speculative_tokens=1),
        mistral=SimulatedEngine(MISTRAL, max_model_len=4096),
    )
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(engine) for engine in started))
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def engines(running_engines: EngineSet) -> AsyncIterator[EngineSet]:
    """Engines without faults; their counters continue from test to test."""
    yield running_engines
    await asyncio.gather(*(engine.clear_faults() for engine in running_engines))


@pytest_asyncio.fixture(loop_scope="session")
async def redis(redis_server: RedisServer) -> AsyncIterator["aioredis.Redis"]:
    client: Any = aioredis.Redis.from_url(redis_server.url, decode_responses=True)
    await client.flushall()
    yield client
    # Tests lower it to make Redis refuse writes.
    await client.config_set("maxmemory", 0)
    await client.aclose()


@pytest.fixture
def config(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config())


@pytest_asyncio.fixture(loop_scope="session")
async def make_router(redis: "aioredis.Redis") -> AsyncIterator[MakeRouter]:
    async with AsyncExitStack() as stack:

        async def make(text: str) -> RouterServer:
            return await stack.enter_async_context(RouterServer(text))

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def router(config: str, make_router: MakeRouter) -> RouterServer:
    return await make_router(config)


@pytest_asyncio.fixture(loop_scope="session")
async def scripted(redis_server: RedisServer, make_router: MakeRouter) -> AsyncIterator[ScriptedRouter]:
    """Starts a router with one engine for llama that sends these chunks; `rest` is appended to the configuration."""
    started: list[ScriptedEngine] = []

    async def make(
        *pieces: bytes, rest: str = "", cache: str = "", router: str = "", **options: Any
    ) -> tuple[RouterServer, ScriptedEngine]:
        engine = ScriptedEngine(*pieces, **options)
        await engine.start()
        started.append(engine)
        table = {"scripted": ("llama", "any", engine.url)}
        return await make_router(router_config(redis_server.url, table, rest=rest, cache=cache, router=router)), engine

    yield make
    for engine in started:
        await engine.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def client(redis_server: RedisServer, redis: "aioredis.Redis") -> AsyncIterator[Any]:
    redis_client = open_client(redis_server.url, timeout=5)
    yield redis_client
    await redis_client.aclose()
