"""Purges and drains hold although one or both of a router's Redis connections break, or Redis is emptied."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from router.api.access.auth import hash_key
from router.core.cache.redis_keys import breaker_key
from router.core.resilience.breaker import EngineBreaker
from tests.support.router_server import router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.streaming_client import open_stream
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

ANSWER = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="two", finish="stop") + DONE_FRAME)
ADMIN = {"authorization": "Bearer admin"}


class Setting:
    """`near` reaches Redis through a proxy, `other` directly; the engine sends the second half on command."""

    def __init__(self, near: WorldRouter, other: WorldRouter, proxy: TcpProxy, engine: ScriptedEngine) -> None:
        self.near = near
        self.other = other
        self.proxy = proxy
        self.engine = engine

    async def admin(self, path: str, **fields: Any) -> None:
        """A request to the other router's admin API."""
        (await self.other.http.post(f"/admin/{path}", json=fields, headers=ADMIN)).raise_for_status()

    async def drained(self) -> bool:
        """Whether the near router knows that the engine is drained."""
        answer = await self.near.http.get("/admin/engines", headers=ADMIN)
        return any(engine["drained"] for engine in answer.json()["engines"])


@asynccontextmanager
async def start(world: World) -> AsyncIterator[Setting]:
    engine = await world.scripted_engine(*ANSWER, paced=True)
    keys = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
    async with TcpProxy(world.redis.socket) as proxy:
        texts = [
            # The default timeouts, since these faults depend on them.
            router_config(url, {"scripted": ("llama", "any", engine.url)}, rest=keys).replace("2500ms", "50ms")
            for url in (proxy.url, world.redis.url)
        ]
        yield Setting(await world.router(texts[0]), await world.router(texts[1]), proxy, engine)


@scenario
async def test_a_purged_entry_whose_write_lost_its_reply_is_not_served(world: World) -> None:
    redis = world.redis.client
    async with start(world) as setting:
        async with open_stream(setting.near, "x") as answer:
            await answer.read_until_text("one ")
            setting.proxy.refuse("listening")  # so that the near router does not receive the purge
            await setting.admin("cache/purge", all=True)
            key = answer.headers["x-cache-key"]
            # The write of the entry: a recent prompt is written by the same script.
            executed = setting.proxy.drop_replies_from(f"ARGV[1])\r\n$1\r\n1\r\n${len(key)}\r\n{key}".encode())
            setting.engine.chunk_permits.release()
            await answer.read_to_end()
            await executed.wait()
            assert await redis.exists(key)
            setting.proxy.cut("commands")
        setting.engine.paced = False
        again = await setting.other.chat("x", stream=True)
        assert again.headers["x-cache"] == "MISS"
        assert (await setting.other.chat("x", stream=True)).headers["x-cache"] == "HIT"


@scenario
async def test_a_router_whose_listener_reconnects_first_reads_the_purges_that_it_missed(world: World) -> None:
    async with start(world) as setting:
        setting.proxy.refuse("listening", "commands")
        await setting.admin("engines/scripted/drain")
        setting.proxy.release("listening")
        await eventually(lambda: setting.proxy.has_connection("listening"))
        assert not await setting.drained()
        setting.proxy.release("commands")
        await eventually(setting.drained)


@scenario
async def test_a_router_whose_listener_reconnects_first_reads_the_breakers_that_have_opened(world: World) -> None:
    redis = world.redis.client
    async with start(world) as setting:
        setting.proxy.refuse("listening", "commands")
        opened = msgspec.json.encode(EngineBreaker(until=time.time() + 60))
        await redis.set(breaker_key("scripted"), opened, px=60_000)
        setting.proxy.release("listening")
        await eventually(lambda: setting.proxy.has_connection("listening"))
        setting.proxy.release("commands")

        async def knows() -> bool:
            return (await setting.near.metrics()).get('roundhouse_breaker_state{engine="scripted"}', 0) > 0

        await eventually(knows)


@scenario
async def test_a_purge_that_cannot_be_read_is_read_later(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with start(world) as setting:
        caplog.set_level("DEBUG", "roundhouse")
        await eventually(lambda: setting.proxy.has_connection("listening"))
        setting.proxy.refuse("commands")
        await setting.admin("engines/scripted/drain")
        await eventually(lambda: "missed changes will be read" in caplog.text)
        setting.proxy.release("commands")
        await eventually(setting.drained)


@scenario
async def test_a_response_started_before_redis_was_emptied_is_not_stored(world: World) -> None:
    redis = world.redis.client
    async with start(world) as setting:
        async with open_stream(setting.near, "x") as answer:
            await answer.read_until_text("one ")
            await redis.flushall()
            setting.engine.chunk_permits.release()
            await answer.read_to_end()

        async def is_counted_as_purged() -> bool:
            return (await setting.near.metrics()).get('llm_cache_writes_total{result="purged"}') == 1

        await eventually(is_counted_as_purged)
        setting.engine.paced = False

        async def is_stored_again() -> bool:
            return (await setting.near.chat("y", stream=True)).headers["x-cache"] == "HIT"

        await eventually(is_stored_again)
