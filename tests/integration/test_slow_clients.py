"""Clients that are slow to send, to read and to disconnect; and pipelined requests."""

import asyncio
import socket

import pytest

from router.net.server.connection import MAX_PIPELINED_BYTES
from tests.support.raw_http import CHAT_HEAD, CRLF, VERSION_REQUEST, connect, http_request
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, ScriptedRouter, chat_body, router_config
from tests.support.sse_answers import ROLE_FRAME, chat_frame
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

# -- slow clients -----------------------------------------------------------------------------------------------------


@pytest.fixture
def short_timeouts(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config(), router='receive = "200ms"')


@pytest.mark.parametrize(
    "part",
    [
        b"P", CHAT_HEAD, CHAT_HEAD + b"content-length: 100\r\n\r\n", CHAT_HEAD + b"content-length: 100\r\n\r\n{",
        CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n",
    ],
    ids=["a letter", "half a head", "no body", "half a body", "half a chunk"],
)  # fmt: skip
async def test_a_request_that_does_not_arrive_in_time_is_408(
    short_timeouts: str, make_router: MakeRouter, part: bytes
) -> None:
    router = await make_router(short_timeouts)
    async with connect(router.port) as connection:
        connection.write(part)
        answer = await connection.read_response()
        assert (answer.status, answer.error_code) == (408, "request_timeout")
        assert await connection.read_to_end() == b""


async def test_a_request_that_arrives_too_slowly_is_408_too(short_timeouts: str, make_router: MakeRouter) -> None:
    router = await make_router(short_timeouts)
    async with connect(router.port) as connection:
        connection.write(CHAT_HEAD, b"content-length: 100000\r\n\r\n")

        async def drip() -> None:
            while True:
                connection.write(b" ")
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        assert (await connection.read_response()).status == 408
        dripping.cancel()


@pytest.mark.parametrize("sent", [b"", CRLF])
async def test_a_connection_without_a_request_is_closed(
    short_timeouts: str, make_router: MakeRouter, sent: bytes
) -> None:
    router = await make_router(short_timeouts)
    async with connect(router.port) as connection:
        connection.write(sent)
        assert await connection.read_to_end() == b""


async def test_a_response_may_take_longer_than_the_request_timeout(
    short_timeouts: str, make_router: MakeRouter, engines: EngineSet
) -> None:
    router = await make_router(short_timeouts)
    await engines.chat.set_faults({"fault": "tps", "rate": 6})
    answer = await router.chat("The sea?", max_tokens=10)
    assert answer.status_code == 200
    assert answer.elapsed.total_seconds() > 0.3


async def test_a_client_that_does_not_read_its_stream_frees_the_engine_in_time(scripted: ScriptedRouter) -> None:
    long = [chat_frame(content="x" * 60_000) for _ in range(500)]
    router, engine = await scripted(ROLE_FRAME + long[0], *long[1:], router='send = "300ms"', hold=True)
    with _slow_socket(router) as slow_socket:
        slow_socket.sendall(http_request(chat_body("x", stream=True)))
        async with asyncio.timeout(TEST_TIMEOUT):
            await engine.client_disconnected.wait()


async def test_a_client_that_reads_no_response_loses_its_connection(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), router='send = "300ms"'))
    with _slow_socket(router) as slow_socket:
        slow_socket.settimeout(TEST_TIMEOUT)
        await asyncio.to_thread(_ask_until_reset, slow_socket)


def _slow_socket(router: RouterServer) -> socket.socket:
    """A connection whose client reads almost nothing."""
    slow_socket = socket.socket()
    slow_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow_socket.connect(("127.0.0.1", router.port))
    return slow_socket


def _ask_until_reset(slow_socket: socket.socket) -> None:
    try:
        while True:
            slow_socket.sendall(VERSION_REQUEST * 1000)
    except ConnectionError:
        return


# -- pipelining -------------------------------------------------------------------------------------------------------


async def test_pipelined_requests_are_served_in_order(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        connection.write(
            http_request(chat_body("The sea?")), VERSION_REQUEST, http_request(chat_body("The sea?")), VERSION_REQUEST
        )
        first, second, third, fourth = [await connection.read_response() for _ in range(4)]
    assert b"x-cache: miss" in first.head
    assert b"x-cache: hit" in third.head
    assert first.body == third.body
    assert second.body == fourth.body == (await router.http.get("/version")).content


AHEAD = {"whole": VERSION_REQUEST, "part": CHAT_HEAD, "big": http_request(chat_body("x" * 100_000))[:-9]}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD)
async def test_a_client_that_pipelines_a_request_and_disconnects_frees_the_engine(
    router: RouterServer, engines: EngineSet, stream: bool, ahead: bytes
) -> None:
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    before = (await engines.chat.stats())["aborted"]
    async with connect(router.port) as connection:
        connection.write(http_request(chat_body("The sea?", stream=stream)))
        await engines.chat.stats(in_flight=1)
        connection.write(ahead)
    await engines.chat.stats(in_flight=0)
    assert (await engines.chat.stats())["aborted"] == before + 1


LARGE = {"100 kB": 100_100, "3 MiB": 12 * 256 * 1024 + 150_000}
"""Bytes of a body; its last read is larger than what the router buffers before it pauses reading."""


@pytest.mark.parametrize("size", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("after", [0, 2], ids=["before the first token", "after it"])
async def test_a_client_with_a_large_body_that_disconnects_frees_the_engine(
    router: RouterServer, engines: EngineSet, size: int, stream: bool, after: int
) -> None:
    await engines.chat.set_faults({"fault": "stall", "after": after})
    before = (await engines.chat.stats())["aborted"]
    async with connect(router.port) as connection:
        sent = http_request(chat_body("The sea?", stream=stream, padding="x" * size))
        connection.write(sent[:-100_000])
        await eventually(lambda: router.application._runtime.active_requests == 1)
        connection.write(sent[-100_000:])
        await engines.chat.stats(in_flight=1)
    await engines.chat.stats(in_flight=0)
    assert (await engines.chat.stats())["aborted"] == before + 1


async def test_a_request_after_a_large_body_in_the_same_read_is_served(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        connection.write(http_request(chat_body("The sea?", padding="x" * 100_000)), VERSION_REQUEST[:-5])
        assert (await connection.read_response()).status == 200
        connection.write(VERSION_REQUEST[-5:])
        assert (await connection.read_response()).status == 200


async def test_many_pipelined_upgrade_requests_are_served_until_too_many_wait(router: RouterServer) -> None:
    upgrade = http_request(None, b"connection: Upgrade", b"upgrade: h2c", method=b"GET", path=b"/version")
    sent = 3 * MAX_PIPELINED_BYTES // len(upgrade)
    async with connect(router.port) as connection:
        connection.write(upgrade * sent)
        response = await connection.read_to_end()
    count = response.count(b"HTTP/1.1 200 OK")
    assert 100 < count < sent
    assert response.count(b"HTTP/1.1 ") == count
    assert response.rpartition(b"HTTP/1.1 200 OK")[2].count(b"connection: close") == 1


async def test_garbage_after_a_request_does_not_get_into_its_response(router: RouterServer, engines: EngineSet) -> None:
    await engines.chat.set_faults({"fault": "tps", "rate": 100})
    async with connect(router.port) as connection:
        # Both in one write, so that the garbage has arrived before the response is complete.
        connection.write(http_request(chat_body("The sea?", stream=True, max_tokens=20)), b"nonsense\r\n\r\n")
        answer = await connection.read_response()
        assert answer.status == 200
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert await connection.read_to_end() == b""


async def test_pipelined_requests_have_a_limit_and_accepted_ones_are_served(
    router: RouterServer, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "tps", "rate": 60})
    async with connect(router.port) as connection:
        connection.write(http_request(chat_body("The sea?", max_tokens=20)))
        await engines.chat.stats(in_flight=1)
        sent = 2 * MAX_PIPELINED_BYTES // len(VERSION_REQUEST)
        for _ in range(sent):
            connection.write(VERSION_REQUEST)
        response = await connection.read_to_end()
    count = response.count(b"HTTP/1.1 200 OK")
    assert 100 < count < sent
    assert response.count(b"connection: close") == 1
    assert response.rpartition(b"HTTP/1.1 200 OK")[2].count(b"connection: close") == 1
