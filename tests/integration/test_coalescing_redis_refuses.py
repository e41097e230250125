"""One generation for all, while Redis refuses commands or cannot be asked by those who follow.

All of it at the default timeouts.
"""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from router.core.cache.key import Key
from router.core.cache.redis_keys import claim_of
from router.core.endpoints.recorded_response import Recording
from router.core.endpoints.request import parse
from router.core.types import Endpoint
from router.flow.exchange import Exchange, Work
from router.flow.inflight import Again, Flight
from router.flow.outcome_codec import read_end, write_end
from router.flow.result import Landing
from router.net.redis.pipeline import Line
from router.net.tasks import end
from router.shared.inflight_leases import SharedFlights
from router.shared.purges import BEGINNING
from router.shared.stream_writer import MAX_UNSENT, Broadcast, Source
from tests.support.redis_process import RedisServer
from tests.support.router_pair import Pair
from tests.support.router_server import chat_body
from tests.support.sse_answers import DONE
from tests.support.store_fixture import Store
from tests.support.streaming_client import streaming
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_redis_that_is_out_of_memory_for_longer_than_a_lease_breaks_no_follower(
    pair: Pair, own_redis: RedisServer
) -> None:
    async with streaming(pair.leader, "x") as leading, streaming(pair.follower, "x") as following:
        await following.until("one ")
        await own_redis.command("CONFIG", "SET", "maxmemory", "1")
        pair.go()
        await leading.until("one two")
        await asyncio.sleep(3)  # how long Redis takes nothing
        await own_redis.command("CONFIG", "SET", "maxmemory", "0")
        pair.go()
        assert (await following.to_the_end()).endswith(DONE)
        assert following.text == "one two"
        await leading.to_the_end()
    assert pair.generations == 1


async def test_a_generation_goes_on_for_a_follower_that_cannot_ask_redis_for_a_moment(pair: Pair) -> None:
    leading, following = streaming(pair.follower, "x"), streaming(pair.leader, "x")  # whose connections can be cut
    first = await leading.__aenter__()
    await first.until("one ")
    async with following as follower:
        await follower.until("one ")
        await leading.__aexit__(None, None, None)
        await asyncio.sleep(0.7)  # nearly the time until the follower asks for the flight again
        await pair.proxy.refuse("commands")
        await asyncio.sleep(1.4)  # less than a lease
        await pair.proxy.release()
        await asyncio.sleep(2)  # how long the engine pauses
        pair.go(2)
        assert (await follower.to_the_end()).endswith(DONE)
        assert follower.text == "one two"
    assert not pair.engine.left.is_set()


async def test_a_leader_whom_redis_lets_nobody_reach_is_lost_at_once(pair: Pair, own_redis: RedisServer) -> None:
    await own_redis.command("ACL", "SETUSER", "default", "-publish")
    async with streaming(pair.leader, "x") as leading:
        await leading.until("one ")
        async with asyncio.timeout(1), streaming(pair.follower, "x") as following:
            await following.until("one ")
            assert following.headers["x-cache"] == "MISS"


async def test_a_claim_whose_renewal_is_refused_is_renewed_again(own_redis: RedisServer) -> None:
    await own_redis.start()
    store = Store(own_redis.url)
    await store.start()
    shared = SharedFlights(store.line, wanted=lambda _: None)
    key = "rh:1:default:llama:0:0:0"
    assert await shared.claim(shared.ask(key, "d", "1", BEGINNING)) is None
    await own_redis.command("PERSIST", claim_of(key))
    await own_redis.command("ACL", "SETUSER", "default", "-eval")
    renewing = asyncio.create_task(shared.run())

    async def is_refused() -> bool:
        return bool(await own_redis.command("ACL", "LOG"))

    async def is_renewed() -> bool:
        return bool(await own_redis.command("PTTL", claim_of(key)) > 0)

    await eventually(is_refused)
    await own_redis.command("ACL", "SETUSER", "default", "+eval")
    await eventually(is_renewed)
    await end(renewing)
    await store.aclose()


async def test_an_answer_of_many_megabytes_does_not_go_through_redis_and_followers_begin_anew() -> None:
    flight = made_flight()
    body = b"x" * (MAX_UNSENT + 1)
    packed = write_end(flight, Landing(whole=True, body=body))
    assert len(packed) < 1000
    flight.led_here = False
    reader = flight.attach(flight.request, EXCHANGE, leads=True)
    flight.land(read_end(flight, packed))
    with pytest.raises(Again):
        await reader.begin()


async def test_a_stream_whose_json_form_has_many_megabytes_is_whole_for_followers_all_the_same() -> None:
    flight = made_flight()
    body = b"x" * (MAX_UNSENT + 1)
    recording = Recording(body=body, stream=None, prompt_tokens=1, completion_tokens=1)
    packed = write_end(flight, Landing(whole=True, recording=recording, endings=(DONE, DONE)))
    assert len(packed) < 1000
    landing = read_end(flight, packed)
    assert (landing.whole, landing.endings) == (True, (DONE, DONE))


END_OF_FORMAT_1 = {
    "landing_body": None, "body": None, "usage_frame": b"{}", "last_frames": b"", "kept": True,
    "endings": (DONE, DONE), "prompt_tokens": 1, "completion_tokens": 2, "engine": "llama",
}  # fmt: skip
"""What a router that stores entries of format 1 sends of a stream that it keeps."""


async def test_the_end_that_a_router_of_the_format_before_sends_is_read() -> None:
    landing = read_end(made_flight(), msgspec.msgpack.encode(END_OF_FORMAT_1))
    assert (landing.whole, landing.recording, landing.endings) == (True, None, (DONE, DONE))
    assert (landing.prompt_tokens, landing.completion_tokens) == (1, 2)


@pytest.mark.parametrize("body", [None, b"{}"])
async def test_the_end_of_a_flight_has_all_that_a_router_of_the_format_before_requires(body: bytes | None) -> None:
    recording = Recording(body=b"{}", stream=b"~", prompt_tokens=1, completion_tokens=1)
    packed = write_end(made_flight(), Landing(whole=True, body=body, recording=recording, endings=(DONE, DONE)))
    assert msgspec.msgpack.decode(packed).keys() >= END_OF_FORMAT_1.keys()


async def test_redis_has_as_long_for_the_end_of_a_flight_as_it_is_large(redis_server: RedisServer, redis: Any) -> None:
    store = Store(redis_server.url)
    await store.start()
    line = Sizes(store.line)
    broadcast = Broadcast(line, "rh:1:flight:default:llama:0:0:0:1", lambda _: None)  # type: ignore[arg-type]
    broadcast.say(Source(), b"", b"x" * 100_000)
    assert line.sizes == [100_000]
    await store.line.ask(("PING",))
    await store.aclose()


class Sizes:
    """A line that notes the sizes that it is given."""

    def __init__(self, line: Line) -> None:
        self.sizes: list[int] = []
        self._line = line

    def tell(self, *commands: Any, size: int = 0, told: Any = None) -> None:
        self.sizes.append(size)
        self._line.tell(*commands, size=size, told=told)


EXCHANGE = Exchange(endpoint=Endpoint.CHAT, request_id="1", begun=0.0)


def made_flight() -> Flight:
    work = Work(request_id="1", traceparent=None, tenant="default", model="llama", task="chat", stream=False, begun=0.0)
    return Flight(
        "1", parse(Endpoint.CHAT, json.dumps(chat_body("x")).encode()), Key("rh:1:default:llama:0:0:0", ("d",)), work,
        documents=(), since=BEGINNING, limit=1000, on_empty=lambda _: None, on_close=lambda _: None,
    )  # fmt: skip
