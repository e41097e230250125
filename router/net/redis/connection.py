"""One connection to one Redis server.

Theory of operation. A batch of commands is one write, and hiredis parses the replies as their bytes arrive. The last
reply completes the batch and calls its callback in the same loop iteration: each iteration saved shortens the wait of
every batch that follows. So a batch costs a write and a read, and no future, task or timer of its own. One timer per
connection checks, about once per timeout, whether the batch is late.

A timeout bounds Redis' silence: a batch with large replies may take longer while their bytes keep arriving, up to a
cap.
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

_INCOMPLETE: Final = object()  # what hiredis returns while a reply is incomplete; None is a valid reply
# Bytes fed to hiredis at once. After each reply it moves everything that is not parsed yet, so large pieces cost more.
_FEED_SIZE: Final = 16 << 10
# What asyncio raises for a port or a host name that cannot be one. Sentinels and clusters announce addresses.
_ADDRESS_ERRORS: Final = (OverflowError, ValueError)
_LOOP_TICK: Final = 0.001  # seconds; a timer of this length fires after the sockets have been read
# Seconds, seconds and a number of probes: redis-py's values.
_KEEPALIVE_OPTIONS: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}

ServerAddress = tuple[str, int] | str
"""A host and its port, or the path of a Unix socket."""


def _ignore(_: object) -> None:
    pass


class CommandBatch:
    """The replies to one batch; the ReplyFuture of router.net.redis.backend."""

    def __init__(self) -> None:
        self._replies: list[Any] | None = None
        self._error: RedisBackendError | None = None
        self._callback: Callable[[CommandBatch], object] | None = None

    def add_done_callback(self, callback: Callable[["CommandBatch"], object], /) -> None:
        """There can be only one callback. If the batch is complete, it is called at once."""
        self._callback = callback
        if self._replies is not None or self._error is not None:
            callback(self)

    @property
    def error(self) -> RedisBackendError | None:
        """Why the batch failed, if it has. Not raised, an error has no traceback, which would refer to the batch."""
        return self._error

    def result(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        assert self._replies is not None
        return self._replies

    def __await__(self) -> Generator[Any, None, list[Any]]:
        if self._replies is None and self._error is None:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(_: CommandBatch) -> None:
                if not over.done():  # done: the task that awaited it was cancelled
                    over.set_result(None)

            self._callback = wake
            yield from over
        return self.result()

    def complete(self, replies: list[Any] | None, error: RedisBackendError | None = None) -> None:
        self._replies, self._error = replies, error
        if self._callback is not None:
            self._callback(self)


class RedisConnection(asyncio.Protocol):
    """Batches of commands out, replies in; one batch at a time.

    - A batch has a reply to each of its commands. The reply to a command that Redis refused is a ResponseError.
    - A batch fails with RedisBackendError when Redis has been silent for its timeout, when its maximum time is over,
      when the connection is lost, and when the server replies that it does not serve. In each case the connection is
      closed.
    - Replies that arrived while this process was busy with something else are in time.
    - `ready`: whether the next batch can be sent. A batch that its caller has abandoned blocks the next one until its
      replies have arrived.
    - Pushes are reported as they arrive, and a lost connection at once, whether or not it was in use.
    """

    def __init__(
        self,
        *,
        on_error_reply: "Callable[[redis.exceptions.ResponseError], object]" = _ignore,
        on_push: Callable[[list[Any]], object] = _ignore,
        on_lost: Callable[[RedisBackendError], object] = _ignore,
    ) -> None:
        """`on_error_reply` is called with each ResponseError, `on_push` with each push, whose first item is its kind.

        `on_lost` is called once, with the reason, when the connection is closed. None of them may raise.
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
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._fatal_error: Exception | None = None
        self._retired = False

    async def connect(
        self, address: ServerAddress, handshake: Handshake, timeout: float, checks: Sequence[Command] = ()
    ) -> Sequence[Any]:
        """Connects and performs the handshake; to be called once. `timeout` in seconds.

        Returns the replies to `checks`, which go out with the handshake and cost no further round trip. Raises
        RedisBackendError.
        """
        loop = self._loop
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                if isinstance(address, str):
                    await loop.create_unix_connection(lambda: self, address)
                else:
                    transport, _ = await loop.create_connection(lambda: self, *address, ssl=handshake.tls)
                    _enable_keepalive(transport.get_extra_info("socket"))
            handshake_commands = handshake.commands()
            replies = await self.execute([*handshake_commands, *checks], deadline - loop.time())
            for reply in replies[: len(handshake_commands)]:
                _raise_if_error(reply)
        except (*REDIS_ERRORS, *_ADDRESS_ERRORS) as error:
            self.abort()
            wrapped = RedisBackendError.from_exception(error)
            wrapped.__cause__ = error
            raise wrapped  # noqa: B904 - mypyc ignores `from`
        except BaseException:  # a cancellation above all: the socket must not stay open
            self.abort()
            raise
        return replies[len(handshake_commands) :]

    def execute(
        self, commands: Sequence[Command | EncodedCommand], timeout: float, extra_time: float = 0.0
    ) -> CommandBatch:
        """Sends a batch of at least one command. The connection must be `ready`.

        `timeout`: seconds that Redis may be silent; `extra_time`: seconds beyond it that the replies may take while
        their bytes keep arriving.
        """
        packed = b"".join([command if isinstance(command, bytes) else encode_command(command) for command in commands])
        self.ready = False
        self._expected_replies = len(commands)
        batch = self._batch = CommandBatch()
        self._transport.write(packed)
        self._deadline = deadline = self._loop.time() + timeout
        self._timeout, self._max_deadline, self._expired_once = timeout, deadline + extra_time, False
        # A timer that fires earlier stays: it finds the new deadline and starts again. A timer per batch costs more.
        if self._timer is None:
            self._set_timer(deadline)
        elif deadline < self._timer_at:
            self._timer.cancel()
            self._set_timer(deadline)
        return batch

    def _set_timer(self, at: float) -> None:
        # uvloop returns a Handle without `when` if the time has passed, as after a pause of the process.
        self._timer, self._timer_at = self._loop.call_at(at, self._check_deadline), at

    def retire(self) -> None:
        """Accepts no batch after the one in flight."""
        self.ready = False
        self._retired = True

    def abort(self) -> None:
        self._fail(redis.exceptions.ConnectionError())

    # -- the transport's callbacks ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._retired:  # `connect` was cancelled or timed out meanwhile
            self.abort()
        self.ready = not self._retired

    def data_received(self, data: bytes) -> None:
        reader, replies, on_push, size = self._reader, self._replies, self._on_push, len(data)
        try:
            for offset in range(0, size, _FEED_SIZE):
                reader.feed(data, offset, min(_FEED_SIZE, size - offset))
                while (reply := reader.gets()) is not _INCOMPLETE:
                    if type(reply) is hiredis.PushNotification:
                        on_push(reply)
                    else:
                        replies.append(reply)
        except Exception as error:  # noqa: BLE001 - whatever hiredis raises: TypeError for a map whose key is a list
            self._fail(error)
            return
        if self._fatal_error is not None:
            self._fail(self._fatal_error)
        elif replies and len(replies) >= self._expected_replies:
            self._complete_batch(replies)
        elif self._deadline < self._max_deadline:  # some bytes of the replies have arrived, so Redis is not silent
            self._deadline = min(self._loop.time() + self._timeout, self._max_deadline)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or redis.exceptions.ConnectionError())

    # -- how a batch ends ---------------------------------------------------------------------------------------------

    def _complete_batch(self, replies: list[Any]) -> None:
        batch = self._batch
        if batch is None or len(replies) > self._expected_replies:  # a reply to no command: the stream is out of step
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
            self._set_timer(self._deadline)
        elif self._expired_once:
            self._fail(TimeoutError())
        else:
            # uvloop runs timers before it reads sockets. If the loop was blocked, the replies may be in the socket
            # already, so the batch gets one more loop iteration before it fails.
            self._expired_once = True
            self._timer = self._loop.call_later(_LOOP_TICK, self._check_deadline)
            self._timer_at = self._loop.time() + _LOOP_TICK

    def _fail(self, error: Exception) -> None:
        self.retire()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        batch, self._batch = self._batch, None
        on_lost, self._on_lost = self._on_lost, _ignore  # aborting the transport leads here again; report it only once
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)  # the first one refers to this connection
        if batch is not None:
            batch.complete(None, RedisBackendError.from_exception(error))
        on_lost(RedisBackendError.from_exception(error))


def _enable_keepalive(sock: socket.socket) -> None:
    """Keeps firewalls and NAT from dropping an idle connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS.items():
        if hasattr(socket, name):  # not every platform has them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _raise_if_error(reply: object) -> None:
    if isinstance(reply, Exception):
        raise reply
