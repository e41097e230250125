"""Coalescing while Redis refuses commands or followers cannot reach it, at the default timeouts."""

import asyncio
from typing import Any

import pytest

from router.core.cache.redis_keys import claim_key
from router.net.redis.pipeline import RedisPipeline
from router.net.tasks import cancel_and_wait
from router.shared.inflight_leases import InFlightLeases
from router.shared.purges import BEGINNING
from router.shared.stream_writer import Producer, RedisStreamWriter
from tests.support.redis_process import RedisServer
from tests.support.router_pair import RouterPair
from tests.support.sse_answers import DONE_FRAME
from tests.support.store_fixture import StoreFixture
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_redis_that_is_out_of_memory_for_longer_than_a_lease_breaks_no_follower(
    pair: RouterPair, own_redis: RedisServer
) -> None:
    async with open_stream(pair.leader, "x") as leading, open_stream(pair.follower, "x") as following:
        await following.read_until_text("one ")
        await own_redis.command("CONFIG", "SET", "maxmemory", "1")
        pair.release_chunks()
        await leading.read_until_text("one two")
        await asyncio.sleep(3)  # Redis refuses writes for this long
        await own_redis.command("CONFIG", "SET", "maxmemory", "0")
        pair.release_chunks()
        assert (await following.read_to_end()).endswith(DONE_FRAME)
        assert following.text == "one two"
        await leading.read_to_end()
    assert pair.generations == 1


async def test_a_generation_continues_for_a_follower_that_cannot_query_redis_briefly(pair: RouterPair) -> None:
    # `pair.leader` follows here, since its connections can be cut.
    leading, following = open_stream(pair.follower, "x"), open_stream(pair.leader, "x")
    first = await leading.__aenter__()
    await first.read_until_text("one ")
    async with following as follower:
        await follower.read_until_text("one ")
        await leading.__aexit__(None, None, None)
        await asyncio.sleep(0.7)  # almost the time until the follower reads the in-flight request again
        await pair.proxy.refuse("commands")
        await asyncio.sleep(1.4)  # less than the lease's TTL
        await pair.proxy.release()
        await asyncio.sleep(2)  # the engine pauses for this long
        pair.release_chunks(2)
        assert (await follower.read_to_end()).endswith(DONE_FRAME)
        assert follower.text == "one two"
    assert not pair.engine.client_disconnected.is_set()


async def test_a_leader_that_redis_lets_no_follower_reach_is_lost_at_once(
    pair: RouterPair, own_redis: RedisServer
) -> None:
    await own_redis.command("ACL", "SETUSER", "default", "-publish")
    async with open_stream(pair.leader, "x") as leading:
        await leading.read_until_text("one ")
        async with asyncio.timeout(1), open_stream(pair.follower, "x") as following:
            await following.read_until_text("one ")
            assert following.headers["x-cache"] == "MISS"


async def test_a_claim_whose_renewal_is_refused_is_renewed_again(own_redis: RedisServer) -> None:
    await own_redis.start()
    store = StoreFixture(own_redis.url)
    await store.start()
    shared = InFlightLeases(store.pipeline, on_remote_subscriber=lambda _: None)
    key = "rh:1:default:llama:0:0:0"
    assert await shared.finish_claim(shared.begin_claim(key, "d", "1", BEGINNING)) is None
    await own_redis.command("PERSIST", claim_key(key))
    await own_redis.command("ACL", "SETUSER", "default", "-eval")
    renewing = asyncio.create_task(shared.run())

    async def is_refused() -> bool:
        return bool(await own_redis.command("ACL", "LOG"))

    async def is_renewed() -> bool:
        return bool(await own_redis.command("PTTL", claim_key(key)) > 0)

    await eventually(is_refused)
    await own_redis.command("ACL", "SETUSER", "default", "+eval")
    await eventually(is_renewed)
    await cancel_and_wait(renewing)
    await store.aclose()


async def test_the_timeout_of_an_end_record_grows_with_its_size(redis_server: RedisServer, redis: Any) -> None:
    store = StoreFixture(redis_server.url)
    await store.start()
    line = SizeRecordingPipeline(store.pipeline)
    broadcast = RedisStreamWriter(line, "rh:1:flight:default:llama:0:0:0:1", lambda _: None)  # type: ignore[arg-type]
    broadcast.publish(Producer(), b"", b"x" * 100_000)
    assert line.sizes == [100_000]
    await store.pipeline.execute(("PING",))
    await store.aclose()


class SizeRecordingPipeline:
    """A pipeline that records the sizes that it is given."""

    def __init__(self, line: RedisPipeline) -> None:
        self.sizes: list[int] = []
        self._pipeline = line

    def send(self, *commands: Any, size: int = 0, on_reply: Any = None) -> None:
        self.sizes.append(size)
        self._pipeline.send(*commands, size=size, on_reply=on_reply)
