"""One connection to one Redis server.

Theory of operation. A batch of commands is written at once, and hiredis reads the replies as their bytes come in; the
last of them completes the batch, and whoever wants it is told at once: a turn of the loop saved is a wait saved for
all who are behind it. So a batch costs a write and a read, and no future, no task and no timer of its own: one timer a
connection looks, about once a timeout, whether a batch is late.

A timeout bounds silence: a batch whose replies are large may take as long as their bytes keep coming, up to a cap.
"""

import asyncio
import socket
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import hiredis
import redis.exceptions

from router.net.redis.commands import Command, EncodedCommand, encode_command
from router.net.redis.errors import REDIS_ERRORS, RedisBackendError, parse_error_reply
from router.net.redis.handshake import Handshake

_INCOMPLETE: Final = object()
_FEED_SIZE: Final = (
    16 << 10
)  # bytes that hiredis is given at once: after each reply it moves all that it has yet to read
_LOOP_TICK: Final = 0.001  # seconds; a timer of that length fires after the sockets have been read
_KEEPALIVE_OPTIONS: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}  # seconds, seconds, times; as redis-py has it

ServerAddress = tuple[str, int] | str
"""A host and its port, or the path of a Unix socket."""


def _ignore(_: object) -> None:
    pass


class CommandBatch:
    """What was asked at once, and its replies once they are there; see router.net.redis.backend.Answer."""

    __slots__ = ("_callback", "_error", "_replies")

    def __init__(self) -> None:
        self._replies: list[Any] | None = None
        self._error: RedisBackendError | None = None
        self._callback: Callable[[CommandBatch], object] | None = None

    def add_done_callback(self, callback: Callable[["CommandBatch"], object], /) -> None:
        """There can be one. What is over tells it at once."""
        self._callback = callback
        if self._replies is not None or self._error is not None:
            callback(self)

    def result(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        assert self._replies is not None
        return self._replies

    def __await__(self) -> Generator[Any, None, list[Any]]:
        if self._replies is None and self._error is None:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def tell(_: CommandBatch) -> None:
                if not over.done():  # else who waited has left
                    over.set_result(None)

            self._callback = tell
            yield from over
        return self.result()

    def complete(self, replies: list[Any] | None, error: RedisBackendError | None = None) -> None:
        self._replies, self._error = replies, error
        if self._callback is not None:
            self._callback(self)


class RedisConnection(asyncio.Protocol):
    """Batches of commands out, replies in; one batch at a time.

    - A batch has a reply to each of its commands; what Redis refused is a ResponseError in its place.
    - It fails with LinkError when Redis has been silent for its timeout, when its time is over, when the connection is
      lost, and when the server says that it does not serve; whichever it is, the connection is of no use from then on.
    - Replies that arrived while this process did something else are in time.
    - `ready`: whether the next batch can be sent. One that its asker has given up stands in the way of the next until
      its replies are there.
    - What Redis says unasked is told as it comes, and that the connection is lost at once, whether or not it was used.
    """

    def __init__(
        self,
        *,
        on_error_reply: "Callable[[redis.exceptions.ResponseError], object]" = _ignore,
        on_push: Callable[[list[Any]], object] = _ignore,
        on_lost: Callable[[RedisBackendError], object] = _ignore,
    ) -> None:
        """`refused` is told of each command that Redis refuses, `pushed` of what it says unasked: its kind comes first.

        `lost` is told, once, that and why the connection is of no use any more. None of them may raise.
        """
        self.ready = False
        self._on_error_reply = on_error_reply
        self._on_push = on_push
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=self._make_error, notEnoughData=_INCOMPLETE)
        self._transport: Any = None
        self._batch: CommandBatch | None = None
        self._replies: list[Any] = []
        self._expected_replies = 0
        self._timeout = 0.0
        self._deadline = 0.0
        self._max_deadline = 0.0
        self._expired_once = False
        self._timer: asyncio.TimerHandle | None = None
        self._fatal_error: Exception | None = None
        self._retired = False

    async def connect(
        self, address: ServerAddress, handshake: Handshake, timeout: float, checks: Sequence[Command] = ()
    ) -> Sequence[Any]:
        """Makes it ready; once. The replies to `questions`, which cost no round trip. `timeout` in seconds.

        Raises LinkError.
        """
        loop = self._loop
        until = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                if isinstance(address, str):
                    await loop.create_unix_connection(lambda: self, address)
                else:
                    transport, _ = await loop.create_connection(lambda: self, *address, ssl=handshake.tls)
                    _enable_keepalive(transport.get_extra_info("socket"))
            greeting = handshake.commands()
            replies = await self.execute([*greeting, *checks], until - loop.time())
            for reply in replies[: len(greeting)]:
                _raise_if_error(reply)
        except REDIS_ERRORS as error:
            self.abort()
            failure = RedisBackendError.from_exception(error)
            failure.__cause__ = error
            raise failure  # noqa: B904 - mypyc passes over `from`
        except BaseException:
            self.abort()
            raise
        return replies[len(greeting) :]

    def execute(
        self, commands: Sequence[Command | EncodedCommand], timeout: float, extra_time: float = 0.0
    ) -> CommandBatch:
        """The replies to some commands, at least one. Only for a connection that is `ready`.

        `timeout`: seconds that Redis may be silent; `more`: seconds that its replies may take beyond that while their
        bytes keep coming.
        """
        packed = b"".join([command if isinstance(command, bytes) else encode_command(command) for command in commands])
        self.ready = False
        self._expected_replies = len(commands)
        batch = self._batch = CommandBatch()
        self._transport.write(packed)
        self._deadline = until = self._loop.time() + timeout
        self._timeout, self._max_deadline, self._expired_once = timeout, until + extra_time, False
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._check_deadline)
        elif until < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(until, self._check_deadline)
        return batch

    def retire(self) -> None:
        """Takes no batch after the one that is under way."""
        self.ready = False
        self._retired = True

    def abort(self) -> None:
        """Ends it at once."""
        self._fail(redis.exceptions.ConnectionError())

    # -- what the transport tells -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._retired:  # whoever wanted it has left meanwhile
            self.abort()
        self.ready = not self._retired

    def data_received(self, data: bytes) -> None:
        reader, replies, pushed, size = self._reader, self._replies, self._on_push, len(data)
        try:
            for at in range(0, size, _FEED_SIZE):
                reader.feed(data, at, min(_FEED_SIZE, size - at))
                while (reply := reader.gets()) is not _INCOMPLETE:
                    if type(reply) is hiredis.PushNotification:
                        pushed(reply)
                    else:
                        replies.append(reply)
        except hiredis.HiredisError as error:
            self._fail(error)
            return
        if self._fatal_error is not None:
            self._fail(self._fatal_error)
        elif replies and len(replies) >= self._expected_replies:
            self._complete_batch(replies)
        elif self._deadline < self._max_deadline:  # a part of the replies has come, so Redis is not silent
            self._deadline = min(self._loop.time() + self._timeout, self._max_deadline)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or redis.exceptions.ConnectionError())

    # -- how a batch ends ---------------------------------------------------------------------------------------------

    def _complete_batch(self, replies: list[Any]) -> None:
        batch = self._batch
        if batch is None or len(replies) > self._expected_replies:  # it answers what nobody has asked
            self._fail(redis.exceptions.InvalidResponse())
            return
        self._batch, self._replies, self._expected_replies = None, [], 0
        self.ready = not self._retired
        batch.complete(replies)

    def _make_error(self, text: str) -> Exception:
        error = parse_error_reply(text)
        if isinstance(error, redis.exceptions.ResponseError):
            self._on_error_reply(error)
        else:
            self._fatal_error = error
        return error

    def _check_deadline(self) -> None:
        self._timer = None
        if self._batch is None:
            return
        if self._loop.time() < self._deadline:
            self._expired_once = False
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)
        elif self._expired_once:
            self._fail(TimeoutError())
        else:
            # uvloop runs timers before it reads sockets. If something held up the loop, the replies may be there.
            self._expired_once = True
            self._timer = self._loop.call_later(_LOOP_TICK, self._check_deadline)

    def _fail(self, error: Exception) -> None:
        self.retire()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        batch, self._batch = self._batch, None
        lost, self._on_lost = self._on_lost, _ignore
        if batch is not None:
            batch.complete(None, RedisBackendError.from_exception(error))
        lost(RedisBackendError.from_exception(error))


def _enable_keepalive(sock: socket.socket) -> None:
    """So that what stands in between does not forget a connection that is quiet."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS.items():
        if hasattr(socket, name):  # not every system has them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _raise_if_error(reply: object) -> None:
    if isinstance(reply, Exception):
        raise reply
