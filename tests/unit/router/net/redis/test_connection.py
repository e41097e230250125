"""The promises of RedisConnection, with a scripted server on a real socket."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import ReadOnlyError

from router.net.redis.backend import ReplyFuture
from router.net.redis.commands import encode_command
from router.net.redis.errors import RedisBackendError
from router.net.redis.handshake import Handshake
from router.net.tasks import cancel_and_wait
from tests.support.redis_peer import ConnectedPair, connected_pair
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

GET = ("GET", "k")


@pytest_asyncio.fixture(loop_scope="session")
async def pair() -> AsyncIterator[ConnectedPair]:
    async with connected_pair() as pair:
        yield pair


async def test_the_handshake_comes_first(pair: ConnectedPair) -> None:
    await eventually(lambda: pair.server.received == encode_command(("HELLO", 3, "SETNAME", "roundhouse")))
    assert pair.connection.ready


async def test_a_handshake_authenticates_and_shows_no_password_in_a_traceback() -> None:
    assert Handshake("me", "secret", 2, None).commands() == [
        ("HELLO", 3, "AUTH", "me", "secret", "SETNAME", "roundhouse"), ("SELECT", 2),
    ]  # fmt: skip
    assert Handshake(None, "secret", 0, None).commands()[0][3:5] == ("default", "secret")
    assert "secret" not in repr(Handshake("me", "secret", 2, None))


async def test_replies_may_be_cut_anywhere(pair: ConnectedPair) -> None:
    replies = b"$3\r\none\r\n*2\r\n:2\r\n$-1\r\n-ERR no\r\n%1\r\n$1\r\na\r\n$1\r\nb\r\n"
    for at in range(1, len(replies)):
        batch = pair.connection.execute([GET, GET, GET, GET], TEST_TIMEOUT)
        await pair.server.send(replies[:at], replies[at:])
        one, two, refused, four = await batch
        assert (one, two, four) == (b"one", [2, None], {b"a": b"b"})
        assert str(refused) == "ERR no"
        assert pair.connection.ready


async def test_a_push_is_not_a_reply_and_is_delivered(pair: ConnectedPair) -> None:
    pushed = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
    await pair.server.send(pushed)
    batch = pair.connection.execute([GET, GET], TEST_TIMEOUT)
    await pair.server.send(b":1\r\n", pushed, b":2\r\n")
    assert await batch == [1, 2]
    assert pair.pushed == [[b"invalidate", [b"k"]]] * 2


async def test_error_replies_are_reported_to_the_callback(pair: ConnectedPair) -> None:
    batch = pair.connection.execute([GET, GET], TEST_TIMEOUT)
    await pair.server.send(b"-READONLY it is a replica\r\n:1\r\n")
    assert [type(reply) for reply in await batch] == [ReadOnlyError, int]
    assert [type(error) for error in pair.refused] == [ReadOnlyError]
    assert pair.connection.ready


async def test_a_retired_connection_receives_pending_replies_and_accepts_no_commands(pair: ConnectedPair) -> None:
    batch = pair.connection.execute([GET], TEST_TIMEOUT)
    pair.connection.retire()
    await pair.server.send(b":1\r\n")
    assert await batch == [1]
    assert not pair.connection.ready


async def test_a_cancelled_caller_keeps_the_connection_busy_until_its_replies_arrive(pair: ConnectedPair) -> None:
    leaving = asyncio.ensure_future(_replies(pair.connection.execute([GET], TEST_TIMEOUT)))
    await asyncio.sleep(0)
    await cancel_and_wait(leaving)
    assert not pair.connection.ready
    await pair.server.send(b":1\r\n")
    await eventually(lambda: pair.connection.ready)
    batch = pair.connection.execute([GET], TEST_TIMEOUT)
    await pair.server.send(b":2\r\n")
    assert await batch == [2]


async def _replies(answer: ReplyFuture) -> list[Any]:
    return await answer


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"-LOADING the data\r\n", "BusyLoadingError"), (b"-NOAUTH say who you are\r\n", "AuthenticationError"),
        (b":1\r\n:2\r\n", "InvalidResponse"), (b"nonsense\r\n", "ProtocolError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_an_invalid_reply_closes_the_connection(pair: ConnectedPair, sent: bytes, why: str) -> None:
    batch = pair.connection.execute([GET], TEST_TIMEOUT)
    await pair.server.send(sent)
    with pytest.raises(RedisBackendError, match=why):
        await batch
    assert not pair.connection.ready
    await eventually(lambda: pair.server.left)


async def test_an_unexpected_reply_closes_the_connection(pair: ConnectedPair) -> None:
    await pair.server.send(b":1\r\n")
    await eventually(lambda: pair.server.left)
    assert not pair.connection.ready


async def test_a_server_that_disconnects_is_detected_at_once(pair: ConnectedPair) -> None:
    batch = pair.connection.execute([GET], TEST_TIMEOUT)
    pair.server.leave()
    with pytest.raises(RedisBackendError, match="Connection"):
        await batch
    assert not pair.connection.ready
    assert len(pair.lost) == 1


async def test_the_loss_of_an_idle_connection_is_reported_once(pair: ConnectedPair) -> None:
    pair.server.leave()
    await eventually(lambda: bool(pair.lost))
    pair.connection.abort()
    await eventually(lambda: pair.server.left)
    assert [str(error) for error in pair.lost] == ["ConnectionError"]


async def test_a_pause_of_the_process_between_two_batches_does_not_fail_the_second(
    pair: ConnectedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    # For a time that has passed, uvloop returns a handle without `when`.
    monkeypatch.setattr(loop, "call_at", lambda *_, **__: loop.call_soon(lambda: None))
    for timeout in (0.9, 0.8, 0.7):
        replies = pair.connection.execute([GET], timeout)
        await pair.server.send(b"+OK\r\n")
        assert await replies == [b"OK"]
