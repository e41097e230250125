"""The transport's promises about one exchange; each test is named for one."""

import asyncio
import gzip
import socket
from unittest.mock import patch

import pytest

from tests.support.transport_harness import (
    LONG,
    OK,
    STREAM,
    BodyChunks,
    complete_exchange,
    fetch_body,
    on_both_loops,
    raises_engine_error,
    send_request,
    start_request,
    transport_and_server,
)

PIECE = 256 * 1024  # what either event loop reads at once, at most


@on_both_loops
async def test_the_stream_yields_the_data_since_the_last_read_as_one_object() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(STREAM + b"1\r\na\r\n2\r\nbc\r\n3\r\ndef\r\n")
        stream = BodyChunks(await request)
        assert await anext(stream) == b"abcdef"
        peer.send(b"1\r\ng\r\n1\r\nh\r\n0\r\n\r\n")
        assert await anext(stream) == b"gh"
        assert transport.idle == 1
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@on_both_loops
async def test_the_stream_does_not_decode() -> None:
    packed = gzip.compress(b"hello")
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed)
        response = await request
        assert b"".join([part async for part in BodyChunks(response)]) == packed


@on_both_loops
async def test_the_response_has_its_status_and_retry_after() -> None:
    async with transport_and_server() as (transport, server):
        for value in (b"1", None):
            request, peer = await start_request(transport, server)
            header = b"rEtry-After: %b\r\n" % value if value is not None else b""
            peer.send(b"HTTP/1.0 429 Whatever\r\nX-A: 1\r\n%bContent-Length: 0\r\n\r\n" % header)
            with await request as response:
                assert response.status == 429
                assert response.retry_after == (value.decode() if value is not None else None)


@on_both_loops
async def test_a_response_read_to_its_end_returns_its_connection_to_the_pool() -> None:
    async with transport_and_server() as (transport, server):
        peer = await complete_exchange(transport, server)
        assert (transport.in_use, transport.idle) == (0, 1)
        request = asyncio.create_task(fetch_body(transport, server))
        await peer.request()
        peer.send(OK)
        assert await request == b"ok"
        assert server.accepted == 1


@on_both_loops
async def test_a_complete_response_that_is_closed_unread_returns_its_connection_to_the_pool() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(OK)
        response = await request
        assert transport.in_use == 1
        response.close()
        response.close()
        assert (transport.in_use, transport.idle) == (0, 1)


@on_both_loops
async def test_an_engine_sees_a_client_that_closes_a_stream_early() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(STREAM + b"1\r\na\r\n")
        response = await request
        async for part in BodyChunks(response):
            assert part == b"a"
            break
        response.close()
        assert await peer.closed_by_client()
        assert (transport.in_use, transport.idle) == (0, 0)
        with pytest.raises(RuntimeError, match="closed"):
            await anext(BodyChunks(response))


@on_both_loops
async def test_a_complete_response_may_end_a_moment_later_and_returns_its_connection_to_the_pool() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(STREAM + b"1\r\na\r\n")
        response = await request
        assert await anext(BodyChunks(response)) == b"a"
        response.close(linger=True)
        assert (transport.in_use, transport.idle) == (1, 0)
        (connection,) = transport._busy
        ending = connection._waiter
        assert ending is not None
        peer.send(b"0\r\n\r\n")
        await ending
        assert (transport.in_use, transport.idle) == (0, 1)


@pytest.mark.parametrize("more", [b"1\r\nb\r\n", None])
def test_a_complete_response_that_does_not_end_is_closed(more: bytes | None) -> None:
    async def scenario() -> None:
        async with transport_and_server() as (transport, server):
            request, peer = await start_request(transport, server)
            peer.send(STREAM + b"1\r\na\r\n")
            response = await request
            assert await anext(BodyChunks(response)) == b"a"
            with patch("router.net.client.response.LINGER", LONG if more else 0.02):
                response.close(linger=True)
            if more:
                peer.send(more)
            assert await peer.closed_by_client()
            assert (transport.in_use, transport.idle) == (0, 0)

    asyncio.run(scenario())


@on_both_loops
async def test_an_engine_sees_a_client_that_disconnects_before_the_head() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert (transport.in_use, transport.idle) == (0, 0)
        assert await peer.closed_by_client()


@on_both_loops
async def test_a_reader_cancelled_while_it_waits_for_a_chunk_frees_the_engine_without_closing_the_response() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(STREAM + b"1\r\na\r\n")
        stream = BodyChunks(await request)
        assert await anext(stream) == b"a"
        waits = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)  # one iteration, so that it has started to wait
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert (transport.in_use, transport.idle) == (0, 0)
        assert await peer.closed_by_client()


@on_both_loops
async def test_cancelling_while_connecting_leaks_nothing() -> None:
    async with transport_and_server() as (transport, server):
        # The server does not use TLS, so the handshake never ends.
        request = asyncio.create_task(send_request(transport, server.url.replace("http:", "https:")))
        peer = await server.peer()
        await peer.reader.readexactly(1)
        assert transport.in_use == 1
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert transport.in_use == 0
        await peer.closed_by_client()


class ReadPauseRecorder:
    """Wraps a socket's transport and reports when reading pauses and resumes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.paused = asyncio.Event()
        self.resumed = asyncio.Event()

    def pause_reading(self) -> None:
        self._transport.pause_reading()
        self.paused.set()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
        self.resumed.set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


@on_both_loops
async def test_reading_pauses_for_a_slow_reader_and_memory_stays_bounded() -> None:
    high_water, total = 64 * 1024, 24 * 1024 * 1024
    async with transport_and_server(high_water=high_water) as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        response = await request
        (connection,) = transport._busy
        assert connection._transport is not None
        spy = ReadPauseRecorder(connection._transport)
        connection._transport = spy  # type: ignore[assignment]  # it passes on all that it does not watch
        peer.send(bytes(total))
        stream = BodyChunks(response)
        received = 0
        while received < total // 2:
            await spy.paused.wait()
            spy.paused.clear()
            part = await anext(stream)
            assert high_water < len(part) <= high_water + PIECE
            assert spy.resumed.is_set()
            received += len(part)
        async for part in stream:
            received += len(part)
        assert received == total
        assert transport.idle == 1


@on_both_loops
async def test_two_tasks_cannot_read_one_response() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(STREAM)
        stream = BodyChunks(await request)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already reading"):
            await anext(stream)
        with pytest.raises(RuntimeError, match="closed"):
            await first


@on_both_loops
async def test_closing_a_stream_ends_the_wait_of_a_task_that_reads_it() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        peer.send(STREAM)
        response = await request
        reads = asyncio.ensure_future(anext(BodyChunks(response)))
        await asyncio.sleep(0)
        response.close()
        with pytest.raises(RuntimeError, match="closed"):
            await reads
        assert await peer.closed_by_client()


@on_both_loops
async def test_small_writes_are_not_delayed() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_request(transport, server)
        (connection,) = transport._busy
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        peer.send(OK)
        assert await (await request).read(100) == b"ok"


@on_both_loops
async def test_closing_the_transport_ends_exchanges_with_an_error_and_leaves_no_socket() -> None:
    async with transport_and_server() as (transport, server):
        idle = await complete_exchange(transport, server)
        requests = [asyncio.create_task(send_request(transport, server.url)) for _ in range(2)]
        waiting = await server.peer()
        await waiting.request()
        await idle.request()
        await transport.aclose()
        for task in requests:
            with raises_engine_error("reset"):
                await task
        assert (transport.in_use, transport.idle, len(transport._open)) == (0, 0, 0)
        assert await waiting.closed_by_client()
        with pytest.raises(RuntimeError):
            await send_request(transport, server.url)
