"""The guarantees of the client and its transport about what they send."""

import asyncio
import socket

import pytest

from router.core.endpoints.chat import CHAT
from router.core.endpoints.completions import COMPLETIONS
from router.net.client.target import Origin, RequestTarget
from router.upstream.client import EngineClient
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from tests.support.transport_harness import (
    LONG,
    OK,
    fetch_body,
    on_both_loops,
    raises_engine_error,
    send_request,
    transport_and_server,
)

LARGE = bytes(64 * 1024 * 1024)  # more than the socket buffers hold


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="this system counts no segments")
@on_both_loops
async def test_a_request_is_one_write() -> None:
    async with transport_and_server() as (transport, server):
        pending = asyncio.create_task(fetch_body(transport, server, b'{"stream": true}'))
        peer = await server.peer()
        request = await peer.request()
        assert peer.received_segments() == 1
        peer.send(OK)
        assert await pending == b"ok"
        assert request.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:")
        assert request.endswith(b'\r\n\r\n{"stream": true}')


@on_both_loops
async def test_a_request_to_an_engine_has_the_length_of_the_body_and_the_ids_of_the_request() -> None:
    async with transport_and_server() as (transport, server):
        engine = Engine(EngineConfig(name="a", model="m", task="any", url=server.base, served_model="m"))
        client = EngineClient(transport, connect_timeout=LONG)
        peer = None
        for trace in (None, "00-abc-def-01"):
            request = asyncio.ensure_future(
                client.post(
                    engine, COMPLETIONS, b'{"a":1}', request_id="id-1", traceparent=trace, head_timeout=LONG,
                    total_timeout=LONG,
                )
            )  # fmt: skip
            peer = peer or await server.peer()
            head, _, body = (await peer.request()).partition(b"\r\n\r\n")
            peer.send(OK)
            with await request as response:
                assert (response.status, await response.read(100)) == (200, b"ok")
            line, *fields = head.decode().split("\r\n")
            assert line == "POST /v1/completions HTTP/1.1"
            assert dict(field.split(": ") for field in fields) == {
                "host": server.base.removeprefix("http://"),
                "accept-encoding": "identity",
                "content-type": "application/json",
                "content-length": "7",
                "x-request-id": "id-1",
                **({} if trace is None else {"traceparent": trace}),
            }
            assert body == b'{"a":1}'
        assert server.accepted == 1


@on_both_loops
async def test_an_engines_own_pages_are_requested_without_a_body() -> None:
    async with transport_and_server() as (transport, server):
        engine = Engine(EngineConfig(name="a", model="m", task="any", url=server.base, served_model="m"))
        request = asyncio.ensure_future(EngineClient(transport, connect_timeout=LONG).get(engine, "/health", timeout=9))
        peer = await server.peer()
        host = server.base.removeprefix("http://").encode()
        assert await peer.request() == b"GET /health HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n\r\n" % host
        peer.send(OK)
        assert await (await request).read(100) == b"ok"


@on_both_loops
async def test_a_header_that_would_become_two_is_refused_before_anything_is_sent() -> None:
    async with transport_and_server() as (transport, server):
        engine = Engine(EngineConfig(name="a", model="m", task="any", url=server.base, served_model="m"))
        client = EngineClient(transport, connect_timeout=LONG)
        for value in ("a\r\nevil: 1", "a\nevil: 1", "a\rb", "a\0b", "\r\n", "\N{SNOWMAN}"):
            for ids in ({"request_id": value, "traceparent": None}, {"request_id": "x", "traceparent": value}):
                with pytest.raises(ValueError, match=r"cannot carry|codec"):
                    await client.post(engine, CHAT, b"{}", **ids, head_timeout=LONG, total_timeout=LONG)
        assert server.accepted == 0


@on_both_loops
async def test_a_response_before_the_end_of_the_body_is_read_and_the_connection_is_not_reused() -> None:
    async with transport_and_server() as (transport, server):
        request = asyncio.create_task(send_request(transport, server.url, LARGE))
        peer = await server.peer()
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        response = await request
        assert response.status == 413
        assert await response.read(100) == b""
        assert (transport.in_use, transport.idle) == (0, 0)


@on_both_loops
async def test_a_body_that_the_server_does_not_read_is_a_timeout() -> None:
    async with transport_and_server() as (transport, server):
        with raises_engine_error("timeout"):
            await send_request(transport, server.url, LARGE, head_timeout=0.05)
        await server.peer()  # the end of the test closes only a connection that has been accepted


@pytest.mark.parametrize(
    ("base", "origin", "line", "host"),
    [
        ("http://a", ("http", "a", 80, ""), b"POST /x?z=1 HTTP/1.1", b"a"),
        ("https://a:8443/y", ("https", "a", 8443, ""), b"POST /y/x?z=1 HTTP/1.1", b"a:8443"),
        ("http://[::1]:80", ("http", "::1", 80, ""), b"POST /x?z=1 HTTP/1.1", b"[::1]"),
        ("http://b\u00fccher.example/\u00fc x", ("http", "xn--bcher-kva.example", 80, ""),
         b"POST /%C3%BC%20x/x?z=1 HTTP/1.1", b"xn--bcher-kva.example"),
        ("unix:///run/an engine.sock", ("unix", "/run/an engine.sock", 0, ""), b"POST /x?z=1 HTTP/1.1", b"localhost"),
    ],
)  # fmt: skip
def test_the_content_of_a_page_is_returned(base: str, origin: Origin, line: bytes, host: bytes) -> None:
    page = RequestTarget(base, "/x?z=1")
    assert page.origin == origin
    assert page.post_prefix.startswith(line + b"\r\nhost: " + host + b"\r\n")


@pytest.mark.parametrize(
    "address", ["ftp://127.0.0.1/", "unix://run/e.sock", "127.0.0.1:80/x", "http:///x", "http://a/\r\nevil: 1", ""]
)
def test_an_address_that_is_not_http_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not "):
        RequestTarget(address, "")


def test_every_request_carries_the_engines_headers() -> None:
    target = RequestTarget("http://a", "/x", headers={"authorization": "Bearer k", "x-team": "ml"})
    lines = b"authorization: Bearer k\r\nx-team: ml\r\n"
    assert target.get_request.endswith(lines + b"\r\n")
    assert lines in target.post_prefix
