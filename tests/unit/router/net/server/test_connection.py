"""What an application can expect of the server, and what a client receives from it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from router.api.protocol_messages import render
from router.net.pending_replies import PendingReplies
from router.net.server.client_connection import CLIENT_EXTENSION
from router.net.server.connection import MAX_PIPELINED_BYTES, BoundedHttpProtocol, asgi_address
from router.net.server.start_limiter import StartLimiter
from router.net.server.timeouts import ClientTimeouts
from tests.support.raw_http import CHAT_HEAD, VERSION_REQUEST, connect, http_request
from tests.support.waiting import TEST_TIMEOUT, eventually, next_line

App = Callable[[Any, Any, Any], Awaitable[None]]


class Served(asyncio.Protocol):
    """A connection that records the writes to its transport, and when it is closed."""

    def __init__(self, connection: BoundedHttpProtocol, pieces: list[bytes], lost: asyncio.Event) -> None:
        self.connection, self.pieces, self.lost = connection, pieces, lost
        self.data_received = connection.data_received  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: Any) -> None:
        write = transport.write

        def record(data: bytes) -> None:
            self.pieces.append(data)
            write(data)

        transport.write = record
        self.connection.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.connection_lost(exc)
        self.lost.set()


@asynccontextmanager
async def serving(
    app: App, lost: asyncio.Event | None = None, *, start_limiter: StartLimiter | None = None
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """The port and the recorded writes; `lost` is set when a connection is closed."""
    config = uvicorn.Config(app, interface="asgi3", proxy_headers=False, ws="none", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    pieces: list[bytes] = []

    def make() -> Served:
        return Served(
            BoundedHttpProtocol(config, state, {}, loop, start_limiter=start_limiter, render_error=render),
            pieces,
            lost or asyncio.Event(),
        )

    server = await loop.create_server(make, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], pieces
        async with asyncio.timeout(TEST_TIMEOUT):
            while tasks := state.tasks:
                await asyncio.wait(tasks)
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def test_a_response_without_waiting_needs_no_task_and_is_one_write() -> None:
    tasks = []

    async def app(_: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b'"a"'
        tasks.append(asyncio.current_task())
        await send(start((b"content-length", b"5")))
        await send(body(b"hello"))

    async with serving(app) as (port, pieces), connect(port) as connection:
        connection.write(http_request("a"))
        assert (await connection.read_response()).body == b"hello"
        assert tasks == [None]
        assert pieces == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"]


async def test_the_output_of_one_loop_iteration_is_one_write_and_the_first_includes_the_head() -> None:
    async def app(_: Any, receive: Any, send: Any) -> None:
        await send(start())
        await receive()
        await asyncio.sleep(0)
        await send(body(b"one", more=True))
        await asyncio.sleep(0)
        for data in (b"two", b"three"):
            await send(body(data, more=True))
        await asyncio.sleep(0)
        await send(body(b"four"))

    async with serving(app) as (port, pieces), connect(port) as connection:
        connection.write(http_request("a"))
        assert (await connection.read_response()).body == b"onetwothreefour"
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        assert pieces == [head + b"3\r\none\r\n", b"3\r\ntwo\r\n5\r\nthree\r\n", b"4\r\nfour\r\n0\r\n\r\n"]


async def test_an_application_that_never_yields_does_not_accumulate_what_it_sends() -> None:
    large, small = b"a" * 20_000, b"b" * 1000

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(start())
        await send(body(large, more=True))
        for _ in range(40):
            await send(body(small, more=True))
        await send(body(b""))

    async with serving(app) as (port, pieces), connect(port) as connection:
        connection.write(http_request("a"))
        assert (await connection.read_response()).body == large + 40 * small
        assert len(pieces) > 3
        assert max(map(len, pieces)) < 21_000


async def test_data_sent_before_an_application_raises_reaches_the_client() -> None:
    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(start())
        await send(body(b"one", more=True))
        raise RuntimeError("a defect")

    async with serving(app) as (port, _), connect(port) as connection:
        connection.write(http_request("a"))
        assert (await connection.read_to_end()).endswith(b"3\r\none\r\n")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_response_that_is_broken_off_has_no_end_and_is_not_logged(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    can_break_off = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        client = scope["extensions"][CLIENT_EXTENSION]
        client.start_response(200, b"", None)
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        can_break_off.append(client.can_break_off())
        client.break_off()

    async with serving(app) as (port, _), connect(port) as connection:
        connection.write(VERSION_REQUEST.replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        received = await connection.read_to_end()
    assert received.endswith(b"3\r\nabc\r\n" if version == "1.1" else b"\r\n\r\nabc")
    assert can_break_off == [version == "1.1"]
    assert caplog.messages == []


async def test_pipelined_requests_run_one_after_the_other() -> None:
    seen: list[str] = []

    async def app(scope: Any, _: Any, send: Any) -> None:
        seen.append(scope["path"])
        asyncio.get_running_loop().call_soon(seen.append, "others")
        await send(start((b"content-length", b"0")))
        await send(body(b""))

    async with serving(app) as (port, _), connect(port) as connection:
        connection.write(*[http_request(method=b"GET", path=b"/%d" % number) for number in range(3)])
        for _ in range(3):
            await connection.read_response()
    assert seen == ["/0", "others", "/1", "others", "/2", "others"]


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("injected", [b"a\r\nx: y", b"a\nx: y", b"a\rx: y", b"a\0", b"\r", b"\n"])
async def test_no_value_of_a_header_becomes_another_header(
    injected: bytes, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(_: Any, receive: Any, send: Any) -> None:
        if waits:
            await asyncio.sleep(0)
        await send(start((b"x-one", b"a"), (b"x-two", injected), (b"content-length", b"0")))
        await send(body(b""))

    with caplog.at_level(logging.CRITICAL, "uvicorn.error"):
        async with serving(app) as (port, _), connect(port) as connection:
            connection.write(VERSION_REQUEST)
            answer = await connection.read_response()
            assert (answer.status, answer.error_code) == (500, "internal_error")
            assert b"x-one" not in answer.head
            assert await connection.read_to_end() == b""


@pytest.mark.parametrize("parts", [[b"four"], [b"sixsix"], [b"six", b"six"]])
async def test_a_body_of_another_length_than_declared_is_not_accepted_as_complete(
    parts: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def app(_: Any, receive: Any, send: Any) -> None:
        await send(start((b"content-length", b"5")))
        for part in parts[:-1]:
            await send(body(part, more=True))
        await send(body(parts[-1]))

    with caplog.at_level(logging.CRITICAL, "uvicorn.error"):
        async with serving(app) as (port, _), connect(port) as connection:
            connection.write(VERSION_REQUEST)
            ended = await connection.read_to_end()
    assert ended.startswith(b"HTTP/1.1 500 ") if len(parts) == 1 else ended.endswith(b"\r\n\r\nsix")


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("sends", [[], [start()], [start(), body(b"a", more=True)]])
async def test_an_application_that_fails_gets_an_error_response_and_the_connection_closes(
    sends: list[Any], waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(_: Any, receive: Any, send: Any) -> None:
        if waits:
            await asyncio.sleep(0)
        for message in sends:
            await send(message)

    with caplog.at_level(logging.CRITICAL, "uvicorn.error"):
        async with serving(app) as (port, _), connect(port) as connection:
            connection.write(VERSION_REQUEST)
            ended = await connection.read_to_end()
    assert ended.startswith(b"HTTP/1.1 500 " if len(sends) < 2 else b"HTTP/1.1 200 ")
    assert not ended.endswith(b"0\r\n\r\n")


# -- addresses ---------------------------------------------------------------------------------------------------------


async def test_a_scope_has_the_addresses_of_both_ends() -> None:
    scopes = []

    async def app(scope: Any, _: Any, send: Any) -> None:
        scopes.append(scope)
        await send(start((b"connection", b"close"), (b"content-length", b"0")))
        await send(body(b""))

    async with serving(app) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(VERSION_REQUEST)
        assert await reader.read()
        here = writer.get_extra_info("sockname")
        writer.close()
    assert [(scope["client"], scope["server"]) for scope in scopes] == [(here, ("127.0.0.1", port))]


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("10.0.0.1", 80), ("10.0.0.1", 80)),
        (("::1", 80, 0, 3), ("::1", 80)),
        ("/run/roundhouse.sock", ("/run/roundhouse.sock", None)),
        ("", None),
        (None, None),
    ],
    ids=["IPv4", "IPv6", "a path", "a client without a path", "gone"],
)
def test_an_address_is_a_host_and_a_port(name: Any, address: Any) -> None:
    assert asgi_address(name) == address


# -- disconnects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [True, False], ids=["before it is watched", "while it is watched"])
async def test_a_watched_client_that_disconnects_cancels_its_request(late: bool) -> None:
    started, left, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        client = scope["extensions"][CLIENT_EXTENSION]
        if late:
            started.set()
            while (await receive())["type"] != "http.disconnect":
                pass
        client.cancel_on_disconnect()
        started.set()
        try:
            await left.wait()
        except asyncio.CancelledError:
            assert client.cancelled_by_disconnect
            cancelled.set()

    async with serving(app) as (port, _):
        async with connect(port) as connection:
            connection.write(http_request("a"))
            await started.wait()
        async with asyncio.timeout(TEST_TIMEOUT):
            await cancelled.wait()


async def test_a_client_that_disconnects_before_there_is_a_task_cancels_its_request_too() -> None:
    lost, cancelled = asyncio.Event(), asyncio.Event()
    replies: asyncio.Queue[PendingReplies] = asyncio.Queue()

    async def app(scope: Any, _: Any, __: Any) -> None:
        client = scope["extensions"][CLIENT_EXTENSION]
        reply = PendingReplies(asyncio.get_running_loop())
        replies.put_nowait(reply)
        await reply
        assert asyncio.current_task() is None
        client.cancel_on_disconnect()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert client.cancelled_by_disconnect
            cancelled.set()

    async with serving(app, lost) as (port, _):
        async with connect(port) as connection:
            connection.write(http_request("a"))
            reply = await replies.get()
        await lost.wait()
        asyncio.get_running_loop().call_soon(reply.set_result, [])
        async with asyncio.timeout(TEST_TIMEOUT):
            await cancelled.wait()


@pytest.mark.parametrize("stopped", [True, False])
async def test_an_unwatched_client_that_disconnects_cancels_nothing(stopped: bool) -> None:
    started, disconnected = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        client = scope["extensions"][CLIENT_EXTENSION]
        if stopped:
            client.cancel_on_disconnect()
            client.ignore_disconnect()
        started.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        await send(start())
        await send(body(b"nobody gets it"))
        assert not client.cancelled_by_disconnect
        disconnected.set()

    async with serving(app) as (port, pieces):
        async with connect(port) as connection:
            connection.write(http_request("a"))
            await started.wait()
        async with asyncio.timeout(TEST_TIMEOUT):
            await disconnected.wait()
        assert pieces == []


async def test_a_client_that_disconnects_after_its_response_is_not_an_early_disconnect() -> None:
    disconnects = []
    lost = asyncio.Event()

    async def app(scope: Any, _: Any, send: Any) -> None:
        client = scope["extensions"][CLIENT_EXTENSION]
        client.cancel_on_disconnect()
        await send(start((b"connection", b"close"), (b"content-length", b"0")))
        await send(body(b""))
        await lost.wait()
        disconnects.append(client.cancelled_by_disconnect)

    async with serving(app, lost) as (port, _), connect(port) as connection:
        connection.write(VERSION_REQUEST)
        assert (await connection.read_to_end()).startswith(b"HTTP/1.1 200 ")
    assert disconnects == [False]


# -- the client connection, beside `send` -----------------------------------------------------------------------------


async def test_a_client_accepts_parts_of_a_started_response_until_its_buffer_is_full() -> None:
    async def app(scope: Any, _: Any, send: Any) -> None:
        client = scope["extensions"][CLIENT_EXTENSION]
        assert not client.try_send(b"too early")
        await send(start())
        assert not client.try_send(b"too early")
        await send(body(b"a", more=True))
        assert client.try_send(b"b")
        accepted = 0
        while client.try_send(b"x" * 65536):
            accepted += 1
        await send(body(b"c%d" % accepted))
        assert not client.try_send(b"too late")

    async with serving(app) as (port, _), connect(port) as connection:
        connection.write(VERSION_REQUEST)
        answer = await connection.read_response()
    assert answer.body.startswith(b"abx")
    assert answer.body.count(b"x") == 65536 * int(answer.body.rpartition(b"c")[2])


@pytest.mark.parametrize(
    ("length", "framing"), [(5, b"content-length: 5"), (None, b"transfer-encoding: chunked")], ids=["whole", "stream"]
)
async def test_a_response_may_start_with_preformatted_header_lines(length: int | None, framing: bytes) -> None:
    async def app(scope: Any, _: Any, send: Any) -> None:
        client = scope["extensions"][CLIENT_EXTENSION]
        client.start_response(203, b"x-one: a\r\n", length)
        with pytest.raises(RuntimeError):
            client.start_response(200, b"", None)
        await send(body(b"hello"))

    async with serving(app) as (port, _), connect(port) as connection:
        connection.write(VERSION_REQUEST)
        answer = await connection.read_response()
        assert (answer.status, answer.body) == (203, b"hello")
        assert answer.head.split()[-4:] == [b"x-one:", b"a", *framing.split()]


async def test_the_body_of_a_request_that_waits_for_its_start_is_not_sent_ahead() -> None:
    size = 12 * MAX_PIPELINED_BYTES
    arrived = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            arrived.append(len(message["body"]))
            more = message["more_body"]
        await send(start((b"content-length", b"0")))
        await send(body(b""))

    limiter = StartLimiter(limit=0)
    async with serving(app, start_limiter=limiter) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHAT_HEAD + b"content-length: %d\r\n\r\n" % size + b"x" * size)
        await eventually(lambda: limiter._waiting)
        connection: Any = limiter._waiting[0].__self__  # type: ignore[attr-defined]  # it is a method
        await eventually(lambda: not connection.transport.is_reading())
        (start_request,) = limiter._waiting  # it waits once, however often its body arrives meanwhile
        start_request()
        await writer.drain()
        assert (await next_line(reader)).startswith(b"HTTP/1.1 200")
        assert sum(arrived) == size
        assert arrived[0] <= MAX_PIPELINED_BYTES
        writer.close()


async def test_a_connection_that_closes_is_cut_off_if_its_client_does_not_read_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers: list[tuple[float, Callable[[], object]]] = []
    aborts: list[str] = []
    transport: Any = SimpleNamespace(
        is_closing=lambda: True, abort=lambda: aborts.append("aborted"), get_extra_info=lambda _: None
    )
    config = uvicorn.Config("none:none", interface="asgi3", proxy_headers=False, ws="none", log_config=None)
    config.loaded_app = None
    loop = asyncio.get_running_loop()
    timeouts = ClientTimeouts(receive=30, send=60, keep_alive=75)
    connection = BoundedHttpProtocol(config, ServerState(), {}, loop, timeouts=timeouts, render_error=render)
    monkeypatch.setattr(loop, "call_later", lambda delay, callback: timers.append((delay, callback)))
    connection.connection_made(transport)
    ((delay, cut_off),) = timers
    cut_off()
    assert (delay, aborts) == (timeouts.send, ["aborted"])


async def test_a_request_may_be_answered_before_it_is_complete_and_the_next_one_follows() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start((b"content-length", b"0"), status=413 if scope["method"] == "POST" else 200))
        await send(body(b""))

    async with serving(app) as (port, _), connect(port) as connection:
        connection.write(CHAT_HEAD, b"content-length: 200000\r\n\r\n")
        assert (await connection.read_response()).status == 413
        connection.write(b"x" * 200000, VERSION_REQUEST)
        assert (await connection.read_response()).status == 200
