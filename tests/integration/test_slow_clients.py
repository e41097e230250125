"""Clients that are slow to read, or gone while the router does not read: what only the buffers of sockets show.

tests/world/test_slow_clients.py has those that are slow to send.
"""

import asyncio
import socket

import pytest

from tests.support.raw_http import VERSION_REQUEST, connect, http_request
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, ScriptedRouter, chat_body, router_config
from tests.support.sse_answers import ROLE_FRAME, chat_frame
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

LARGE = 12 * 256 * 1024 + 150_000
"""Bytes of a body; its last read is larger than what the router buffers before it pauses reading."""


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


async def test_a_client_with_a_large_body_that_disconnects_frees_the_engine(
    router: RouterServer, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    before = (await engines.chat.stats())["aborted"]
    async with connect(router.port) as connection:
        sent = http_request(chat_body("The sea?", stream=True, padding="x" * LARGE))
        connection.write(sent[:-100_000])
        await eventually(lambda: router.application._runtime.active_requests == 1)
        connection.write(sent[-100_000:])
        await engines.chat.stats(in_flight=1)
    await engines.chat.stats(in_flight=0)
    assert (await engines.chat.stats())["aborted"] == before + 1
