"""One interface to a real Redis server and to the model of one, for the tests that both must pass."""

import asyncio
import socket
from random import Random
from typing import Any, Final, Protocol

import hiredis

from router.net.redis.commands import encode_command
from tests.simulation.clock import CLOCK
from tests.simulation.loop import VirtualLoop, new_loop
from tests.simulation.redis_model import RedisModel

_INCOMPLETE: Final = object()
_HELLO: Final = ("HELLO", 3)

Command = tuple[Any, ...]


class RedisTestClient(Protocol):
    """A RESP3 connection. `pushes`: the push messages received, in order."""

    pushes: list[Any]

    def send_commands(self, *commands: Command) -> list[Any]:
        """Send commands at once. Returns a reply for each, errors as their text."""

    def read_pushes(self) -> None:
        """Receive the pending push messages."""

    def subscribe(self, channel: str) -> None: ...


class _Replies:
    """Parses replies and pushes."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self.replies: list[Any] = []
        self.pushes: list[Any] = []

    def feed(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _INCOMPLETE:
            if isinstance(reply, hiredis.PushNotification):
                self.pushes.append(list(reply))
            else:
                self.replies.append(str(reply) if isinstance(reply, Exception) else reply)

    def take(self) -> list[Any]:
        replies, self.replies = self.replies, []
        return replies


def _subscription(channel: str) -> bytes:
    """A subscription, and a PING behind it: the reply to a subscription is only a push."""
    return encode_command(("SUBSCRIBE", channel)) + encode_command(("PING",))


class RealRedisClient:
    """A connection to a redis-server's Unix socket."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(5.0)
        self._socket.connect(path)
        self._replies = _Replies()
        self.pushes = self._replies.pushes
        self.send_commands(_HELLO)

    def send_commands(self, *commands: Command) -> list[Any]:
        return self._send(b"".join(map(encode_command, commands)), len(commands))

    def _send(self, data: bytes, wanted: int) -> list[Any]:
        self._socket.sendall(data)
        while len(self._replies.replies) < wanted:
            self._replies.feed(self._socket.recv(1 << 16))
        return self._replies.take()

    def subscribe(self, channel: str) -> None:
        self._send(_subscription(channel), 1)

    def read_pushes(self) -> None:
        """Redis sends pushes for earlier commands before the reply to this PING."""
        self.send_commands(("PING",))

    def close(self) -> None:
        self._socket.close()


class ModelRedisClient:
    """A connection to the model."""

    def __init__(self, loop: VirtualLoop, server: RedisModel) -> None:
        self._loop = loop
        self._replies = _Replies()
        self.pushes = self._replies.pushes
        self._connection = server.accept()
        self._connection.connection_made(_Transport(self._replies))
        self.send_commands(_HELLO)

    def send_commands(self, *commands: Command) -> list[Any]:
        return self._send(b"".join(map(encode_command, commands)))

    def _send(self, data: bytes) -> list[Any]:
        self._connection.data_received(data)
        self._loop.run(CLOCK.now)
        return self._replies.take()

    def subscribe(self, channel: str) -> None:
        self._send(_subscription(channel))

    def read_pushes(self) -> None:
        self.send_commands(("PING",))

    def close(self) -> None:
        self._connection.connection_lost(None)


class _Transport(asyncio.Transport):
    def __init__(self, replies: _Replies) -> None:
        super().__init__()
        self._replies = replies

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self._replies.feed(data)


class ClientFactory:
    """Opens connections to one server: the real one at a path, or a model."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._loop = new_loop(Random(1))
        self._model = RedisModel(self._loop, Random(1))
        self._open: list[RealRedisClient | ModelRedisClient] = []

    def connect(self) -> RealRedisClient | ModelRedisClient:
        client = RealRedisClient(self._path) if self._path is not None else ModelRedisClient(self._loop, self._model)
        self._open.append(client)
        return client

    def set_full(self, full: bool) -> None:
        if self._path is None:
            self._model.data.full = full
        else:
            self.connect().send_commands(("CONFIG", "SET", "maxmemory", int(full)))

    def deny(self, command: str) -> None:
        """The user loses the right to run it."""
        if self._path is None:
            self._model.denied.add(command.encode())
        else:
            self.connect().send_commands(("ACL", "SETUSER", "default", f"-{command.lower()}"))

    def allow_all(self) -> None:
        if self._path is None:
            self._model.denied.clear()
        else:
            self.connect().send_commands(("ACL", "SETUSER", "default", "+@all"))

    def close(self) -> None:
        for client in self._open:
            client.close()
