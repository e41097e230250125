"""The promises of RedisConnection, with a scripted server on a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import ReadOnlyError

from router.net.redis.backend import ReplyFuture
from router.net.redis.commands import encode_command
from router.net.redis.connection import RedisConnection
from router.net.redis.errors import RedisBackendError
from router.net.redis.handshake import Handshake
from router.net.tasks import cancel_and_wait
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANONYMOUS = Handshake(None, None, 0, None)
HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"
GET = ("GET", "k")
MAX_SECONDS = 10.0
"""Of what takes less than a second: far less than TEST_TIMEOUT. A busy machine may pause for seconds."""


class Server:
    """Answers the handshake; the test sends the rest."""

    def __init__(self) -> None:
        self.received = b""
        self.left = False
        self._writer: Any = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.write(HELLO)
        try:
            while data := await reader.read(65536):
                self.received += data
        except ConnectionError:
            pass
        self.left = True
        writer.close()

    async def send(self, *pieces: bytes) -> None:
        """Sends each of them in its own packet."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)

    def leave(self) -> None:
        self._writer.close()


class Pair:
    """A server and a connection to it, which records what was `refused` and `pushed`, and whether it is `lost`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.refused: list[Exception] = []
        self.pushed: list[list[Any]] = []
        self.lost: list[RedisBackendError] = []
        self.connection = RedisConnection(
            on_error_reply=self.refused.append, on_push=self.pushed.append, on_lost=self.lost.append
        )


@pytest_asyncio.fixture(loop_scope="session")
async def pair() -> AsyncIterator[Pair]:
    server = Server()
    async with AsyncExitStack() as stack:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        stack.callback(listening.close)
        port = listening.sockets[0].getsockname()[1]
        pair = Pair(server)
        stack.callback(pair.connection.abort)
        await pair.connection.connect(("127.0.0.1", port), ANONYMOUS, TEST_TIMEOUT)
        yield pair
        pair.connection.abort()
        await eventually(lambda: server.left)


async def test_the_handshake_comes_first(pair: Pair) -> None:
    await eventually(lambda: pair.server.received == encode_command(("HELLO", 3, "SETNAME", "roundhouse")))
    assert pair.connection.ready


async def test_a_handshake_authenticates_and_shows_no_password_in_a_traceback() -> None:
    assert Handshake("me", "secret", 2, None).commands() == [
        ("HELLO", 3, "AUTH", "me", "secret", "SETNAME", "roundhouse"), ("SELECT", 2),
    ]  # fmt: skip
    assert Handshake(None, "secret", 0, None).commands()[0][3:5] == ("default", "secret")
    assert "secret" not in repr(Handshake("me", "secret", 2, None))


async def test_replies_may_be_cut_anywhere(pair: Pair) -> None:
    replies = b"$3\r\none\r\n*2\r\n:2\r\n$-1\r\n-ERR no\r\n%1\r\n$1\r\na\r\n$1\r\nb\r\n"
    for at in range(1, len(replies)):
        batch = pair.connection.execute([GET, GET, GET, GET], TEST_TIMEOUT)
        await pair.server.send(replies[:at], replies[at:])
        one, two, refused, four = await batch
        assert (one, two, four) == (b"one", [2, None], {b"a": b"b"})
        assert str(refused) == "ERR no"
        assert pair.connection.ready


async def test_a_push_is_not_a_reply_and_is_delivered(pair: Pair) -> None:
    pushed = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
    await pair.server.send(pushed)
    batch = pair.connection.execute([GET, GET], TEST_TIMEOUT)
    await pair.server.send(b":1\r\n", pushed, b":2\r\n")
    assert await batch == [1, 2]
    assert pair.pushed == [[b"invalidate", [b"k"]]] * 2


async def test_error_replies_are_reported_to_the_callback(pair: Pair) -> None:
    batch = pair.connection.execute([GET, GET], TEST_TIMEOUT)
    await pair.server.send(b"-READONLY it is a replica\r\n:1\r\n")
    assert [type(reply) for reply in await batch] == [ReadOnlyError, int]
    assert [type(error) for error in pair.refused] == [ReadOnlyError]
    assert pair.connection.ready


async def test_a_retired_connection_receives_pending_replies_and_accepts_no_commands(pair: Pair) -> None:
    batch = pair.connection.execute([GET], TEST_TIMEOUT)
    pair.connection.retire()
    await pair.server.send(b":1\r\n")
    assert await batch == [1]
    assert not pair.connection.ready


async def test_a_cancelled_caller_keeps_the_connection_busy_until_its_replies_arrive(pair: Pair) -> None:
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
async def test_an_invalid_reply_closes_the_connection(pair: Pair, sent: bytes, why: str) -> None:
    batch = pair.connection.execute([GET], TEST_TIMEOUT)
    await pair.server.send(sent)
    with pytest.raises(RedisBackendError, match=why):
        await batch
    assert not pair.connection.ready
    await eventually(lambda: pair.server.left)


async def test_an_unexpected_reply_closes_the_connection(pair: Pair) -> None:
    await pair.server.send(b":1\r\n")
    await eventually(lambda: pair.server.left)
    assert not pair.connection.ready


async def test_a_server_that_disconnects_is_detected_at_once(pair: Pair) -> None:
    batch = pair.connection.execute([GET], TEST_TIMEOUT)
    pair.server.leave()
    with pytest.raises(RedisBackendError, match="Connection"):
        await batch
    assert not pair.connection.ready
    assert len(pair.lost) == 1


async def test_the_loss_of_an_idle_connection_is_reported_once(pair: Pair) -> None:
    pair.server.leave()
    await eventually(lambda: bool(pair.lost))
    pair.connection.abort()
    await eventually(lambda: pair.server.left)
    assert [str(error) for error in pair.lost] == ["ConnectionError"]


async def test_each_batch_has_its_own_timeout_whatever_the_one_before_took(pair: Pair) -> None:
    clock = asyncio.get_running_loop().time
    for timeout in (TEST_TIMEOUT, 0.05, TEST_TIMEOUT):
        batch = pair.connection.execute([GET], timeout)
        await pair.server.send(b":1\r\n")
        assert await batch == [1]
    started = clock()
    with pytest.raises(RedisBackendError, match="TimeoutError"):
        await pair.connection.execute([GET], 0.1)
    assert 0.09 < clock() - started < MAX_SECONDS
    await eventually(lambda: pair.server.left)


# -- slow replies -----------------------------------------------------------------------------------------------------


async def test_replies_that_keep_arriving_may_take_longer_than_the_timeout(pair: Pair) -> None:
    batch = asyncio.ensure_future(_replies(pair.connection.execute([GET], 0.5, extra_time=TEST_TIMEOUT)))
    clock = asyncio.get_running_loop().time
    started = clock()
    await pair.server.send(b"$1000\r\n")
    for _ in range(10):
        await pair.server.send(b"x" * 100)
        await asyncio.sleep(0.06)
    await pair.server.send(b"\r\n")
    assert await batch == [b"x" * 1000]
    assert clock() - started > 0.5
    assert pair.connection.ready


async def test_replies_that_stop_arriving_time_out(pair: Pair) -> None:
    batch = pair.connection.execute([GET], 0.1, extra_time=TEST_TIMEOUT)
    clock = asyncio.get_running_loop().time
    await pair.server.send(b"$1000\r\nx")
    started = clock()
    with pytest.raises(RedisBackendError, match="TimeoutError"):
        await batch
    assert 0.09 < clock() - started < MAX_SECONDS


async def test_a_server_that_never_replies_times_out(pair: Pair) -> None:
    clock = asyncio.get_running_loop().time
    started = clock()
    with pytest.raises(RedisBackendError, match="TimeoutError"):
        await pair.connection.execute([GET], 0.05, extra_time=TEST_TIMEOUT)
    assert 0.045 < clock() - started < MAX_SECONDS


async def test_replies_that_arrive_one_byte_at_a_time_time_out_at_the_maximum(pair: Pair) -> None:
    batch = asyncio.ensure_future(_replies(pair.connection.execute([GET], 0.1, extra_time=0.2)))
    clock = asyncio.get_running_loop().time
    started = clock()
    await pair.server.send(b"$1000\r\n")
    while not batch.done():
        await pair.server.send(b"x")
        await asyncio.wait([batch], timeout=0.01)
    with pytest.raises(RedisBackendError, match="TimeoutError"):
        await batch
    assert 0.28 < clock() - started < MAX_SECONDS


async def test_a_pause_of_the_process_between_two_batches_does_not_fail_the_second(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    # For a time that has passed, uvloop returns a handle without `when`.
    monkeypatch.setattr(loop, "call_at", lambda *_, **__: loop.call_soon(lambda: None))
    for timeout in (0.9, 0.8, 0.7):
        replies = pair.connection.execute([GET], timeout)
        await pair.server.send(b"+OK\r\n")
        assert await replies == [b"OK"]
