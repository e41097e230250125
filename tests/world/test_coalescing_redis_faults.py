"""Coalescing while Redis hangs, connections to it are lost, and leaders are unreachable, at the default timeouts."""

import asyncio

import httpx
import pytest

from router.core.cache.redis_keys import claim_key, flight_key
from router.shared.inflight.claim import Claim
from tests.support.router_pair import ANSWER, pair_config
from tests.support.router_server import RouterClient, chat_body
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, chat_text
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually
from tests.world.pair import router_pair
from tests.world.scenario import World, scenario


async def ask_at_once(router: RouterClient, count: int) -> list[httpx.Response]:
    """Streams and JSON; the first is a stream, since the engine sends one."""
    first = asyncio.ensure_future(router.chat("x", stream=True))
    await asyncio.sleep(0.05)
    return [*await asyncio.gather(*(router.chat("x", stream=n % 2 == 0) for n in range(1, count))), await first]


@scenario
async def test_a_follower_gets_nothing_of_an_earlier_generation_of_the_same_key(world: World) -> None:
    redis = world.redis.client
    for word in ("first", "second"):  # each with new routers, as after a restart
        engine = ScriptedEngine(
            ROLE_FRAME + chat_frame(content=word), chat_frame(content="", finish="stop") + DONE_FRAME, paced=True
        )
        await engine.start()
        leader, follower = [await world.router(pair_config(world.redis.url, engine)) for _ in range(2)]
        async with open_stream(leader, "x") as leading:
            await leading.read_until_text(word)
            async with open_stream(follower, "x") as following:
                await following.read_until_text(word)
                engine.chunk_permits.release()
                assert (await following.read_to_end()).endswith(DONE_FRAME)
                assert (following.text, following.headers["x-cache"]) == (word, "COALESCED")
            await leading.read_to_end()
            await eventually(lambda: redis.exists(leading.headers["x-cache-key"]))
        await redis.delete(leading.headers["x-cache-key"])
        await engine.stop()


@pytest.mark.parametrize("seconds", [0.1, 0.65])
@scenario
async def test_a_redis_that_freezes_briefly_breaks_no_follower(world: World, seconds: float) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leading, open_stream(pair.follower, "x") as following:
        await leading.read_until_text("one ")
        await following.read_until_text("one ")
        world.redis.freeze()
        pair.release_chunks(2)
        await leading.read_to_end()
        await asyncio.sleep(seconds)  # Redis hangs for this long
        world.redis.thaw()
        assert (await following.read_to_end()).endswith(DONE_FRAME)
        assert following.text == "one two"
    assert pair.generations == 1


@scenario
async def test_a_follower_that_joins_after_redis_froze_follows_too(world: World) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leading, open_stream(pair.follower, "x") as following:
        await following.read_until_text("one ")
        world.redis.freeze()
        pair.release_chunks()
        await leading.read_until_text("one two")
        await asyncio.sleep(0.1)  # Redis hangs for this long
        world.redis.thaw()
        await following.read_until_text("one two")
        async with open_stream(pair.follower, "x") as late:
            await late.read_until_text("one two")
            pair.release_chunks()
            assert (await late.read_to_end()).endswith(DONE_FRAME)
    assert pair.generations == 1


@scenario
async def test_a_record_whose_reply_was_lost_is_written_once(world: World) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leading, open_stream(pair.follower, "x") as following:
        await following.read_until_text("one ")
        reply_lost = pair.proxy.drop_replies_from(b"XADD")
        pair.release_chunks()
        await reply_lost.wait()
        pair.release_chunks()
        await leading.read_to_end()
        assert (await following.read_to_end()).count(b'"two"') == 1
        assert following.text == "one two"


@pytest.mark.parametrize("purged", [True, False], ids=["purged", "not purged"])
@scenario
async def test_an_engine_that_pauses_for_longer_than_a_lease_breaks_no_follower(world: World, purged: bool) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leading, open_stream(pair.follower, "x") as following:
        await following.read_until_text("one ")
        if purged:
            await pair.purge_everything()
        await asyncio.sleep(3)  # the engine pauses for this long
        pair.release_chunks(2)
        assert (await following.read_to_end()).endswith(DONE_FRAME)
        assert following.text == "one two"
        await leading.read_to_end()
    assert pair.generations == 1


@pytest.mark.parametrize("fault", ["refuse", "hold"])
@scenario
async def test_an_unreachable_leader_is_detected_within_a_lease(world: World, fault: str) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leading:
        await leading.read_until_text("one ")
        getattr(pair.proxy, fault)("listening")
        async with asyncio.timeout(3), open_stream(pair.follower, "x") as following:
            await following.read_until_text("one ")
            assert following.headers["x-cache"] == "MISS"
        assert pair.generations == 2


@scenario
async def test_followers_of_an_unreachable_leader_share_one_generation(world: World) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leading:
        await leading.read_until_text("one ")
        pair.proxy.refuse("listening")
        pair.engine.paced = False
        answers = await ask_at_once(pair.follower, 10)
    assert {chat_text(answer) for answer in answers} == {"one two"}
    assert pair.generations == 2


@scenario
async def test_a_generation_purged_while_a_router_was_disconnected_is_not_joined_there(world: World) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leading:
        await leading.read_until_text("one ")
        pair.proxy.refuse("listening")
        await pair.purge_everything()
        await asyncio.sleep(1.1)  # a router may not know of a purge for this long
        async with open_stream(pair.leader, "x") as after:
            await after.read_until_text("one ")
            assert after.headers["x-cache"] == "MISS"
    assert pair.generations == 2


@scenario
async def test_concurrent_requests_at_a_router_without_redis_are_one_generation(world: World) -> None:
    pair = await router_pair(world)
    world.redis.stop()
    asked = asyncio.ensure_future(ask_at_once(pair.leader, 20))
    await asyncio.sleep(0.5)
    pair.release_chunks(2)
    answers = await asked
    assert {chat_text(answer) for answer in answers} == {"one two"}
    assert pair.generations == 1


@scenario
async def test_a_client_that_joins_a_follower_gets_the_response_stored_meanwhile(world: World) -> None:
    redis = world.redis.client
    engine = ScriptedEngine(*ANSWER)
    await engine.start()
    router = await world.router(pair_config(world.redis.url, engine, 'local = "0B"'))
    key = (await router.chat("x", stream=True)).headers["x-cache-key"]
    await eventually(lambda: redis.exists(key))
    claim = Claim("0123456789ab", "of.1", await redis.hget(key, "digest"))
    await redis.rename(key, "away")
    await redis.set(claim_key(key), claim.encode())
    await redis.xadd(flight_key(key, claim.flight_id), {"engine": "scripted", "frames": ANSWER[0]}, id="1-0")
    async with open_stream(router, "x") as following:  # generated by a process that will die
        await following.read_until_text("one ")
        await redis.rename("away", key)
        await asyncio.sleep(0.05)  # the router is told
        async with asyncio.timeout(1):
            assert (await router.chat("x")).headers["x-cache"] == "HIT"
    await engine.stop()


# -- clients that return ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["leader", "follower"])
@scenario
async def test_a_client_that_reconnects_finds_its_generation(world: World, at: str) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leaving:
        await leaving.read_until_text("one ")
    async with open_stream(getattr(pair, at), "x") as reconnected:
        await reconnected.read_until_text("one ")
        assert reconnected.headers["x-cache"] == "COALESCED"
        pair.release_chunks(2)
        assert (await reconnected.read_to_end()).endswith(DONE_FRAME)
    assert pair.generations == 1
    assert not pair.engine.client_disconnected.is_set()


@scenario
async def test_a_json_client_that_reconnects_finds_its_generation(world: World) -> None:
    pair = await router_pair(world)
    pair.engine.pieces = (
        b'{"choices":[{"index":0,"message":{"role":"assistant","content":"one',
        b' two"},"finish_reason":"stop"}]}',
    )
    request = asyncio.ensure_future(pair.leader.http.post("/v1/chat/completions", json=chat_body("x")))
    await eventually(lambda: pair.generations == 1)
    request.cancel()
    reconnected = asyncio.ensure_future(pair.leader.chat("x"))
    pair.release_chunks(1)
    assert chat_text(await reconnected) == "one two"
    assert pair.generations == 1


@scenario
async def test_a_response_that_ends_after_its_client_disconnected_is_stored(world: World) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leaving:
        await leaving.read_until_text("one ")
    pair.release_chunks(2)

    async def is_hit() -> bool:
        return (await pair.leader.chat("x")).headers["x-cache"] == "HIT"

    await eventually(is_hit)
    assert pair.generations == 1


@scenario
async def test_a_client_that_reconnects_twice_gets_the_full_abandon_time_again(world: World) -> None:
    pair = await router_pair(world)
    for _ in range(3):
        async with open_stream(pair.leader, "x") as leaving:
            await leaving.read_until_text("one ")
        await asyncio.sleep(0.9)  # less than `cache.abandon` (2 s), but two of them almost reach it
    assert pair.generations == 1
    assert not pair.engine.client_disconnected.is_set()


@scenario
async def test_an_abandoned_generation_ends_at_once_if_configured(world: World) -> None:
    engine = ScriptedEngine(*ANSWER, paced=True)
    await engine.start()
    router = await world.router(pair_config(world.redis.url, engine, 'abandon = "0s"'))
    async with open_stream(router, "x") as leaving:
        await leaving.read_until_text("one ")
    async with asyncio.timeout(1.5):
        await engine.client_disconnected.wait()
    await engine.stop()


@scenario
async def test_the_engine_is_freed_when_no_client_reconnects(world: World) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x") as leaving:
        await leaving.read_until_text("one ")
    await asyncio.wait_for(pair.engine.client_disconnected.wait(), 10)


@scenario
async def test_a_generation_that_no_other_request_can_join_ends_with_its_client(world: World) -> None:
    pair = await router_pair(world)
    async with open_stream(pair.leader, "x", headers={"cache-control": "no-store"}) as leaving:
        await leaving.read_until_text("one ")
    async with asyncio.timeout(1.5):
        await pair.engine.client_disconnected.wait()


@scenario
async def test_an_event_of_many_megabytes_reaches_all_subscribers(world: World) -> None:
    pair = await router_pair(world)
    large = "y" * (6 << 20)
    pair.engine.pieces = (ROLE_FRAME, chat_frame(content=large), *ANSWER[1:])
    requests = [asyncio.ensure_future(pair.leader.chat("x", stream=True)) for _ in range(2)]
    await asyncio.sleep(0.1)  # both have arrived
    pair.release_chunks(3)
    for answer in await asyncio.gather(*requests):
        assert answer.content.endswith(DONE_FRAME)
        assert chat_text(answer) == f"{large}two"
