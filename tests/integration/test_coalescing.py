"""One generation for equal concurrent requests, in one process and across processes."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from router.flow import inflight as flight_module
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, chat_text, parse_events
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
)
ANSWER = (
    ROLE_FRAME + chat_frame(content="one "),
    chat_frame(content="two"),
    chat_frame(content="", finish="stop") + USAGE + DONE_FRAME,
)
JSON_ANSWER = (
    b'{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"one two"},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'
)


class Pair(list[RouterServer]):
    """Two routers with the same Redis and the same engine, which sends one chunk per released permit."""

    engine: ScriptedEngine

    @property
    def generations(self) -> int:
        return len(self.engine.bodies)


@pytest_asyncio.fixture(loop_scope="session", params=["one process", "two processes"])
async def pair(
    request: pytest.FixtureRequest, redis_server: RedisServer, make_router: MakeRouter
) -> AsyncIterator[Pair]:
    """Both clients use the same router, or each uses its own."""
    router_pair = await make_pair(redis_server, make_router, one=request.param == "one process")
    yield router_pair
    await router_pair.engine.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def two(redis_server: RedisServer, make_router: MakeRouter) -> AsyncIterator[Pair]:
    router_pair = await make_pair(redis_server, make_router)
    yield router_pair
    await router_pair.engine.stop()


async def make_pair(
    redis_server: RedisServer, make_router: MakeRouter, *, one: bool = False, cache: str = "", rest: str = ""
) -> Pair:
    engine = ScriptedEngine(*ANSWER, paced=True)
    await engine.start()
    text = router_config(redis_server.url, {"scripted": ("llama", "any", engine.url)}, cache=cache, rest=rest)
    first = await make_router(text)
    router_pair = Pair([first, first if one else await make_router(text)])
    router_pair.engine = engine
    return router_pair


def go(engine: ScriptedEngine, times: int = 1) -> None:
    for _ in range(times):
        engine.chunk_permits.release()


async def test_two_hundred_identical_concurrent_requests_are_one_generation(
    make_router: MakeRouter, config: str, engines: EngineSet
) -> None:
    routers = [await make_router(config), await make_router(config)]
    before = (await engines.chat.stats())["started"]
    await engines.chat.set_faults({"fault": "ttft", "ms": 300})
    answers = await asyncio.gather(*(routers[n % 2].chat("The sea?", stream=n % 3 == 0) for n in range(200)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({chat_text(answer) for answer in answers}) == 1
    seen = Counter(answer.headers["x-cache"] for answer in answers)
    assert seen["MISS"] == 1
    assert seen["COALESCED"] + seen["HIT"] == 199
    assert {answer.headers["x-engine"] for answer in answers} == {"llama-chat"}
    assert (await engines.chat.stats())["started"] == before + 1


async def test_a_late_subscriber_gets_the_response_from_its_first_frame_and_then_follows_live(pair: Pair) -> None:
    async with open_stream(pair[0], "x") as first:
        await first.read_until_text("one ")
        async with open_stream(pair[1], "x") as second:
            await second.read_until_text("one ")
            assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "COALESCED")
            assert second.headers["cache-status"] == "roundhouse; fwd=miss; collapsed"
            assert second.headers["x-cache-key"] == first.headers["x-cache-key"]
            assert second.headers["x-engine"] == "scripted"
            go(pair.engine)
            await second.read_until_text("one two")
            go(pair.engine)
            assert await second.read_to_end() == await first.read_to_end()
            assert second.received == b"".join(ANSWER).replace(USAGE, b"")
    assert pair.generations == 1


async def test_a_json_client_gets_the_response_of_a_stream_when_it_ends(pair: Pair) -> None:
    async with open_stream(pair[0], "x") as first:
        await first.read_until_text("one ")
        request = asyncio.ensure_future(pair[1].chat("x"))
        go(pair.engine, 2)
        await first.read_to_end()
        answer = await request
    assert answer.headers["x-cache"] in ("COALESCED", "HIT")
    assert chat_text(answer) == "one two"
    assert answer.json()["usage"]["completion_tokens"] == 2
    assert pair.generations == 1


async def test_a_stream_client_follows_a_json_generation_and_gets_the_complete_response(pair: Pair) -> None:
    pair.engine.pieces = (JSON_ANSWER[:9], JSON_ANSWER[9:])
    request = asyncio.ensure_future(pair[0].chat("x"))
    await eventually(lambda: pair.generations == 1)
    following = asyncio.ensure_future(pair[1].chat("x", stream=True, stream_options={"include_usage": True}))
    go(pair.engine)
    first, second = await request, await following
    assert (first.headers["x-cache"], chat_text(first)) == ("MISS", "one two")
    assert second.headers["x-cache"] in ("COALESCED", "HIT")
    assert chat_text(second) == "one two"
    assert second.content.endswith(DONE_FRAME)
    assert parse_events(second.content)[-1]["usage"]["completion_tokens"] == 2
    assert pair.generations == 1


async def test_each_subscriber_gets_the_usage_event_only_if_it_asked_for_it(pair: Pair) -> None:
    async with open_stream(pair[0], "x") as first:
        await first.read_until_text("one ")
        async with open_stream(pair[1], "x", stream_options={"include_usage": True}) as second:
            await second.read_until_text("one ")
            go(pair.engine, 2)
            assert USAGE not in await first.read_to_end()
            assert (await second.read_to_end()).endswith(USAGE + DONE_FRAME)


async def test_a_flight_continues_for_its_subscribers_when_its_first_client_disconnects(pair: Pair) -> None:
    async with open_stream(pair[0], "x") as first:
        await first.read_until_text("one ")
        second = open_stream(pair[1], "x")
        follower = await second.__aenter__()
        await follower.read_until_text("one ")
    go(pair.engine, 2)
    assert (await follower.read_to_end()).endswith(DONE_FRAME)
    await second.__aexit__(None, None, None)
    assert follower.text == "one two"
    assert pair.generations == 1
    assert not pair.engine.client_disconnected.is_set()
    assert (await pair[1].chat("x")).headers["x-cache"] == "HIT"


async def test_the_engine_is_freed_when_the_last_subscriber_disconnects(pair: Pair, redis: Any) -> None:
    async with open_stream(pair[0], "x") as first:
        await first.read_until_text("one ")
        async with open_stream(pair[1], "x") as second:
            await second.read_until_text("one ")
        assert not pair.engine.client_disconnected.is_set()
    await asyncio.wait_for(pair.engine.client_disconnected.wait(), 10)
    await eventually(lambda: no_claims(redis))
    assert pair.generations == 1


async def no_claims(redis: Any) -> bool:
    return not [key async for key in redis.scan_iter("rh:1:claim:*")]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abandoned_generation_is_finished_and_stored_if_configured(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter, stream: bool
) -> None:
    pair = await make_pair(redis_server, make_router, cache='on_abandon = "finish"')
    if not stream:
        pair.engine.pieces = (JSON_ANSWER[:9], JSON_ANSWER[9:])
    request = asyncio.ensure_future(pair[0].chat("x", stream=stream))
    await eventually(lambda: pair.generations == 1)
    request.cancel()
    retrying = asyncio.ensure_future(pair[1].chat("x", stream=stream))
    await eventually(lambda: followed_or_claimed(redis))
    go(pair.engine, 2)
    retried = await retrying
    assert retried.headers["x-cache"] in ("COALESCED", "HIT")
    assert chat_text(retried) == "one two"
    assert (await pair[0].chat("x")).headers["x-cache"] == "HIT"
    assert pair.generations == 1
    await pair.engine.stop()


async def followed_or_claimed(redis: Any) -> bool:
    return bool([key async for key in redis.scan_iter("rh:1:claim:*")])


async def test_an_abandoned_generation_that_cannot_be_stored_is_cancelled(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter
) -> None:
    pair = await make_pair(redis_server, make_router, one=True, cache='on_abandon = "finish"')
    async with open_stream(pair[0], "x", headers={"cache-control": "no-store"}) as first:
        await first.read_until_text("one ")
    await asyncio.wait_for(pair.engine.client_disconnected.wait(), 10)
    await pair.engine.stop()


@pytest.mark.parametrize("directive", ["no-store", "no-cache"])
async def test_a_request_that_bypasses_the_cache_joins_no_flight(pair: Pair, directive: str) -> None:
    async with open_stream(pair[0], "x") as first:
        await first.read_until_text("one ")
        async with open_stream(pair[1], "x", headers={"cache-control": directive}) as second:
            await eventually(lambda: pair.generations == 2)
            go(pair.engine, 4)
            await first.read_to_end()
            assert (await second.read_to_end()).endswith(DONE_FRAME)
            assert (second.headers["x-cache"], second.headers["x-cache-reason"]) == ("BYPASS", directive)


async def test_another_tenant_does_not_join(redis_server: RedisServer, redis: Any, make_router: MakeRouter) -> None:
    tenants = '[auth]\nmode = "header"\n[[tenant]]\nname = "a"\n[[tenant]]\nname = "b"'
    pair = await make_pair(redis_server, make_router, one=True, rest=tenants)
    async with open_stream(pair[0], "x", headers={"x-tenant-id": "a"}) as first:
        await first.read_until_text("one ")
        async with open_stream(pair[0], "x", headers={"x-tenant-id": "b"}) as second:
            await eventually(lambda: pair.generations == 2)
            go(pair.engine, 4)
            await first.read_to_end()
            await second.read_to_end()
            assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "MISS")
    await pair.engine.stop()


# -- in-flight requests that fail -------------------------------------------------------------------------------------


async def test_a_generation_that_breaks_off_ends_for_all_with_an_error_event(pair: Pair) -> None:
    pair.engine.pieces = (ANSWER[0], b'data: {"error": {"message": "core died"}}\n\n' + DONE_FRAME)
    async with open_stream(pair[0], "x") as first:
        await first.read_until_text("one ")
        async with open_stream(pair[1], "x") as second:
            await second.read_until_text("one ")
            go(pair.engine)
            for reader in (first, second):
                last = parse_events(await reader.read_to_end())[-1]
                assert last["error"]["code"] == "engine_failed"
                assert not reader.received.endswith(DONE_FRAME)
    assert (await pair[1].http.get("/healthz")).json()["engines"]["scripted"]["in_flight"] == 0


async def test_a_subscriber_without_data_starts_again_when_the_flight_breaks_off(pair: Pair) -> None:
    pair.engine.pieces = (ANSWER[0], b'data: {"error": {"message": "core died"}}\n\n' + DONE_FRAME)
    async with open_stream(pair[0], "x") as first:
        await first.read_until_text("one ")
        request = asyncio.ensure_future(pair[1].chat("x"))
        await wait_for_subscribers(pair)
        pair.engine.pieces = (JSON_ANSWER[:9], JSON_ANSWER[9:])
        go(pair.engine)
        await first.read_to_end()
        go(pair.engine)
        answer = await request
    assert (answer.status_code, chat_text(answer)) == (200, "one two")
    assert pair.generations == 2


async def wait_for_subscribers(pair: Pair) -> None:
    """Returns once a follower has had the time to attach: later requests join the same in-flight request."""
    async with open_stream(pair[1], "x") as third:
        await third.read_until_text("one ")


async def test_an_engines_error_about_the_request_reaches_every_subscriber(
    make_router: MakeRouter, config: str, engines: EngineSet
) -> None:
    router = await make_router(config)
    await engines.chat.set_faults({"fault": "status", "code": 400, "message": "too long"})
    answers = await asyncio.gather(*(router.chat("The sea?", stream=n % 2 == 0) for n in range(10)))
    assert {answer.status_code for answer in answers} == {400}
    assert len({answer.json()["error"]["message"] for answer in answers}) == 1


async def test_a_flight_that_could_not_be_stored_leaves_nothing_behind(pair: Pair, redis: Any) -> None:
    pair.engine.pieces = (ANSWER[0], DONE_FRAME)  # without a finish reason
    go(pair.engine)
    assert (await pair[0].chat("x", stream=True)).status_code == 200
    await eventually(lambda: no_claims(redis))
    assert [key async for key in redis.scan_iter("rh:1:default:*")] == []


# -- bounds -----------------------------------------------------------------------------------------------------------


async def test_a_client_that_does_not_read_slows_no_other(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter
) -> None:
    pair = await make_pair(redis_server, make_router, one=True)
    long = [chat_frame(content="x" * 4000) for _ in range(200)]
    pair.engine.pieces = (ROLE_FRAME + long[0], *long[1:], chat_frame(content="", finish="stop") + DONE_FRAME)
    body = json.dumps(chat_body("x", stream=True)).encode()
    with socket.socket() as slow_socket:
        slow_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow_socket.connect(("127.0.0.1", pair[0].port))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        slow_socket.sendall(head + body)
        await eventually(lambda: pair.generations == 1)
        reading = asyncio.ensure_future(pair[0].chat("x", stream=True))
        go(pair.engine, 200)
        answer = await reading
        assert len(chat_text(answer)) == 800_000
        assert answer.headers["x-cache"] == "COALESCED"
    await pair.engine.stop()


async def test_a_client_that_falls_behind_a_long_response_gets_an_error(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "MAX_LAG", 1 << 20)
    pair = await make_pair(redis_server, make_router, one=True, cache='max_entry = "64KiB"')
    long = [chat_frame(content="x" * 40_000) for _ in range(400)]
    pair.engine.pieces = (ROLE_FRAME + long[0], *long[1:], chat_frame(content="", finish="stop") + DONE_FRAME)
    reader, writer = await asyncio.open_connection("127.0.0.1", pair[0].port, limit=2048)
    body = json.dumps(chat_body("x", stream=True)).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await eventually(lambda: pair.generations == 1)
    async with open_stream(pair[0], "x") as other:
        go(pair.engine, 400)
        assert len(await other.read_to_end()) > 16_000_000
        assert other.received.endswith(DONE_FRAME)
    received = await read_all(reader, b"engine_failed")
    assert b"the client reads too slowly" in received
    assert len(received) < 12_000_000
    writer.close()
    await pair.engine.stop()


async def read_all(reader: asyncio.StreamReader, mark: bytes) -> bytes:
    received = b""
    async with asyncio.timeout(15):
        while mark not in received[-4096:]:
            piece = await reader.read(65536)
            assert piece, "the stream ended without an error event"
            received += piece
    return received


async def test_a_response_too_large_to_keep_can_no_longer_be_joined(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter
) -> None:
    pair = await make_pair(redis_server, make_router, cache='max_entry = "1KiB"\nabandon = "0s"')
    pair.engine.pieces = (ANSWER[0], chat_frame(content="y" * 2000), *ANSWER[1:])
    async with open_stream(pair[0], "x") as first:
        go(pair.engine)
        await first.read_until_text("yyy")
        for router in pair:
            request = asyncio.ensure_future(router.chat("x", stream=True))
            await eventually(lambda: pair.generations > pair.index(router) + 1)  # noqa: B023
            request.cancel()
    await pair.engine.stop()
