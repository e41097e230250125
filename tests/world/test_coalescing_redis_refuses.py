"""Coalescing while Redis refuses commands or followers cannot reach it, at the default timeouts."""

import asyncio

from router.core.cache.redis_keys import claim_key
from tests.support.sse_answers import DONE_FRAME
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually
from tests.world.pair import router_pair
from tests.world.scenario import World, scenario


@scenario
async def test_a_redis_that_is_out_of_memory_for_longer_than_a_lease_breaks_no_follower(world: World) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leading, open_stream(pair.follower, "x") as following:
        await following.read_until_text("one ")
        world.redis.is_full = True
        pair.release_chunks()
        await leading.read_until_text("one two")
        await asyncio.sleep(3)  # Redis refuses writes for this long
        world.redis.is_full = False
        pair.release_chunks()
        assert (await following.read_to_end()).endswith(DONE_FRAME)
        assert following.text == "one two"
        await leading.read_to_end()
    assert pair.generations == 1


@scenario
async def test_a_generation_continues_for_a_follower_that_cannot_query_redis_briefly(world: World) -> None:
    pair = await router_pair(world)
    # `pair.leader` follows here, since its connections can be cut.
    leading, following = open_stream(pair.follower, "x"), open_stream(pair.leader, "x")
    first = await leading.__aenter__()
    await first.read_until_text("one ")
    async with following as follower:
        await follower.read_until_text("one ")
        await leading.__aexit__(None, None, None)
        await asyncio.sleep(0.7)  # almost the time until the follower reads the in-flight request again
        pair.proxy.refuse("commands")
        await asyncio.sleep(1.4)  # less than the lease's TTL
        pair.proxy.release()
        await asyncio.sleep(2)  # the engine pauses for this long
        pair.release_chunks(2)
        assert (await follower.read_to_end()).endswith(DONE_FRAME)
        assert follower.text == "one two"
    assert not pair.engine.client_disconnected.is_set()


@scenario
async def test_a_leader_that_redis_lets_no_follower_reach_is_lost_at_once(world: World) -> None:
    pair = await router_pair(world)
    world.redis.model.denied.add(b"PUBLISH")
    async with open_stream(pair.leader, "x") as leading:
        await leading.read_until_text("one ")
        async with asyncio.timeout(1), open_stream(pair.follower, "x") as following:
            await following.read_until_text("one ")
            assert following.headers["x-cache"] == "MISS"


@scenario
async def test_a_claim_whose_renewal_is_refused_is_renewed_again(world: World) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leading:
        await leading.read_until_text("one ")
        claim = claim_key(leading.headers["x-cache-key"])
        world.redis.model.denied.add(b"EVAL")
        await world.redis.client.persist(claim)
        await asyncio.sleep(2)  # several renewals are refused
        assert await world.redis.client.pttl(claim) == -1
        world.redis.model.denied.clear()

        async def is_renewed() -> bool:
            return bool(await world.redis.client.pttl(claim) > 0)

        await eventually(is_renewed, 2)
