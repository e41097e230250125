"""The promises of the transport about failure: which error, that it carries the request, that nothing stays in use."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path

import httpx
import pytest
from transport_rig import OK, STREAM, answer, chunks, on_both_loops, post, rig, serving

from router.upstream.connection import Connection
from router.upstream.transport import Transport


@on_both_loops
async def test_a_refused_connection_is_a_connect_error() -> None:
    with socket.socket() as bound:  # bound, and not listening: nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        request = httpx.Request("GET", f"http://127.0.0.1:{bound.getsockname()[1]}/")
        async with Transport() as transport:
            with pytest.raises(httpx.ConnectError) as caught:
                await transport.handle_async_request(request)
            assert caught.value.request is request
            assert transport.in_use == 0


@pytest.mark.parametrize("url", ["http://engine.invalid/", f"http://{'a' * 70}.invalid/", "http://127.0.0.1:99999/"])
async def test_an_address_that_leads_nowhere_is_a_connect_error(url: str) -> None:
    async with Transport() as transport:
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(httpx.Request("GET", url))
        assert transport.in_use == 0


async def test_another_scheme_is_unsupported() -> None:
    async with Transport() as transport:
        with pytest.raises(httpx.UnsupportedProtocol):
            await transport.handle_async_request(httpx.Request("GET", "ftp://127.0.0.1/"))


@on_both_loops
async def test_a_connection_that_takes_too_long_is_a_connect_timeout() -> None:
    async with rig() as (transport, server):
        # The server does not speak TLS, so that the handshake never ends.
        url = server.url.replace("http:", "https:")
        request = httpx.Request("GET", url, extensions={"timeout": {"connect": 0.05}})
        with pytest.raises(httpx.ConnectTimeout) as caught:
            await transport.handle_async_request(request)
        assert caught.value.request is request
        assert await (await server.peer()).reader.read() != b""  # and then our end was closed


@on_both_loops
async def test_a_head_that_does_not_come_is_a_read_timeout_and_frees_the_engine() -> None:
    async with rig() as (transport, server):
        request = post(server, read=0.05)
        asked = asyncio.create_task(transport.handle_async_request(request))
        peer = await server.peer()
        await peer.request()
        with pytest.raises(httpx.ReadTimeout) as caught:
            await asked
        assert caught.value.request is request
        assert await peer.left()


@on_both_loops
async def test_a_chunk_that_does_not_come_is_a_read_timeout_and_frees_the_engine() -> None:
    async with rig() as (transport, server):
        asked = asyncio.create_task(transport.handle_async_request(post(server, read=0.05)))
        peer = await server.peer()
        await peer.request()
        peer.say(STREAM + b"1\r\na\r\n")
        stream = chunks(await asked)
        assert await anext(stream) == b"a"
        with pytest.raises(httpx.ReadTimeout):
            await anext(stream)
        with pytest.raises(httpx.StreamClosed):
            await anext(stream)
        assert await peer.left()


class Clock:
    """An event loop of which only the time and the timers are used, so that a test can move them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, object]] = []

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def call_at(self, when: float, callback: object) -> asyncio.TimerHandle:
        self.timers.append((when, callback))
        return asyncio.TimerHandle(when, callback, (), asyncio.get_running_loop())  # type: ignore[arg-type]

    def fire(self) -> None:
        """Let the time of the last timer come."""
        self.now, callback = self.timers[-1]
        callback()  # type: ignore[operator]


def reading(clock: Clock, read_timeout: float) -> Connection:
    """A connection with an exchange that waits for its head, on a socket that is not there."""
    connection = Connection(
        ("http", "h", 80),
        clock,  # type: ignore[arg-type]
        high_water=1000,
        max_head=1000,
        on_lost=lambda _: None,
    )
    connection.connection_made(asyncio.Transport())
    connection._transport = None  # what is not there cannot be closed either
    connection._request = httpx.Request("GET", "http://h/")
    connection._read_timeout = read_timeout
    return connection


async def test_bytes_put_the_read_timeout_off_and_no_timer_is_set_for_them() -> None:
    clock = Clock()
    connection = reading(clock, 10.0)
    connection.data_received(STREAM)
    for second in range(1, 10):
        waits = connection.more()
        clock.now = float(second)
        connection.data_received(b"1\r\na\r\n")
        assert waits.done()
    connection.more()
    assert [when for when, _ in clock.timers] == [10.0]
    clock.fire()
    connection.check()  # nine seconds since the last byte are not ten
    assert [when for when, _ in clock.timers] == [10.0, 19.0]
    clock.fire()
    with pytest.raises(httpx.ReadTimeout):
        connection.check()


async def test_bytes_that_bring_no_body_put_the_read_timeout_off_too() -> None:
    clock = Clock()
    connection = reading(clock, 10.0)
    waits = connection.more()
    clock.now = 9.0
    connection.data_received(b"HTTP/1.1 2")
    assert waits.done()  # so that the reader looks, and waits again
    connection.more()
    clock.now = 10.0
    clock.fire()
    connection.check()


async def test_no_read_timeout_passes_while_nobody_waits() -> None:
    clock = Clock()
    connection = reading(clock, 10.0)
    connection.more()
    connection.data_received(STREAM)
    clock.fire()
    connection.check()
    clock.now = 100.0
    waits = connection.more()
    assert [when for when, _ in clock.timers] == [10.0, 110.0]
    clock.fire()
    assert waits.done()
    with pytest.raises(httpx.ReadTimeout):
        connection.check()


async def test_a_shorter_timeout_does_not_wait_for_the_timer_of_a_longer_one() -> None:
    clock = Clock()
    connection = reading(clock, 60.0)
    connection.more()
    connection.data_received(STREAM)
    connection._read_timeout = 1.0
    connection.more()
    assert [when for when, _ in clock.timers] == [60.0, 1.0]


async def test_without_a_read_timeout_there_is_no_timer() -> None:
    clock = Clock()
    connection = reading(clock, 0.0)
    connection._read_timeout = None
    connection.more()
    assert clock.timers == []


@on_both_loops
async def test_a_reset_in_mid_body_is_a_read_error_after_what_came_before_it() -> None:
    async with rig() as (transport, server):
        request = post(server)
        asked = asyncio.create_task(transport.handle_async_request(request))
        peer = await server.peer()
        await peer.request()
        peer.say(STREAM + b"1\r\na\r\n")
        stream = chunks(await asked)
        assert await anext(stream) == b"a"
        peer.reset()
        with pytest.raises(httpx.ReadError) as caught:
            await anext(stream)
        assert caught.value.request is request
        assert isinstance(caught.value.__cause__, OSError)


@on_both_loops
async def test_a_body_that_is_cut_short_is_a_remote_protocol_error_after_what_came_before_it() -> None:
    for reply in (STREAM + b"4\r\nab", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab"):
        async with rig() as (transport, server):
            request = post(server)
            asked = asyncio.create_task(transport.handle_async_request(request))
            peer = await server.peer()
            await peer.request()
            peer.say(reply)
            peer.close()
            stream = chunks(await asked)
            assert await anext(stream) == b"ab"
            with pytest.raises(httpx.RemoteProtocolError) as caught:
                await anext(stream)
            assert caught.value.request is request


@on_both_loops
async def test_a_malformed_response_is_a_remote_protocol_error_and_its_connection_is_closed() -> None:
    for reply in (b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"\0" * 100):
        async with rig() as (transport, server):
            request = post(server)
            asked = asyncio.create_task(transport.handle_async_request(request))
            peer = await server.peer()
            await peer.request()
            peer.say(reply)
            with pytest.raises(httpx.RemoteProtocolError) as caught:
                await asked
            assert caught.value.request is request
            assert await peer.left()


@on_both_loops
async def test_a_head_that_is_too_large_is_refused() -> None:
    async with rig(max_head=1024) as (transport, server):
        asked = asyncio.create_task(transport.handle_async_request(post(server)))
        peer = await server.peer()
        await peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2000)
        with pytest.raises(httpx.RemoteProtocolError, match="head of more than 1024 bytes"):
            await asked


@on_both_loops
async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    for version in (b"1.0", b"1.1"):
        async with rig() as (transport, server):
            asked = asyncio.create_task(answer(transport, post(server)))
            peer = await server.peer()
            await peer.request()
            peer.say(b"HTTP/" + version + b" 200 OK\r\n\r\nto the end")
            peer.close()
            assert await asked == b"to the end"
            assert transport.idle == 0


def certificate(folder: Path) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, in one file."""
    path = folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", path, "-out", folder / "c.pem"], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (folder / "c.pem").read_bytes())
    return path


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
@on_both_loops
async def test_tls_works_with_a_context_that_trusts_the_server_and_fails_without() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = certificate(Path(folder))
        theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        theirs.load_cert_chain(path)
        ours = ssl.create_default_context(cafile=str(path))
    async with serving(theirs) as server, Transport(ssl_context=ours) as transport, Transport() as distrustful:
        for _ in range(2):
            asked = asyncio.create_task(answer(transport, post(server)))
            if server.accepted == 0:
                peer = await server.peer()
            await peer.request()
            peer.say(OK)
            assert await asked == b"ok"
        assert (server.accepted, transport.idle) == (1, 1)

        asked = asyncio.create_task(answer(transport, post(server)))
        await peer.request()
        peer.say(STREAM + b"4\r\nab")
        peer.writer.transport.abort()
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await asked

        request = post(server)
        with pytest.raises(httpx.ConnectError) as caught:
            await distrustful.handle_async_request(request)
        assert caught.value.request is request
        assert distrustful.in_use == 0
