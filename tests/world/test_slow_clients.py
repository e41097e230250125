"""Clients that are slow to send and to disconnect; and pipelined requests."""

import asyncio

import pytest

from router.net.server.connection import MAX_PIPELINED_BYTES
from tests.support.raw_http import CHAT_HEAD, CRLF, VERSION_REQUEST, connect, http_request
from tests.support.router_server import chat_body, router_config
from tests.support.waiting import eventually
from tests.world.http import PORT
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario


async def start(world: World, receive: str = "60s") -> tuple[WorldRouter, WorldEngine]:
    engine = await world.engine()
    table = {"one": ("llama", "any", engine.url)}
    return await world.router(router_config(world.redis.url, table, router=f'receive = "{receive}"')), engine


@pytest.mark.parametrize(
    "part",
    [
        b"P", CHAT_HEAD, CHAT_HEAD + b"content-length: 100\r\n\r\n", CHAT_HEAD + b"content-length: 100\r\n\r\n{",
        CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n",
    ],
    ids=["a letter", "half a head", "no body", "half a body", "half a chunk"],
)  # fmt: skip
@scenario
async def test_a_request_that_does_not_arrive_in_time_is_408(world: World, part: bytes) -> None:
    router, _ = await start(world, receive="200ms")
    async with connect(PORT, host=router.name) as connection:
        connection.write(part)
        answer = await connection.read_response()
        assert (answer.status, answer.error_code) == (408, "request_timeout")
        assert await connection.read_to_end() == b""


@scenario
async def test_a_request_that_arrives_too_slowly_is_408_too(world: World) -> None:
    router, _ = await start(world, receive="200ms")
    async with connect(PORT, host=router.name) as connection:
        connection.write(CHAT_HEAD, b"content-length: 100000\r\n\r\n")

        async def drip() -> None:
            while True:
                connection.write(b" ")
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        assert (await connection.read_response()).status == 408
        dripping.cancel()


@pytest.mark.parametrize("sent", [b"", CRLF])
@scenario
async def test_a_connection_without_a_request_is_closed(world: World, sent: bytes) -> None:
    router, _ = await start(world, receive="200ms")
    async with connect(PORT, host=router.name) as connection:
        connection.write(sent)
        assert await connection.read_to_end() == b""


@scenario
async def test_a_response_may_take_longer_than_the_request_timeout(world: World) -> None:
    router, engine = await start(world, receive="200ms")
    await engine.set_faults({"fault": "tps", "rate": 6})
    answer = await router.chat("The sea?", max_tokens=10)
    assert answer.status_code == 200
    assert answer.elapsed.total_seconds() > 0.3


# -- pipelining -------------------------------------------------------------------------------------------------------


@scenario
async def test_pipelined_requests_are_served_in_order(world: World) -> None:
    router, _ = await start(world)
    async with connect(PORT, host=router.name) as connection:
        connection.write(
            http_request(chat_body("The sea?")), VERSION_REQUEST, http_request(chat_body("The sea?")), VERSION_REQUEST
        )
        first, second, third, fourth = [await connection.read_response() for _ in range(4)]
    assert b"x-cache: miss" in first.head
    assert b"x-cache: hit" in third.head
    assert first.body == third.body
    assert second.body == fourth.body == (await router.http.get("/version")).content


AHEAD = {"whole": VERSION_REQUEST, "part": CHAT_HEAD, "big": http_request(chat_body("x" * 100_000))[:-9]}


@pytest.mark.parametrize(("ahead", "stream"), [("whole", True), ("part", False), ("big", True)])
@scenario
async def test_a_client_that_pipelines_a_request_and_disconnects_frees_the_engine(
    world: World, ahead: str, stream: bool
) -> None:
    router, engine = await start(world)
    await engine.set_faults({"fault": "stall", "after": 2})
    async with connect(PORT, host=router.name) as connection:
        connection.write(http_request(chat_body("The sea?", stream=stream)))
        await engine.stats(in_flight=1)
        connection.write(AHEAD[ahead])
    await engine.stats(in_flight=0)
    assert (await engine.stats())["aborted"] == 1


LARGE = {"100 kB": 100_100, "3 MiB": 12 * 256 * 1024 + 150_000}
"""Bytes of a body; its last read is larger than what the router buffers before it pauses reading."""


@pytest.mark.parametrize(
    ("size", "stream", "after"),
    [("100 kB", True, 0), ("100 kB", False, 2), ("3 MiB", True, 2), ("3 MiB", False, 0)],
)
@scenario
async def test_a_client_with_a_large_body_that_disconnects_frees_the_engine(
    world: World, size: str, stream: bool, after: int
) -> None:
    router, engine = await start(world)
    await engine.set_faults({"fault": "stall", "after": after})
    async with connect(PORT, host=router.name) as connection:
        sent = http_request(chat_body("The sea?", stream=stream, padding="x" * LARGE[size]))
        connection.write(sent[:-100_000])
        await eventually(lambda: router.application._runtime.active_requests == 1)
        connection.write(sent[-100_000:])
        await engine.stats(in_flight=1)
    await engine.stats(in_flight=0)
    assert (await engine.stats())["aborted"] == 1


@scenario
async def test_a_request_after_a_large_body_in_the_same_read_is_served(world: World) -> None:
    router, _ = await start(world)
    async with connect(PORT, host=router.name) as connection:
        connection.write(http_request(chat_body("The sea?", padding="x" * 100_000)), VERSION_REQUEST[:-5])
        assert (await connection.read_response()).status == 200
        connection.write(VERSION_REQUEST[-5:])
        assert (await connection.read_response()).status == 200


@scenario
async def test_many_pipelined_upgrade_requests_are_served_until_too_many_wait(world: World) -> None:
    router, _ = await start(world)
    upgrade = http_request(None, b"connection: Upgrade", b"upgrade: h2c", method=b"GET", path=b"/version")
    sent = 3 * MAX_PIPELINED_BYTES // len(upgrade)
    async with connect(PORT, host=router.name) as connection:
        connection.write(upgrade * sent)
        response = await connection.read_to_end()
    count = response.count(b"HTTP/1.1 200 OK")
    assert 100 < count < sent
    assert response.count(b"HTTP/1.1 ") == count
    assert response.rpartition(b"HTTP/1.1 200 OK")[2].count(b"connection: close") == 1


@scenario
async def test_garbage_after_a_request_does_not_get_into_its_response(world: World) -> None:
    router, engine = await start(world)
    await engine.set_faults({"fault": "tps", "rate": 100})
    async with connect(PORT, host=router.name) as connection:
        # Both in one write, so that the garbage has arrived before the response is complete.
        connection.write(http_request(chat_body("The sea?", stream=True, max_tokens=20)), b"nonsense\r\n\r\n")
        answer = await connection.read_response()
        assert answer.status == 200
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert await connection.read_to_end() == b""


@scenario
async def test_pipelined_requests_have_a_limit_and_accepted_ones_are_served(world: World) -> None:
    router, engine = await start(world)
    await engine.set_faults({"fault": "tps", "rate": 60})
    async with connect(PORT, host=router.name) as connection:
        connection.write(http_request(chat_body("The sea?", max_tokens=20)))
        await engine.stats(in_flight=1)
        sent = 2 * MAX_PIPELINED_BYTES // len(VERSION_REQUEST)
        for _ in range(sent):
            connection.write(VERSION_REQUEST)
        response = await connection.read_to_end()
    count = response.count(b"HTTP/1.1 200 OK")
    assert 100 < count < sent
    assert response.count(b"connection: close") == 1
    assert response.rpartition(b"HTTP/1.1 200 OK")[2].count(b"connection: close") == 1
