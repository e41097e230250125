"""A router that is paused, as a virtual machine during migration, does not serve what was purged meanwhile."""

import asyncio

from router.api.access.auth import hash_key
from router.net.redis.liveness import PING_TIMEOUT
from tests.support.router_server import chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.streaming_client import open_stream
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

KEY = "sk-admin"
PIECES = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="", finish="stop") + DONE_FRAME)


async def two_routers(world: World, *, paced: bool) -> tuple[WorldRouter, WorldRouter]:
    engine = await world.scripted_engine(*PIECES, paced=paced)
    rest = f'[auth]\nadmin_keys = ["{hash_key(KEY.encode())}"]'
    text = router_config(world.redis.url, {"scripted": ("llama", "any", engine.url)}, rest=rest)
    return await world.router(text), await world.router(text)


async def cache_status_after_purge_while_frozen(router: WorldRouter, other: WorldRouter, prompt: str) -> str:
    """X-Cache of a request that a router finds, together with the purge, when it continues."""
    await router.http.get("/healthz")
    router.freeze()
    await asyncio.sleep(PING_TIMEOUT + 0.3)  # it is paused for this long
    headers = {"authorization": f"Bearer {KEY}"}
    purged = await other.http.post("/admin/cache/purge", json={"all": True}, headers=headers)
    assert purged.status_code == 200
    # On the existing connection, so that it arrives before anything that is published later.
    request = router.http.build_request("POST", "/v1/chat/completions", json=chat_body(prompt, stream=True))
    sending = asyncio.ensure_future(router.http.send(request, stream=True))
    await asyncio.sleep(0.1)
    router.thaw()
    answer = await sending
    await answer.aclose()
    return answer.headers["x-cache"]


@scenario
async def test_a_frozen_router_serves_nothing_from_its_local_cache_that_was_purged_meanwhile(world: World) -> None:
    router, other = await two_routers(world, paced=False)
    await router.chat("x", stream=True)
    await asyncio.sleep(0.5)
    await router.chat("x", stream=True)
    assert (await router.chat("x", stream=True)).headers["cache-status"].endswith("detail=local")
    assert await cache_status_after_purge_while_frozen(router, other, "x") == "MISS"


@scenario
async def test_a_frozen_router_lets_no_request_join_a_generation_that_was_purged_meanwhile(world: World) -> None:
    router, other = await two_routers(world, paced=True)
    async with open_stream(router, "x") as before:
        assert before.headers["x-cache"] == "MISS"
        assert await cache_status_after_purge_while_frozen(router, other, "x") == "MISS"
