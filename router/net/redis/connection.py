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

from router.net.redis.commands import Command, Packed, pack
from router.net.redis.errors import FAULTS, LinkError, refusal
from router.net.redis.handshake import Login

_INCOMPLETE: Final = object()
_PIECE: Final = 16 << 10  # bytes that hiredis is given at once: after each reply it moves all that it has yet to read
_TURN: Final = 0.001  # seconds; a timer of that length fires after the sockets have been read
_ALIVE: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}  # seconds, seconds, times; as redis-py has it

Place = tuple[str, int] | str
"""A host and its port, or the path of a Unix socket."""


def _ignore(_: object) -> None:
    pass


class Batch:
    """What was asked at once, and its replies once they are there; see router.net.redis.backend.Answer."""

    __slots__ = ("_fault", "_replies", "_told")

    def __init__(self) -> None:
        self._replies: list[Any] | None = None
        self._fault: LinkError | None = None
        self._told: Callable[[Batch], object] | None = None

    def add_done_callback(self, told: Callable[["Batch"], object], /) -> None:
        """There can be one. What is over tells it at once."""
        self._told = told
        if self._replies is not None or self._fault is not None:
            told(self)

    def result(self) -> list[Any]:
        if self._fault is not None:
            raise self._fault
        assert self._replies is not None
        return self._replies

    def __await__(self) -> Generator[Any, None, list[Any]]:
        if self._replies is None and self._fault is None:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def tell(_: Batch) -> None:
                if not over.done():  # else who waited has left
                    over.set_result(None)

            self._told = tell
            yield from over
        return self.result()

    def end(self, replies: list[Any] | None, fault: LinkError | None = None) -> None:
        self._replies, self._fault = replies, fault
        if self._told is not None:
            self._told(self)


class Connection(asyncio.Protocol):
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
        refused: "Callable[[redis.exceptions.ResponseError], object]" = _ignore,
        pushed: Callable[[list[Any]], object] = _ignore,
        lost: Callable[[LinkError], object] = _ignore,
    ) -> None:
        """`refused` is told of each command that Redis refuses, `pushed` of what it says unasked: its kind comes first.

        `lost` is told, once, that and why the connection is of no use any more. None of them may raise.
        """
        self.ready = False
        self._refused = refused
        self._pushed = pushed
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=self._error, notEnoughData=_INCOMPLETE)
        self._transport: Any = None
        self._batch: Batch | None = None
        self._replies: list[Any] = []
        self._wanted = 0
        self._timeout = 0.0
        self._until = 0.0
        self._cap = 0.0
        self._looked = False
        self._timer: asyncio.TimerHandle | None = None
        self._fault: Exception | None = None
        self._retired = False

    async def connect(
        self, place: Place, login: Login, timeout: float, questions: Sequence[Command] = ()
    ) -> Sequence[Any]:
        """Makes it ready; once. The replies to `questions`, which cost no round trip. `timeout` in seconds.

        Raises LinkError.
        """
        loop = self._loop
        until = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                if isinstance(place, str):
                    await loop.create_unix_connection(lambda: self, place)
                else:
                    transport, _ = await loop.create_connection(lambda: self, *place, ssl=login.tls)
                    _keep_alive(transport.get_extra_info("socket"))
            greeting = login.commands()
            replies = await self.send([*greeting, *questions], until - loop.time())
            for reply in replies[: len(greeting)]:
                _raise_refusal(reply)
        except FAULTS as error:
            self.abort()
            failure = LinkError.of(error)
            failure.__cause__ = error
            raise failure  # noqa: B904 - mypyc passes over `from`
        except BaseException:
            self.abort()
            raise
        return replies[len(greeting) :]

    def send(self, commands: Sequence[Command | Packed], timeout: float, more: float = 0.0) -> Batch:
        """The replies to some commands, at least one. Only for a connection that is `ready`.

        `timeout`: seconds that Redis may be silent; `more`: seconds that its replies may take beyond that while their
        bytes keep coming.
        """
        packed = b"".join([command if isinstance(command, bytes) else pack(command) for command in commands])
        self.ready = False
        self._wanted = len(commands)
        batch = self._batch = Batch()
        self._transport.write(packed)
        self._until = until = self._loop.time() + timeout
        self._timeout, self._cap, self._looked = timeout, until + more, False
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._look)
        elif until < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(until, self._look)
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
        reader, replies, pushed, size = self._reader, self._replies, self._pushed, len(data)
        try:
            for at in range(0, size, _PIECE):
                reader.feed(data, at, min(_PIECE, size - at))
                while (reply := reader.gets()) is not _INCOMPLETE:
                    if type(reply) is hiredis.PushNotification:
                        pushed(reply)
                    else:
                        replies.append(reply)
        except hiredis.HiredisError as error:
            self._fail(error)
            return
        if self._fault is not None:
            self._fail(self._fault)
        elif replies and len(replies) >= self._wanted:
            self._complete(replies)
        elif self._until < self._cap:  # a part of the replies has come, so Redis is not silent
            self._until = min(self._loop.time() + self._timeout, self._cap)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or redis.exceptions.ConnectionError())

    # -- how a batch ends ---------------------------------------------------------------------------------------------

    def _complete(self, replies: list[Any]) -> None:
        batch = self._batch
        if batch is None or len(replies) > self._wanted:  # it answers what nobody has asked
            self._fail(redis.exceptions.InvalidResponse())
            return
        self._batch, self._replies, self._wanted = None, [], 0
        self.ready = not self._retired
        batch.end(replies)

    def _error(self, text: str) -> Exception:
        error = refusal(text)
        if isinstance(error, redis.exceptions.ResponseError):
            self._refused(error)
        else:
            self._fault = error
        return error

    def _look(self) -> None:
        self._timer = None
        if self._batch is None:
            return
        if self._loop.time() < self._until:
            self._looked = False
            self._timer = self._loop.call_at(self._until, self._look)
        elif self._looked:
            self._fail(TimeoutError())
        else:
            # uvloop runs timers before it reads sockets. If something held up the loop, the replies may be there.
            self._looked = True
            self._timer = self._loop.call_later(_TURN, self._look)

    def _fail(self, error: Exception) -> None:
        self.retire()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        batch, self._batch = self._batch, None
        lost, self._lost = self._lost, _ignore
        if batch is not None:
            batch.end(None, LinkError.of(error))
        lost(LinkError.of(error))


def _keep_alive(connected: socket.socket) -> None:
    """So that what stands in between does not forget a connection that is quiet."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE.items():
        if hasattr(socket, name):  # not every system has them
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _raise_refusal(reply: object) -> None:
    if isinstance(reply, Exception):
        raise reply
