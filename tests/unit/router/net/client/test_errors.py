"""The transport's promises about failures: the error, its cause, and that nothing stays in use."""

import asyncio
import socket
import ssl
import tempfile
from pathlib import Path

import pytest
import uvloop

from router.net.client.connection import HTTPConnection
from router.net.client.errors import EngineError
from router.net.client.transport import HTTPTransport
from router.net.client.watch import WatchedExchange
from tests.support.certificate import certificate, needs_openssl
from tests.support.transport_harness import (
    OK,
    STREAM,
    BodyChunks,
    fetch_body,
    on_both_loops,
    raises_engine_error,
    send_request,
    serve_peers,
    start_fetch,
    start_request,
    transport_and_server,
)


@on_both_loops
async def test_a_refused_connection_is_reported_as_such() -> None:
    with socket.socket() as bound:  # bound but not listening, so that no other process gets the port
        bound.bind(("127.0.0.1", 0))
        async with HTTPTransport() as transport:
            with raises_engine_error("connect", cause="Errno"):
                await send_request(transport, f"http://127.0.0.1:{bound.getsockname()[1]}/")
            assert transport.in_use == 0


@pytest.mark.parametrize("url", ["http://engine.invalid/", f"http://{'a' * 70}.invalid/"])
async def test_an_unreachable_address_is_a_connect_error(url: str) -> None:
    async with HTTPTransport() as transport:
        with raises_engine_error("connect"):
            await send_request(transport, url)
        assert transport.in_use == 0


@pytest.mark.parametrize(("connect", "head_timeout", "reason"), [(0.05, 60, "connect"), (60, 0.05, "timeout")])
def test_a_connection_that_takes_too_long_is_aborted(connect: float, head_timeout: float, reason: str) -> None:
    @on_both_loops
    async def scenario() -> None:
        async with transport_and_server() as (transport, server):
            transport.prepare(("https", "127.0.0.1", 0, ""))
            # The server does not use TLS, so the handshake never ends.
            with raises_engine_error(reason):
                await send_request(
                    transport, server.url.replace("http:", "https:"), connect=connect, head_timeout=head_timeout
                )
            assert await (await server.peer()).reader.read() != b""  # and then the client's end was closed

    for loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        scenario(loop_factory=loop)


@on_both_loops
async def test_a_head_that_does_not_arrive_is_a_timeout_and_frees_the_engine() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server, head_timeout=0.5)
        with raises_engine_error("timeout"):
            await request
        assert await peer.closed_by_client()


@on_both_loops
async def test_a_chunk_that_does_not_arrive_is_a_timeout_and_frees_the_engine() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(STREAM + b"1\r\na\r\n")
        stream = BodyChunks(await request, chunk_timeout=0.05)
        assert await anext(stream) == b"a"
        with raises_engine_error("timeout"):
            await anext(stream)
        with pytest.raises(RuntimeError, match="closed"):
            await anext(stream)
        assert await peer.closed_by_client()


@on_both_loops
async def test_an_exception_of_a_sink_is_raised_in_the_reader_and_frees_the_engine() -> None:
    def sink(piece: bytes) -> bool:
        raise KeyError(piece)

    for first in (b"1\r\na\r\n", b""):  # it has arrived already, or arrives later
        async with transport_and_server() as (transport, server):
            request, peer = await start_request(transport, server)
            peer.send(STREAM + first)
            streaming = asyncio.create_task((await request).stream_to(sink))
            await asyncio.sleep(0)
            peer.send(b"1\r\nb\r\n")
            with pytest.raises(KeyError):
                await streaming
            assert await peer.closed_by_client()


@on_both_loops
async def test_a_response_over_the_limit_is_aborted() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(STREAM + b"3\r\nabc\r\n")
        with raises_engine_error("too-large"):
            await (await request).read(2)
        assert await peer.closed_by_client()


class Clock:
    """An event loop of which only the time and the timers are used, so that a test can control them."""

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
        """Advances the clock to the last timer."""
        self.now, callback = self.timers[-1]
        callback()  # type: ignore[operator]


class Watch:
    """Allows silence until an instant."""

    def __init__(self, until: float = 0.0) -> None:
        self.until = until
        self.watched: list[WatchedExchange] = []

    def begin(self, exchange: WatchedExchange) -> None:
        self.watched.append(exchange)

    def end(self, exchange: WatchedExchange) -> None:
        self.watched.remove(exchange)

    def silent_until(self, exchange: WatchedExchange, limit: float) -> float:
        return self.until

    def timed_out(self, exchange: WatchedExchange) -> EngineError:
        return EngineError("timeout", "the watch says so")


def waiting_connection(
    clock: Clock, head_timeout: float, total: float = 1000.0, watch: Watch | None = None
) -> tuple[HTTPConnection, asyncio.Future[Exception | None]]:
    """A connection with a started exchange that waits for its head, on a fake socket."""
    connection = HTTPConnection(
        ("http", "h", 80, ""),
        clock,  # type: ignore[arg-type]
        high_water=1000,
        max_head=1000,
        on_lost=lambda _: None,
    )
    connection.connection_made(Nowhere())
    return connection, connection.send_request(b"", clock.now + head_timeout, clock.now + total, watch)


class Nowhere(asyncio.Transport):
    """A fake socket."""

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


def waits(arrival: "asyncio.Future[Exception | None] | None") -> bool:
    return arrival is not None and not arrival.done()


def timed_out(arrival: "asyncio.Future[Exception | None] | None") -> bool:
    failure = arrival.result() if arrival is not None else None
    return isinstance(failure, EngineError) and failure.reason == "timeout"


async def test_chunks_extend_the_timeout_without_setting_a_timer() -> None:
    clock = Clock()
    connection, _ = waiting_connection(clock, 10.0)
    connection.data_received(STREAM)
    streaming = connection.stream_to(lambda _: False, 10.0)
    for second in range(1, 10):
        clock.now = float(second)
        connection.data_received(b"1\r\na\r\n")
    assert [when for when, _ in clock.timers] == [10.0]
    clock.fire()
    assert waits(streaming)  # one second since the last chunk is not ten
    assert [when for when, _ in clock.timers] == [10.0, 19.0]
    clock.fire()
    assert timed_out(streaming)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_watch_allows_more_silence_but_not_beyond_the_total_timeout(*, streams: bool) -> None:
    clock, watch = Clock(), Watch(until=15.0)
    connection, waiter = waiting_connection(clock, 10.0, 30.0, watch)
    waiting: asyncio.Future[Exception | None] | None = waiter
    if streams:
        connection.data_received(STREAM)
        waiting = connection.stream_to(lambda _: False, 10.0)
    clock.fire()
    assert (clock.now, waits(waiting)) == (10.0, True)
    watch.until = 1000.0
    clock.fire()
    assert (clock.now, waits(waiting)) == (15.0, True)
    clock.fire()
    assert (clock.now, timed_out(waiting)) == (30.0, True)


async def test_after_more_silence_that_a_watch_allowed_the_timeout_counts_from_the_next_chunk() -> None:
    clock, watch = Clock(), Watch(until=15.0)
    connection, _ = waiting_connection(clock, 10.0, watch=watch)
    connection.data_received(STREAM)
    streaming = connection.stream_to(lambda _: False, 10.0)
    clock.fire()
    clock.now = 14.0
    connection.data_received(b"1\r\na\r\n")
    clock.fire()
    assert waits(streaming)
    clock.fire()
    assert (clock.now, timed_out(streaming)) == (24.0, True)


async def test_an_exchange_is_watched_until_its_end() -> None:
    clock, watch = Clock(), Watch()
    connection, _ = waiting_connection(clock, 10.0, watch=watch)
    assert watch.watched == [connection]
    connection.data_received(STREAM)
    connection.finish_exchange()
    assert watch.watched == []


async def test_an_exchange_is_bound_until_its_end() -> None:
    connection, _ = waiting_connection(Clock(), 10.0)
    assert not connection.is_bound()
    connection.bind_if(lambda: True)
    assert connection.is_bound()
    connection.finish_exchange()
    assert not connection.is_bound()


async def test_a_watch_ends_an_exchange_that_is_not_sent_again() -> None:
    clock, watch = Clock(), Watch()
    connection, waiter = waiting_connection(clock, 10.0, watch=watch)
    connection.abort(EngineError("lost", "the engine is gone"))
    failure = waiter.result()
    assert isinstance(failure, EngineError)
    assert (failure.reason, connection.closed_while_idle) == ("lost", False)


async def test_nothing_extends_the_total_timeout() -> None:
    clock = Clock()
    connection, _ = waiting_connection(clock, 10.0, total=12.0)
    connection.data_received(STREAM)
    streaming = connection.stream_to(lambda _: False, 10.0)
    clock.now = 9.0
    connection.data_received(b"1\r\na\r\n")
    clock.now = 10.0
    clock.fire()
    assert [when for when, _ in clock.timers] == [10.0, 12.0]
    clock.fire()
    assert timed_out(streaming)


async def test_bytes_that_do_not_end_the_head_do_not_extend_its_timeout() -> None:
    clock = Clock()
    connection, head = waiting_connection(clock, 10.0)
    clock.now = 9.0
    connection.data_received(b"HTTP/1.1 2")
    clock.fire()
    assert timed_out(head)


async def test_a_body_has_the_timeout_of_its_head_if_its_chunks_have_none() -> None:
    clock = Clock()
    connection, _ = waiting_connection(clock, 10.0)
    connection.data_received(STREAM)
    streaming = connection.stream_to(lambda _: False)
    clock.now = 9.0
    connection.data_received(b"1\r\na\r\n")
    clock.fire()
    assert timed_out(streaming)


async def test_no_timeout_runs_while_no_task_waits() -> None:
    clock = Clock()
    connection, _ = waiting_connection(clock, 10.0)
    connection.data_received(STREAM)
    clock.fire()
    clock.now = 100.0
    streaming = connection.stream_to(lambda _: False, 10.0)
    assert [when for when, _ in clock.timers] == [10.0, 110.0]
    assert waits(streaming)
    clock.fire()
    assert timed_out(streaming)


async def test_a_shorter_timeout_does_not_wait_for_the_timer_of_a_longer_one() -> None:
    clock = Clock()
    connection, _ = waiting_connection(clock, 60.0)
    connection.data_received(STREAM)
    connection.stream_to(lambda _: False, 1.0)
    assert [when for when, _ in clock.timers] == [60.0, 1.0]


async def test_one_timer_serves_consecutive_exchanges() -> None:
    clock = Clock()
    connection, _ = waiting_connection(clock, 60.0)
    for second in range(1, 60):
        connection.data_received(OK)
        assert connection.stream_to(lambda _: False) is None
        assert connection.finish_exchange()
        clock.now = float(second)
        head = connection.send_request(b"", clock.now + 60.0, 1000.0)
    clock.now = 60.0
    clock.fire()
    assert [when for when, _ in clock.timers] == [60.0, 119.0]
    assert waits(head)


async def test_a_lost_connection_leaves_no_timer_behind() -> None:
    clock = Clock()
    connection, _ = waiting_connection(clock, 10.0)
    timer = connection._timer
    assert timer is not None
    connection.connection_lost(None)
    assert timer.cancelled()


@on_both_loops
async def test_a_reset_during_a_body_is_reported_after_the_data_before_it() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(STREAM + b"1\r\na\r\n")
        stream = BodyChunks(await request)
        assert await anext(stream) == b"a"
        peer.reset()
        with raises_engine_error("reset", cause="reset"):
            await anext(stream)


@on_both_loops
async def test_a_truncated_body_is_an_error_after_the_data_before_it() -> None:
    for reply in (STREAM + b"4\r\nab", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab"):
        async with transport_and_server() as (transport, server):
            request, peer = await start_request(transport, server)
            peer.send(reply)
            peer.close()
            stream = BodyChunks(await request)
            assert await anext(stream) == b"ab"
            with raises_engine_error("broken-off"):
                await anext(stream)


@on_both_loops
async def test_a_malformed_response_is_an_error_and_its_connection_is_closed() -> None:
    for reply in (b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"\0" * 100):
        async with transport_and_server() as (transport, server):
            request, peer = await start_request(transport, server)
            peer.send(reply)
            with raises_engine_error("broken-off"):
                await request
            assert await peer.closed_by_client()


@on_both_loops
async def test_a_head_that_is_too_large_is_refused() -> None:
    async with transport_and_server(max_head=1024) as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2000)
        with raises_engine_error("broken-off", cause="head of more than 1024 bytes"):
            await request


@on_both_loops
async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    for version in (b"1.0", b"1.1"):
        async with transport_and_server() as (transport, server):
            request, peer = await start_fetch(transport, server)
            peer.send(b"HTTP/" + version + b" 200 OK\r\n\r\nto the end")
            peer.close()
            assert await request == b"to the end"
            assert transport.idle == 0


@needs_openssl
@on_both_loops
async def test_tls_works_with_authorities_that_have_signed_the_servers_certificate_and_fails_without() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await exchange_over_tls(certificate(Path(folder)))


async def exchange_over_tls(path: Path) -> None:
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(path)
    ca_file = str(path)
    async with serve_peers(theirs) as server, HTTPTransport() as transport:
        for _ in range(2):
            request = asyncio.create_task(fetch_body(transport, server, ca_file=ca_file))
            if server.accepted == 0:
                peer = await server.peer()
            await peer.request()
            peer.send(OK)
            assert await request == b"ok"
        assert (server.accepted, transport.idle) == (1, 1)

        request = asyncio.create_task(fetch_body(transport, server, ca_file=ca_file))
        await peer.request()
        peer.send(STREAM + b"4\r\nab")
        peer.writer.transport.abort()
        with pytest.raises(EngineError) as caught:
            await request
        assert caught.value.reason in ("broken-off", "reset")

        with raises_engine_error("connect", cause="certificate"):
            await send_request(transport, server.url)
        with raises_engine_error("connect"):
            await send_request(transport, server.url, ca_file=f"{path}.absent")
        assert transport.in_use == 0


@on_both_loops
async def test_a_unix_socket_is_an_engine_like_any_other() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(OK)
        await writer.drain()
        writer.close()

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/engine.sock"
        async with await asyncio.start_unix_server(answer, path), HTTPTransport() as transport:
            response = await send_request(transport, f"unix://{path}")
            assert await response.read(100) == b"ok"
            with raises_engine_error("connect"):
                await send_request(transport, f"unix://{path}.absent")
