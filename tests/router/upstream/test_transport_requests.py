"""The promises of the transport about what it sends."""

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import patch

import httpx
import pytest
from transport_rig import OK, answer, on_both_loops, post, rig

from router.upstream.connection import Connection


@on_both_loops
async def test_a_request_whose_body_is_in_memory_is_one_write() -> None:
    async with rig() as (transport, server):
        with patch.object(Connection, "write", autospec=True, side_effect=Connection.write) as write:
            asked = asyncio.create_task(answer(transport, post(server, b'{"stream": true}')))
            peer = await server.peer()
            request = await peer.request()
            peer.say(OK)
            assert await asked == b"ok"
        assert [call.args[1] for call in write.call_args_list] == [request]
        assert request.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:")
        assert request.endswith(b'\r\n\r\n{"stream": true}')


@on_both_loops
async def test_headers_go_out_as_they_are_given() -> None:
    async with rig() as (transport, server):
        request = post(server)
        request.headers = httpx.Headers([*request.headers.raw, (b"X-Odd-CASE", b"a  b"), (b"x-latin", b"\xe9")])
        asked = asyncio.create_task(answer(transport, request))
        peer = await server.peer()
        sent = await peer.request()
        peer.say(OK)
        await asked
        assert b"\r\nX-Odd-CASE: a  b\r\nx-latin: \xe9\r\n" in sent


@on_both_loops
async def test_a_header_that_would_become_two_is_refused_before_anything_is_sent() -> None:
    async with rig() as (transport, server):
        request = post(server)
        request.headers = httpx.Headers([(b"x-a", b"b\r\nx-evil: c")])
        with pytest.raises(httpx.LocalProtocolError) as caught:
            await transport.handle_async_request(request)
        assert caught.value.request is request
        assert server.accepted == 0


@on_both_loops
async def test_a_streamed_body_is_sent_in_chunks_or_by_its_length_as_the_headers_say() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"ab", b"", b"c"):
            yield part

    async with rig() as (transport, server):
        for headers, sent in (({}, b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), ({"Content-Length": "3"}, b"abc")):
            request = httpx.Request("POST", server.url, content=parts(), headers=headers)
            asked = asyncio.create_task(answer(transport, request))
            if server.accepted == 0:
                peer = await server.peer()
            await peer.reader.readuntil(b"\r\n\r\n")
            assert await peer.reader.readexactly(len(sent)) == sent
            peer.say(OK)
            assert await asked == b"ok"
        assert server.accepted == 1


@on_both_loops
async def test_a_streamed_body_that_is_not_as_long_as_announced_is_refused() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"abc"

    async with rig() as (transport, server):
        for announced in ("2", "4"):
            request = httpx.Request("POST", server.url, content=parts(), headers={"Content-Length": announced})
            with pytest.raises(httpx.LocalProtocolError) as caught:
                await transport.handle_async_request(request)
            assert caught.value.request is request
            assert transport.in_use == 0


@on_both_loops
async def test_an_answer_that_comes_before_the_body_was_sent_stops_it_and_the_connection_is_not_used_again() -> None:
    answered = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        await answered.wait()
        while True:
            yield bytes(65536)

    async with rig() as (transport, server):
        asked = asyncio.create_task(transport.handle_async_request(httpx.Request("POST", server.url, content=parts())))
        peer = await server.peer()
        await peer.reader.readuntil(b"\r\na\r\n")
        peer.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        answered.set()
        response = await asked
        assert response.status_code == 413
        await response.aread()
        assert (transport.in_use, transport.idle) == (0, 0)


@on_both_loops
async def test_a_body_that_the_server_does_not_take_is_a_write_timeout() -> None:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1024 * 1024)

    async with rig() as (transport, server):
        request = httpx.Request("POST", server.url, content=parts(), extensions={"timeout": {"write": 0.05}})
        with pytest.raises(httpx.WriteTimeout) as caught:
            await transport.handle_async_request(request)
        assert caught.value.request is request
