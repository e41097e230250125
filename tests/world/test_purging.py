"""A purge reaches every router, and covers responses that are being generated."""

import asyncio
from functools import partial
from typing import Any

import pytest

from router.api.access.auth import hash_key
from router.core.cache.entry_filter import EntryFilter
from tests.support.purge_log import logged_scopes
from tests.support.router_server import chat_body, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, chat_text
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

ANSWER = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="two", finish="stop") + DONE_FRAME)
ADMIN = {"authorization": "Bearer admin"}
RAG = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "<context>An old text.</context>Well?"},
]


class Setting:
    """Two routers, and an engine that sends the second half of its response on command."""

    def __init__(self, routers: list[WorldRouter], engine: ScriptedEngine) -> None:
        self.one, self.other = routers
        self.engine = engine

    async def purge(self, **scope: Any) -> dict[str, Any]:
        """Purges through the other router."""
        answer = await self.other.http.post("/admin/cache/purge", json=scope, headers=ADMIN)
        response: dict[str, Any] = answer.raise_for_status().json()
        return response


async def start(world: World) -> Setting:
    engine = await world.scripted_engine(*ANSWER, paced=True)
    keys = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
    text = router_config(world.redis.url, {"scripted": ("llama", "any", engine.url)}, rest=keys)
    return Setting([await world.router(text), await world.router(text)], engine)


async def stored(redis: Any, key: str) -> bool:
    return bool(await redis.exists(key))


SCOPES = ["all", "tenant", "model", "key", "system", "document", "text"]


def scope(kind: str, key: str) -> dict[str, Any]:
    system = key.split(":")[4]
    scopes: dict[str, dict[str, Any]] = {
        "all": {"all": True}, "tenant": {"tenant": "default"}, "model": {"model": "llama"}, "key": {"key": key},
        "system": {"system": system}, "document": {"document": "handbook"}, "text": {"document": "An old text."},
    }  # fmt: skip
    return scopes[kind]


@pytest.mark.parametrize("kind", SCOPES)
@scenario
async def test_a_response_started_before_a_purge_is_served_and_not_stored(world: World, kind: str) -> None:
    setting = await start(world)
    redis = world.redis.client
    fields: dict[str, Any] = {"messages": RAG, "documents": [{"doc_id": "handbook", "text": "Old."}]}
    async with open_stream(setting.one, "", **fields) as answer:
        key = answer.headers["x-cache-key"]
        await answer.read_until_text("one ")
        await setting.purge(**scope(kind, key))
        setting.engine.chunk_permits.release()
        assert (await answer.read_to_end()).endswith(DONE_FRAME)

    async def is_counted_as_purged() -> bool:
        metrics = await setting.one.metrics()
        return metrics.get('llm_cache_writes_total{result="purged"}') == 1

    await eventually(is_counted_as_purged)
    assert not await stored(redis, key)


@scenario
async def test_a_purge_by_words_reaches_the_memory_of_every_router_and_generations_in_progress(world: World) -> None:
    setting = await start(world)
    redis = world.redis.client
    setting.engine.chunk_permits.release()
    async with open_stream(setting.one, "x") as answer:
        await answer.read_to_end()
        key = answer.headers["x-cache-key"]
    await eventually(lambda: stored(redis, key))
    for router in (setting.one, setting.other):
        await eventually(partial(is_hit, router))
    async with open_stream(setting.one, "x", headers={"cache-control": "no-cache"}) as again:
        await again.read_until_text("one ")
        purged = await setting.other.http.post(
            "/admin/cache/grep", json={"text": "ONE  Two", "purge": True}, headers=ADMIN
        )
        assert purged.raise_for_status().json()["purge"]["entries"] == 1
        setting.engine.chunk_permits.release()
        await again.read_to_end()

    async def is_counted_as_purged() -> bool:
        return (await setting.one.metrics()).get('llm_cache_writes_total{result="purged"}') == 1

    await eventually(is_counted_as_purged)
    assert not await stored(redis, key)
    for router in (setting.one, setting.other):
        assert not await is_hit(router)


async def is_hit(router: WorldRouter) -> bool:
    headers = {"cache-control": "only-if-cached"}
    answer = await router.http.post("/v1/chat/completions", json=chat_body("x"), headers=headers)
    return answer.headers["x-cache"] == "HIT"


@scenario
async def test_a_purge_of_other_entries_does_not_affect_a_response(world: World) -> None:
    setting = await start(world)
    redis = world.redis.client
    async with open_stream(setting.one, "x") as answer:
        await answer.read_until_text("one ")
        await setting.purge(document="handbook")
        await setting.purge(tenant="somebody")
        setting.engine.chunk_permits.release()
        await answer.read_to_end()
        await eventually(lambda: stored(redis, answer.headers["x-cache-key"]))


@pytest.mark.parametrize("at", ["one", "other"])
@scenario
async def test_a_request_after_a_purge_does_not_join_an_earlier_generation(world: World, at: str) -> None:
    setting = await start(world)
    async with open_stream(setting.one, "x") as before:
        await before.read_until_text("one ")
        await setting.purge(all=True)
        asker = getattr(setting, at)

        async def has_new_generation() -> bool:
            # A router may learn of a purge only after up to a second.
            async with open_stream(asker, "x") as after:
                await after.read_until_text("one ")
                return after.headers["x-cache"] == "MISS"

        await eventually(has_new_generation, timeout=2)
        setting.engine.chunk_permits.release()
        await before.read_to_end()


@scenario
async def test_an_entry_purged_at_one_router_is_gone_at_all_within_a_second(world: World) -> None:
    setting = await start(world)
    setting.engine.paced = False

    async def is_local(router: WorldRouter) -> bool:
        return (await router.chat("x", stream=True)).headers["cache-status"].endswith("detail=local")

    for router in (setting.one, setting.other):
        await eventually(partial(is_local, router))
    result = await setting.purge(tenant="default")
    assert result["entries"] == 1

    async def missed() -> bool:
        headers = {"cache-control": "only-if-cached"}
        body = chat_body("x", stream=True)
        requests = [router.http.post("/v1/chat/completions", json=body, headers=headers)
                 for router in (setting.one, setting.other)]  # fmt: skip
        return [answer.status_code for answer in await asyncio.gather(*requests)] == [504, 504]

    await eventually(missed, timeout=1)


@scenario
async def test_a_purge_is_known_to_a_router_that_starts_later_and_to_one_that_reconnects(world: World) -> None:
    setting = await start(world)
    await setting.purge(all=True)
    assert await logged_scopes(world.redis.client) == [EntryFilter(all=True)]
    setting.engine.paced = False
    assert (await setting.one.chat("x", stream=True)).headers["x-cache"] == "MISS"
    await asyncio.sleep(0.1)
    again = await setting.other.chat("x", stream=True)
    assert (again.headers["x-cache"], chat_text(again)) == ("HIT", "one two")
