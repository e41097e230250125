"""Malformed, endless and outdated input on a connection, and the router's responses."""

import asyncio
import json
from typing import Any

import pytest

from router.net.server.request_parser import MAX_HEAD_BYTES, MAX_HEADERS
from tests.support.raw_http import CHAT_HEAD, CRLF, VERSION_REQUEST, chunked_body, connect, http_request
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = json.dumps(chat_body("The sea?")).encode()

MALFORMED = {
    "a length and chunks": CHAT_HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": CHAT_HEAD + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": CHAT_HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "the same length twice": CHAT_HEAD + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "a list of lengths": CHAT_HEAD + b"content-length: 5, 5\r\n\r\nhello",
    "a signed length": CHAT_HEAD + b"content-length: +5\r\n\r\nhello",
    "a length beyond numbers": CHAT_HEAD + b"content-length: 99999999999999999999999\r\n\r\nhello",
    "a coding that is nearly chunked": CHAT_HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding after chunked": CHAT_HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a second coding": CHAT_HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "a coding before chunked": CHAT_HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a folded header": CHAT_HEAD + b"x-folded: a\r\n  b\r\n\r\n",
    "a folded coding": CHAT_HEAD + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": CHAT_HEAD + b"content-length : 5\r\n\r\nhello",
    "a lone line feed": CHAT_HEAD + b"x-one: a\nx-two: b\r\n\r\n",
    "line feeds alone": CHAT_HEAD.replace(b"\r", b"") + b"\n",
    "a lone carriage return": CHAT_HEAD + b"x-one: a\rx-two: b\r\n\r\n",
    "a NUL": CHAT_HEAD + b"x-one: a\0b\r\n\r\n",
    "a chunk size in another base": CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a chunk size that overflows": CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello\r\n",
    "a chunk that ends in a line feed": CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "a chunk longer than it says": CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
    "no host": b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
    "two hosts": CHAT_HEAD + b"host: other\r\ncontent-length: 2\r\n\r\n{}",
    "no such version": b"GET /version HTTP/9.9\r\nhost: router\r\n\r\n",
    "no version": b"GET /version\r\n\r\n",
    "HTTP/2 at once": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT 127.0.0.1:6379 HTTP/1.1\r\nhost: router\r\n\r\n",
    "a path that is not ASCII": "GET /caf\u00e9 HTTP/1.1\r\nhost: router\r\n\r\n".encode(),
    "a TLS greeting": bytes.fromhex("16030100a5010000a10303"),
}


@pytest.mark.parametrize("attack", MALFORMED.values(), ids=MALFORMED)
async def test_an_ambiguous_request_is_refused_and_nothing_after_it_is_read(
    router: RouterServer, engines: EngineSet, attack: bytes
) -> None:
    before = [(await engine.stats())["received"] for engine in engines]
    async with connect(router.port) as connection:
        connection.write(attack, VERSION_REQUEST, VERSION_REQUEST)
        answer = await connection.read_response()
        assert (answer.status, answer.error_code) == (400, "invalid_http")
        assert b"\r\nconnection: close\r\n" in answer.head
        assert b"\r\nx-request-id: " in answer.head
        assert await connection.read_to_end() == b""
    assert [(await engine.stats())["received"] for engine in engines] == before
    assert (await router.chat("The sea?")).status_code == 200


async def test_a_target_in_absolute_form_is_routed_by_its_path_whatever_its_host(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        connection.write(http_request(chat_body("The sea?"), path=b"http://elsewhere.example/v1/chat/completions"))
        assert (await connection.read_response()).status == 200
        connection.write(http_request(method=b"GET", path=b"//elsewhere.example/version"))
        answer = await connection.read_response()
        assert answer.status == 404
        assert b"location" not in answer.head


# -- heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"x-long: ".ljust(MAX_HEAD_BYTES, b"y") + CRLF,
        b"".join(b"x-%d: y\r\n" % number for number in range(MAX_HEADERS)),
        b"x: y\r\n" * MAX_HEADERS,
    ],
    ids=["long", "many", "the same"],
)
@pytest.mark.parametrize("ends", [True, False])
async def test_a_head_that_is_too_large_is_431(router: RouterServer, head: bytes, ends: bool) -> None:
    async with connect(router.port) as connection:
        connection.write(b"GET /version HTTP/1.1\r\nhost: router\r\n", head, CRLF if ends else b"x-more: y")
        answer = await connection.read_response()
        assert (answer.status, answer.error_code) == (431, "headers_too_large")


async def test_a_head_within_the_limit_is_accepted(router: RouterServer) -> None:
    headers = [b"x-%d: %b" % (number, b"y" * 200) for number in range(MAX_HEADERS - 1)]
    async with connect(router.port) as connection:
        connection.write(http_request(None, *headers, method=b"GET", path=b"/version"))
        assert (await connection.read_response()).status == 200


async def test_a_long_target_is_refused(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        connection.write(http_request(method=b"GET", path=b"/version?" + b"x" * MAX_HEAD_BYTES))
        assert (await connection.read_response()).status == 431


# -- bodies -----------------------------------------------------------------------------------------------------------


async def test_chunk_extensions_and_trailers_are_ignored(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        body = b"%x;name=value\r\n%b\r\n0\r\nx-trailer: y\r\n\r\n" % (len(CHAT), CHAT)
        connection.write(CHAT_HEAD, b"transfer-encoding: chunked\r\n\r\n", body)
        assert (await connection.read_response()).status == 200


@pytest.mark.parametrize("endless", [b"1;", b"1\r\nx\r\n0\r\nx-trailer: ", b"1\r\nx\r\n0\r\n"])
async def test_chunk_extensions_and_trailers_have_size_limits_too(router: RouterServer, endless: bytes) -> None:
    async with connect(router.port) as connection:
        connection.write(CHAT_HEAD, b"transfer-encoding: chunked\r\n\r\n", endless)
        piece = b"x-trailer: y\r\n" * 1000 if endless.endswith(CRLF) else b"x" * 16384

        async def send() -> None:
            while True:
                connection.write(piece)
                await connection.writer.drain()

        sending = asyncio.ensure_future(send())
        ended = await connection.read_to_end()
        assert ended == b"" or ended.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
        sending.cancel()
        await asyncio.wait([sending])
        if not sending.cancelled():
            assert isinstance(sending.exception(), ConnectionError)


async def test_a_trailer_is_not_a_header(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    rest = '[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n'
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=rest))
    async with connect(router.port) as connection:
        body = chunked_body(CHAT, trailers=b"x-tenant-id: acme\r\n")
        connection.write(CHAT_HEAD, b"transfer-encoding: chunked\r\n\r\n", body)
        assert (await connection.read_response()).status == 401


async def test_a_client_that_expects_100_continue_gets_it_only_if_its_body_is_read(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        connection.write(CHAT_HEAD, b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(CHAT))
        assert (await connection.read_response()).status == 100
        connection.write(CHAT)
        assert (await connection.read_response()).status == 200
    async with connect(router.port) as connection:
        connection.write(CHAT_HEAD, b"expect: 100-continue\r\ncontent-length: 99999999\r\n\r\n")
        assert (await connection.read_response()).status == 413


# -- other protocols --------------------------------------------------------------------------------------------------

H2C = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAoAAAAAIAAAAA")


@pytest.mark.parametrize("pieces", [1, 2, 50])
async def test_a_request_that_offers_http2_is_served_as_http11(router: RouterServer, pieces: int) -> None:
    data = http_request(chat_body("The sea?"), *H2C) + http_request(chat_body("The sea?"), *H2C) + VERSION_REQUEST
    size = -(-len(data) // pieces)
    async with connect(router.port) as connection:
        for at in range(0, len(data), size):
            connection.write(data[at : at + size])
            await connection.writer.drain()
            await asyncio.sleep(0)
        assert [(await connection.read_response()).status for _ in range(3)] == [200, 200, 200]


async def test_a_chunked_request_that_offers_http2_is_served_as_well(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        connection.write(http_request(None, *H2C, b"transfer-encoding: chunked"), chunked_body(CHAT[:10], CHAT[10:]))
        assert (await connection.read_response()).status == 200


async def test_an_upgrade_with_connection_close_closes(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        connection.write(
            http_request(None, b"connection: close, upgrade", b"upgrade: h2c", method=b"GET", path=b"/version")
        )
        assert (await connection.read_response()).status == 200
        assert await connection.read_to_end() == b""


async def test_an_upgrade_does_not_smuggle(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        connection.write(
            http_request(None, *H2C, b"content-length: 3", b"transfer-encoding: chunked"), b"0\r\n\r\n", VERSION_REQUEST
        )
        assert (await connection.read_response()).status == 400
        assert await connection.read_to_end() == b""


async def test_a_websocket_whose_upgrade_a_proxy_has_taken_out_is_426(router: RouterServer) -> None:
    headers = (b"sec-websocket-version: 13", b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==")
    async with connect(router.port) as connection:
        connection.write(http_request(None, *headers, method=b"GET", path=b"/v1/responses"))
        answer = await connection.read_response()
        assert (answer.status, answer.error_code) == (426, "websocket_not_served")
        assert b"\r\nupgrade: http/1.1\r\n" in answer.head
        assert b"\r\nconnection: upgrade\r\n" in answer.head
        assert b"\r\nx-request-id: " in answer.head
        connection.write(http_request(None, *headers, method=b"GET", path=b"/v1/chat/completions"))
        assert (await connection.read_response()).status == 405


async def test_a_websocket_request_is_served_as_http11(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        headers = (b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-version: 13")
        connection.write(http_request(None, *headers, method=b"GET", path=b"/version"))
        assert (await connection.read_response()).status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_of_http10_gets_its_response_without_chunks(router: RouterServer, stream: bool) -> None:
    body = chat_body("The sea?", stream=stream)
    request = http_request(body).replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"host: router\r\n", b"")
    bodies = []
    for _ in range(2):  # a miss, and a hit
        async with connect(router.port) as connection:
            connection.write(request)
            answer = await connection.read_response()
            assert answer.status == 200
            assert b"transfer-encoding" not in answer.head
            assert b"\r\nconnection: close\r\n" in answer.head
            bodies.append(answer.body)
            assert await connection.read_to_end() == b""
    assert bodies[0] == bodies[1]
    if stream:
        assert bodies[0].endswith(b"data: [DONE]\n\n")


async def test_head_has_no_body_and_other_methods_are_405(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        connection.write(http_request(method=b"HEAD", path=b"/version"))
        assert (await connection.read_response(to_head_request=True)).status == 200
        connection.write(http_request(method=b"HEAD"))
        answer = await connection.read_response(to_head_request=True)
        assert answer.status == 405
        assert b"\r\nallow: options, post\r\n" in answer.head
        for method in (b"GET", b"PUT", b"DELETE", b"PATCH", b"TRACE"):
            connection.write(http_request(method=method))
            answer = await connection.read_response()
            assert (answer.status, answer.error_code) == (405, "method_not_allowed")
        connection.write(http_request(method=b"TRACE", path=b"/version"))
        assert (await connection.read_response()).status == 405


async def test_no_header_of_an_engine_reaches_a_client(scripted: Any) -> None:
    kind = "text/event-stream\r\nset-cookie: a=b\r\nx-cache: HIT\r\nx-evil: yes"
    router, _ = await scripted(
        ROLE_FRAME, chat_frame(content="a"), chat_frame(content="", finish="stop") + DONE_FRAME, content_type=kind
    )
    answer = await router.chat("The sea?", stream=True)
    assert answer.status_code == 200
    assert answer.headers["x-cache"] == "MISS"
    assert not {"set-cookie", "x-evil"} & set(answer.headers)
