"""The leader process is killed, frozen or stopped: followers in another process never hang."""

import asyncio

import httpx
import pytest

from router.shared.inflight.claim import LEASE_DURATION
from tests.support.router_pair import ANSWER
from tests.support.router_server import router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, chat_text, parse_events
from tests.support.streaming_client import open_stream
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

FRESH = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"fresh"},"finish_reason":"stop"}]}'

LOST = LEASE_DURATION + 1.0
"""Seconds after which a follower has noticed that its leader is gone."""


async def leader_and_follower(world: World) -> tuple[WorldRouter, WorldRouter, ScriptedEngine]:
    """Two routers, and their engine, which works on a request of the first one."""
    engine = await world.scripted_engine(*ANSWER, paced=True)
    text = router_config(world.redis.url, {"scripted": ("llama", "any", engine.url)})
    return await world.router(text), await world.router(text), engine


async def lead(leader: WorldRouter) -> "asyncio.Future[httpx.Response]":
    leading = asyncio.ensure_future(leader.chat("x", stream=True))
    await asyncio.sleep(0.2)  # the engine works on it
    return leading


@scenario
async def test_followers_of_a_killed_leader_get_an_error_or_a_new_attempt_within_seconds(world: World) -> None:
    leader, follower, engine = await leader_and_follower(world)
    leading = await lead(leader)
    streams = asyncio.ensure_future(follower.chat("x", stream=True))
    json_answer = asyncio.ensure_future(follower.chat("x"))
    async with open_stream(follower, "x") as third:
        await third.read_until_text("one ")
        assert third.headers["x-cache"] == "COALESCED"
    assert len(engine.bodies) == 1
    engine.pieces = (FRESH,)
    leader.kill()
    async with asyncio.timeout(4):
        broken = await streams
        assert parse_events(broken.content)[-1]["error"]["code"] == "engine_failed"
        assert not broken.content.endswith(DONE_FRAME)
        answer = await json_answer
        assert (answer.status_code, chat_text(answer)) == (200, "fresh")
    with pytest.raises(httpx.TransportError):
        await leading
    assert len(engine.bodies) == 2


@scenario
async def test_a_follower_of_a_frozen_leader_starts_a_new_attempt_when_its_claim_expires(world: World) -> None:
    leader, follower, engine = await leader_and_follower(world)
    leading = await lead(leader)
    leader.freeze()
    request = asyncio.ensure_future(follower.chat("x", stream=True))
    await asyncio.sleep(LOST)
    assert len(engine.bodies) == 2
    for _ in range(4):
        engine.chunk_permits.release()
    assert chat_text(await request) == "one two"
    leader.thaw()
    assert (await leading).content.endswith(DONE_FRAME)


@scenario
async def test_a_client_that_reconnects_after_its_router_died_is_served_by_another(world: World) -> None:
    leader, follower, engine = await leader_and_follower(world)
    leading = await lead(leader)
    leader.kill()
    with pytest.raises(httpx.TransportError):
        await leading
    request = asyncio.ensure_future(follower.chat("x", stream=True))
    await asyncio.sleep(LOST)
    assert len(engine.bodies) == 2
    for _ in range(2):
        engine.chunk_permits.release()
    assert chat_text(await request) == "one two"


@pytest.mark.parametrize("is_continued", [True, False])
@scenario
async def test_a_leader_that_stops_waits_for_generations_that_only_others_follow_until_its_grace_period_ends(
    world: World, is_continued: bool
) -> None:
    engine = await world.scripted_engine(*ANSWER, paced=True)
    engines, patient = {"scripted": ("llama", "any", engine.url)}, '[timeouts]\nbetween_tokens = "10m"\n'
    text = router_config(world.redis.url, engines, router='drain = "5s"\ngrace = "20s"', rest=patient)
    leader, follower = await world.router(text), await world.router(text)
    leading = await lead(leader)
    async with open_stream(follower, "x") as following:
        await following.read_until_text("one ")
        assert following.headers["x-cache"] == "COALESCED"
        leading.cancel()
        await leader.run_inside(drain(leader))
        stopping = asyncio.ensure_future(leader.stop())
        await asyncio.sleep(24)
        assert not stopping.done()
        assert not engine.client_disconnected.is_set()
        if is_continued:
            for _ in range(2):
                engine.chunk_permits.release()
            assert (await following.read_to_end()).endswith(DONE_FRAME)
            assert not engine.client_disconnected.is_set()
        await asyncio.wait_for(stopping, 2)
    assert len(engine.bodies) == 1


async def drain(router: WorldRouter) -> None:
    router.application.drain()
