"""The transport's guarantees about reusing connections, and the pool that decides it."""

import asyncio
from collections.abc import Callable

import pytest

from router.net.client.pool import IdlePool
from tests.support.transport_harness import (
    OK,
    STREAM,
    Peer,
    complete_exchange,
    fetch_body,
    on_both_loops,
    raises_engine_error,
    send_request,
    start_fetch,
    transport_and_server,
)


@on_both_loops
async def test_a_connection_that_the_server_closed_while_idle_is_never_used() -> None:
    async with transport_and_server() as (transport, server):
        peer = await complete_exchange(transport, server)
        peer.close()
        assert await peer.closed_by_client()  # the client's end is closed too, so it has detected the close
        again = await complete_exchange(transport, server)
        assert again is not peer
        assert transport.idle == 1


@on_both_loops
async def test_a_connection_with_an_unread_end_of_file_is_not_used_either() -> None:
    async with transport_and_server() as (transport, server):
        peer = await complete_exchange(transport, server)
        (connection,) = transport._idle._idle_since
        connection.eof_received()
        exchanges = connection._exchange_count
        again = await complete_exchange(transport, server)
        assert again is not peer
        assert connection._exchange_count == exchanges
        assert await peer.closed_by_client()


async def assert_resent(end: Callable[[Peer], None]) -> None:
    async with transport_and_server() as (transport, server):
        peer = await complete_exchange(transport, server)
        request = asyncio.create_task(fetch_body(transport, server, b"again"))
        first = await peer.request()
        end(peer)
        fresh = await server.peer()
        assert await fresh.request() == first
        fresh.send(OK)
        assert await request == b"ok"


@on_both_loops
async def test_a_request_is_resent_if_a_reused_connection_is_closed_before_the_first_byte() -> None:
    await assert_resent(Peer.close)


@on_both_loops
async def test_a_request_is_resent_if_a_reused_connection_is_reset_before_the_first_byte() -> None:
    await assert_resent(Peer.reset)


@on_both_loops
async def test_a_request_is_not_sent_a_third_time() -> None:
    async with transport_and_server() as (transport, server):
        peer = await complete_exchange(transport, server)
        request = asyncio.create_task(fetch_body(transport, server))
        await peer.request()
        peer.close()
        fresh = await server.peer()
        await fresh.request()
        fresh.close()
        with raises_engine_error("broken-off"):
            await request
        assert server.accepted == 2


@on_both_loops
async def test_a_request_that_ends_its_server_fails_with_the_connection_and_not_as_one_that_was_never_sent() -> None:
    async with transport_and_server() as (transport, server):
        peer = await complete_exchange(transport, server)
        request = asyncio.create_task(fetch_body(transport, server))
        await peer.request()
        server.stop_listening()
        peer.reset()
        with raises_engine_error("reset"):
            await request


@on_both_loops
async def test_a_request_is_not_resent_after_a_byte_of_the_response() -> None:
    async with transport_and_server() as (transport, server):
        peer = await complete_exchange(transport, server)
        request = asyncio.create_task(fetch_body(transport, server))
        await peer.request()
        peer.send(b"H")
        peer.close()
        with raises_engine_error("broken-off"):
            await request
        assert server.accepted == 1


@on_both_loops
async def test_a_request_on_a_new_connection_is_not_resent() -> None:
    async with transport_and_server() as (transport, server):
        request, peer = await start_fetch(transport, server)
        peer.close()
        with raises_engine_error("broken-off"):
            await request
        assert server.accepted == 1


@on_both_loops
async def test_a_request_is_not_resent_after_a_read_timeout_on_a_reused_connection() -> None:
    async with transport_and_server() as (transport, server):
        peer = await complete_exchange(transport, server)
        with raises_engine_error("timeout"):
            await send_request(transport, server.url, head_timeout=0.02)
        await peer.request()
        assert await peer.closed_by_client()
        assert server.accepted == 1


@pytest.mark.parametrize(
    "reply",
    [
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        OK + b"garbage",
        OK + b"H",
        b"HTTP/1.1 204 No Content\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
)
def test_a_connection_with_excess_bytes_or_that_the_server_closes_is_not_kept(reply: bytes) -> None:
    async def scenario() -> None:
        async with transport_and_server() as (transport, server):
            peer = await complete_exchange(transport, server, reply)
            assert await peer.closed_by_client()
            assert transport.idle == 0

    asyncio.run(scenario())


@on_both_loops
async def test_bytes_on_an_idle_connection_close_it_and_never_reach_the_next_request() -> None:
    async with transport_and_server() as (transport, server):
        peer = await complete_exchange(transport, server)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        assert await peer.closed_by_client()
        fresh = await complete_exchange(transport, server)
        assert fresh is not peer


@on_both_loops
async def test_an_idle_connection_is_closed_when_it_expires() -> None:
    async with transport_and_server(idle_expiry=0.02) as (transport, server):
        peers = [await complete_exchange(transport, server)]
        assert await peers[0].closed_by_client()
        assert transport.idle == 0


@on_both_loops
async def test_no_more_than_max_idle_connections_are_kept() -> None:
    async with transport_and_server(max_idle=1) as (transport, server):
        requests = [asyncio.create_task(fetch_body(transport, server)) for _ in range(2)]
        peers = [await server.peer() for _ in requests]
        for peer in peers:
            await peer.request()
        assert transport.in_use == 2
        peers[0].send(OK)
        peers[1].send(OK)
        assert await asyncio.gather(*requests) == [b"ok", b"ok"]
        assert (transport.in_use, transport.idle) == (0, 1)


@on_both_loops
async def test_hundreds_of_streams_share_the_transport_and_leave_nothing() -> None:
    async with transport_and_server() as (transport, server):

        async def serve() -> None:
            while True:
                peer = await server.peer()
                await peer.request()
                peer.send(STREAM + b"1\r\na\r\n")
                peer.send(b"1\r\nb\r\n0\r\n\r\n")

        serving = asyncio.create_task(serve())
        bodies = await asyncio.gather(*(fetch_body(transport, server) for _ in range(400)))
        assert set(bodies) == {b"ab"}
        assert (transport.in_use, transport.idle) == (0, 256)
        serving.cancel()


def pool(max_idle: int = 10) -> IdlePool[str, str]:
    return IdlePool(max_idle=max_idle, expiry=5.0)


def test_the_most_recently_idle_connection_is_used_first() -> None:
    idle = pool()
    for now, item in enumerate(("a", "b", "c")):
        assert idle.put("x", item, now) == []
    assert [idle.take("x", 3.0) for _ in range(4)] == ["c", "b", "a", None]


def test_a_connection_is_used_only_for_its_own_origin() -> None:
    idle = pool()
    idle.put("x", "a", 0.0)
    assert idle.take("y", 0.0) is None
    assert idle.take("x", 0.0) == "a"


def test_an_expired_connection_is_not_used_even_before_it_is_removed() -> None:
    idle = pool()
    idle.put("x", "a", 0.0)
    assert idle.take("x", 5.0) is None
    assert idle.expire(5.0) == ["a"]
    assert len(idle) == 0


def test_the_oldest_connection_of_all_origins_is_evicted() -> None:
    idle = pool(max_idle=2)
    assert idle.put("x", "a", 0.0) == []
    assert idle.put("y", "b", 1.0) == []
    assert idle.put("y", "c", 2.0) == ["a"]
    assert idle.clear() == ["b", "c"]


def test_with_max_idle_0_nothing_is_kept() -> None:
    assert pool(max_idle=0).put("x", "a", 0.0) == ["a"]


def test_only_expired_connections_are_removed_and_the_time_until_the_next_is_returned() -> None:
    idle = pool()
    assert idle.next_expiry() is None
    idle.put("x", "a", 0.0)
    idle.put("y", "b", 1.0)
    assert idle.next_expiry() == 5.0
    assert idle.expire(5.5) == ["a"]
    assert idle.next_expiry() == 6.0


def test_a_closed_connection_is_removed_and_removing_twice_does_no_harm() -> None:
    idle = pool()
    idle.put("x", "a", 0.0)
    idle.discard("a")
    idle.discard("a")
    assert idle.take("x", 0.0) is None
    assert (len(idle), idle._by_key) == (0, {})
