"""Coalescing with clients that read slowly: what only the buffers of sockets show. See tests/world for the rest."""

import asyncio
import json
import socket

import pytest

from router.flow.sharing import inflight as flight_module
from tests.support.router_server import ScriptedRouter, chat_body
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.streaming_client import open_stream
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

REQUEST = json.dumps(chat_body("x", stream=True)).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(REQUEST)


def go(engine: ScriptedEngine, times: int) -> None:
    for _ in range(times):
        engine.chunk_permits.release()


async def test_a_client_that_does_not_read_slows_no_other(scripted: ScriptedRouter) -> None:
    long = [chat_frame(content="x" * 4000) for _ in range(200)]
    pieces = (ROLE_FRAME + long[0], *long[1:], chat_frame(content="", finish="stop") + DONE_FRAME)
    router, engine = await scripted(*pieces, paced=True)
    with socket.socket() as slow_socket:
        slow_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow_socket.connect(("127.0.0.1", router.port))
        slow_socket.sendall(HEAD + REQUEST)
        await eventually(lambda: len(engine.bodies) == 1)
        async with open_stream(router, "x") as other:  # it has joined before the engine goes on
            assert other.headers["x-cache"] == "COALESCED"
            go(engine, 200)
            assert (await other.read_to_end()).endswith(DONE_FRAME)
            assert len(other.text) == 800_000


async def test_a_client_that_falls_behind_a_long_response_gets_an_error(
    scripted: ScriptedRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_module, "MAX_LAG", 1 << 20)
    long = [chat_frame(content="x" * 40_000) for _ in range(400)]
    pieces = (ROLE_FRAME + long[0], *long[1:], chat_frame(content="", finish="stop") + DONE_FRAME)
    router, engine = await scripted(*pieces, paced=True, cache='max_entry = "64KiB"')
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port, limit=2048)
    writer.write(HEAD + REQUEST)
    await eventually(lambda: len(engine.bodies) == 1)
    async with open_stream(router, "x") as other:
        go(engine, 400)
        assert len(await other.read_to_end()) > 16_000_000
        assert other.received.endswith(DONE_FRAME)
    received = await read_all(reader, b"engine_failed")
    assert b"the client reads too slowly" in received
    assert len(received) < 12_000_000
    writer.close()


async def read_all(reader: asyncio.StreamReader, mark: bytes) -> bytes:
    received = b""
    async with asyncio.timeout(TEST_TIMEOUT):
        while mark not in received[-4096:]:
            piece = await reader.read(65536)
            assert piece, "the stream ended without an error event"
            received += piece
    return received
