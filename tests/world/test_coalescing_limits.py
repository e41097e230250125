"""Coalescing, and the limits of tenants and processes."""

import asyncio
import time
from functools import partial

from router.api.access.auth import hash_key
from tests.support.router_pair import pair_config
from tests.support.sse_answers import DONE_FRAME, chat_text
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually
from tests.world.pair import router_pair
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario


async def has_in_flight(router: WorldRouter, most: int) -> bool:
    return (await router.metrics())['llm_requests_in_flight{engine="scripted"}'] <= most


@scenario
async def test_a_tenant_has_no_more_generations_without_a_client_than_its_concurrency_limit(world: World) -> None:
    pair = await router_pair(world)
    tenant = f'[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"sk-a")}"]\nconcurrent_requests = 4'
    config = pair_config(world.redis.url, pair.engine).replace("[auth]", '[auth]\nmode = "keys"')
    router = await world.router(f"{config}\n\n{tenant}")
    headers = {"authorization": "Bearer sk-a"}
    for number in range(12):
        async with open_stream(router, f"prompt {number}", headers=headers) as leaving:
            await leaving.read_until_text("one ")
    await eventually(partial(has_in_flight, router, 4), 1)
    async with open_stream(router, "prompt 11", headers=headers) as reconnected:
        await reconnected.read_until_text("one ")
        assert reconnected.headers["x-cache"] == "COALESCED"


@scenario
async def test_a_follower_of_a_router_without_a_free_slot_is_served_by_its_own(world: World) -> None:
    pair = await router_pair(world)
    config = pair_config(world.redis.url, pair.engine).replace("served_model", "max_in_flight = 1\nserved_model")
    full, roomy = [await world.router(f'{config}\n\n[timeouts]\nqueue = "1s"') for _ in range(2)]
    async with open_stream(full, "something else") as busy:
        await busy.read_until_text("one ")
        waiting = asyncio.ensure_future(full.chat("x", stream=True))
        await asyncio.sleep(0.3)  # it waits for a slot and holds the lease
        following = asyncio.ensure_future(roomy.chat("x", stream=True))
        assert (await waiting).json()["error"]["code"] == "queue_timeout"
        await eventually(lambda: pair.generations == 2)
        pair.release_chunks(4)
        answer = await following
        assert (answer.status_code, chat_text(answer), answer.content.endswith(DONE_FRAME)) == (200, "one two", True)


@scenario
async def test_a_follower_that_its_leader_has_kept_waiting_is_refused_as_soon_as_a_client_of_its_own_router(
    world: World,
) -> None:
    pair = await router_pair(world)
    config = pair_config(world.redis.url, pair.engine).replace("served_model", "max_in_flight = 1\nserved_model")
    routers = [await world.router(f'{config}\n\n[timeouts]\nqueue = "2s"') for _ in range(2)]
    async with open_stream(routers[0], "busy") as one, open_stream(routers[1], "busy, too") as other:
        await one.read_until_text("one ")
        await other.read_until_text("one ")
        leading = asyncio.ensure_future(routers[0].chat("x"))
        await asyncio.sleep(0.1)  # it waits for a slot and holds the lease
        started_at = time.monotonic()
        followed = await routers[1].chat("x")
        waited = time.monotonic() - started_at
        assert (await leading).json()["error"]["code"] == "queue_timeout"
        assert (followed.status_code, followed.json()["error"]["code"]) == (503, "queue_timeout")
        assert int(followed.headers["retry-after"]) > 0
        # 2 s at each of the two routers would be nearly 4 s.
        assert 1.8 < waited < 3.2
