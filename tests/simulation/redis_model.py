"""Redis as a simulated process: connections, RESP3, the order of commands, pub/sub, tracking, and its faults.

Theory of operation. Commands that arrive together are applied one after the other, and answered. Then the connections
that track the prefix of a changed key get invalidations, as Redis sends them before it waits again. Commands of one
connection keep their order. WAIT blocks only its own connection.
"""

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

import hiredis

from tests.simulation.clock import CLOCK, EPOCH
from tests.simulation.loop import SimulatedProcess, VirtualLoop
from tests.simulation.network import Wire, WireEnd
from tests.simulation.redis_commands import MIN_ARGUMENTS, OK, READS, TAKE_MEMORY, WRITES, Status
from tests.simulation.redis_data import RedisData
from tests.simulation.redis_values import RedisError

_INCOMPLETE: Final = object()
_BLOCKED: Final = object()


class Push(list[Any]):
    """A RESP3 push message."""


class RedisModel:
    """One Redis server. See SimulatedServer in simulation.network; its contents are `data`.

    - `read_only`, `replicas` (those that acknowledge writes) and `offset` (of its clock, in seconds) may be changed at
      any time.
    - `denied`: the commands that the user has no right to run; they may be changed at any time too.
    - `observe` is called with each command before it is applied; `on_commands_applied` after each.
    """

    def __init__(
        self, loop: VirtualLoop, random: Random, *,
        observe: "Callable[[ModelConnection, list[bytes]], object]" = lambda _, __: None,
    ) -> None:  # fmt: skip
        self.process = SimulatedProcess("redis")
        self.data = RedisData(self._milliseconds, self._changed)
        self.data.instant = lambda: CLOCK.now
        self.read_only = False
        self.replicas = 0
        self.denied: set[bytes] = set()
        self.offset = 0.0
        self.connections: dict[int, ModelConnection] = {}
        self.loop = loop
        self.random = random
        self.observe = observe
        self.on_commands_applied: Callable[[], object] = lambda: None
        self.modified: dict[bytes, None] = {}
        self._number = 0
        self._channels: dict[bytes, dict[int, ModelConnection]] = {}

    def _milliseconds(self) -> int:
        return int((EPOCH + CLOCK.now + self.offset) * 1000)

    def accept(self) -> "ModelConnection":
        self._number += 1
        return ModelConnection(self, self._number)

    def start(self) -> None:
        """Start expiring keys in the background."""
        self.loop.deliver(self.process, CLOCK.now + 0.1, self._expire)

    def _expire(self) -> None:
        self.data.expire_some(lambda _: self.random.random() < 0.5)
        self.on_commands_applied()
        self.send_invalidations()
        self.start()

    # -- changes ------------------------------------------------------------------------------------------------------

    def _changed(self, key: bytes | None) -> None:
        if key is not None:
            self.modified[key] = None
            return
        self.modified.clear()
        for connection in self.connections.values():
            if connection.prefixes:
                connection.send_push(Push([b"invalidate", None]))

    def send_invalidations(self) -> None:
        """Report the changes since the last call, in one message per prefix."""
        if not self.modified:
            return
        modified = sorted(self.modified)
        self.modified = {}
        for connection in list(self.connections.values()):
            for prefix in connection.prefixes:
                keys = [key for key in modified if key.startswith(prefix)]
                if keys:
                    connection.send_push(Push([b"invalidate", keys]))

    def publish(self, channel: bytes, payload: bytes) -> int:
        receivers = list(self._channels.get(channel, {}).values())
        for receiver in receivers:
            receiver.send_push(Push([b"message", channel, payload]))
        return len(receivers)

    def subscribe(self, channel: bytes, connection: "ModelConnection") -> None:
        self._channels.setdefault(channel, {})[connection.number] = connection

    def disconnected(self, connection: "ModelConnection") -> None:
        self.connections.pop(connection.number, None)
        for receivers in self._channels.values():
            receivers.pop(connection.number, None)


class ModelConnection(asyncio.Protocol):
    """One client connection of the server."""

    def __init__(self, server: RedisModel, number: int) -> None:
        self.server = server
        self.number = number
        self.prefixes: list[bytes] = []
        self.channels: dict[bytes, None] = {}
        self._transport: Any = None
        self._reader = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._out: list[bytes] = []
        self._blocked = False

    @property
    def wire(self) -> Wire | None:
        return self._transport.wire if isinstance(self._transport, WireEnd) else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.server.connections[self.number] = self

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.disconnected(self)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._process_commands()

    def _process_commands(self) -> None:
        if self._blocked:
            return
        server = self.server
        while (command := self._reader.gets()) is not _INCOMPLETE:
            words = [word if isinstance(word, bytes) else b"%d" % word for word in command]
            server.observe(self, words)
            try:
                reply = self._apply(words)
            except RedisError as error:
                reply = error
            server.on_commands_applied()
            if reply is _BLOCKED:
                break
            self._out.append(encode(reply))
            if server.random.random() < 0.02 and not self._blocked:
                # The following commands of this connection wait until other callbacks have run.
                self._blocked = True
                server.loop.call_soon(self._unblock)
                break
        self._flush()
        server.send_invalidations()

    def _flush(self) -> None:
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._transport.write(data)

    def _unblock(self) -> None:
        self._blocked = False
        self._process_commands()

    def send_push(self, push: Push) -> None:
        self._out.append(encode(push))
        self._flush()

    def _apply(self, words: list[bytes]) -> Any:
        name, rest = words[0].upper(), words[1:]
        if name in self.server.denied:
            raise RedisError(f"NOPERM this user has no permissions to run the '{name.decode().lower()}' command")
        run = READS.get(name)
        if run is None and (run := WRITES.get(name)) is not None and self.server.read_only:
            raise RedisError("READONLY You can't write against a read only replica.")
        if name in TAKE_MEMORY:
            self.server.data.check_memory()
        if run is not None:
            if len(rest) < MIN_ARGUMENTS.get(name, 1):
                raise RedisError(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
            try:
                return run(self.server.data, rest)
            except ValueError:  # of float()
                raise RedisError("ERR value is not a valid float") from None
        # The remaining commands are methods of the connection.
        run_own: Callable[[list[bytes]], Any] | None = getattr(self, f"_{name.decode('latin-1').lower()}", None)
        if run_own is None:
            arguments = " ".join(f"'{word.decode()}'" for word in rest[:3])
            raise RedisError(f"ERR unknown command '{name.decode()}', with args beginning with: {arguments} ")
        return run_own(rest)

    # -- commands of the connection -----------------------------------------------------------------------------------

    def _ping(self, rest: list[bytes]) -> Any:
        return rest[0] if rest else Status("PONG")

    def _hello(self, _: list[bytes]) -> dict[bytes, Any]:
        role = b"replica" if self.server.read_only else b"master"
        return {b"server": b"redis", b"version": b"7.0.15", b"proto": 3, b"id": self.number, b"role": role}

    def _select(self, _: list[bytes]) -> Status:
        return OK

    def _auth(self, _: list[bytes]) -> Status:
        return OK

    def _client(self, rest: list[bytes]) -> Any:
        if rest[0].upper() != b"TRACKING":
            return OK if rest[0].upper() != b"ID" else self.number
        options = [word.upper() for word in rest]
        if options[1] != b"ON":
            self.prefixes = []
            return OK
        assert b"BCAST" in options, "the model of Redis knows tracking in broadcasting mode alone"
        added = [rest[at + 1] for at, word in enumerate(options) if word == b"PREFIX" and at % 2 == options.index(
            b"PREFIX") % 2]  # fmt: skip
        _no_overlap(added, self.prefixes)
        self.prefixes += added
        return OK

    def _subscribe(self, rest: list[bytes]) -> Any:
        for channel in rest:
            self.channels[channel] = None
            self.server.subscribe(channel, self)
            self._out.append(encode(Push([b"subscribe", channel, len(self.channels)])))
        return _NO_REPLY

    def _publish(self, rest: list[bytes]) -> int:
        return self.server.publish(rest[0], rest[1])

    def _info(self, rest: list[bytes]) -> bytes:
        sections = {
            b"server": b"# Server\r\nredis_version:7.0.15\r\n",
            b"memory": b"# Memory\r\nused_memory:1000000\r\nmaxmemory:%d\r\nmaxmemory_policy:noeviction\r\n"
            % (1_000_000 if self.server.data.full else 0),
            b"stats": b"# Stats\r\nevicted_keys:0\r\n",
            b"replication": b"# Replication\r\nrole:master\r\nconnected_slaves:%d\r\n" % self.server.replicas,
        }
        names = [word.lower() for word in rest] or list(sections)
        assert sections.keys() >= set(names), f"the model of Redis knows INFO {b', '.join(sections).decode()} alone"
        return b"\r\n".join(sections[name] for name in names)

    def _role(self, _: list[bytes]) -> list[Any]:
        if self.server.read_only:
            return [b"slave", b"127.0.0.1", 6379, b"connected", 0]
        return [b"master", 0, []]

    def _flushall(self, _: list[bytes]) -> Status:
        if self.server.read_only:
            raise RedisError("READONLY You can't write against a read only replica.")
        self.server.data.clear()
        return OK

    def _wait(self, rest: list[bytes]) -> Any:
        wanted, timeout = int(rest[0]), int(rest[1])
        if self.server.replicas >= wanted:
            return self.server.replicas
        self._blocked = True
        self.server.loop.call_later(timeout / 1000, self._on_wait_done)
        return _BLOCKED

    def _on_wait_done(self) -> None:
        self._out.append(encode(self.server.replicas))
        self._unblock()


def _no_overlap(added: list[bytes], known: list[bytes]) -> None:
    for at, prefix in enumerate(added):
        for other in known:
            if prefix.startswith(other) or other.startswith(prefix):
                raise RedisError(
                    f"ERR Prefix '{prefix.decode()}' overlaps with an existing prefix '{other.decode()}'. "
                    "Prefixes for a single client must not overlap."
                )
        for other in added[at + 1 :]:
            if prefix.startswith(other) or other.startswith(prefix):
                raise RedisError(
                    f"ERR Prefix '{prefix.decode()}' overlaps with another provided prefix '{other.decode()}'. "
                    "Prefixes for a single client must not overlap."
                )


class _NoReply:
    """The replies have been sent already."""


_NO_REPLY: Final = _NoReply()


def encode(reply: Any) -> bytes:
    """A reply in RESP3."""
    return b"".join(_encode(reply))


def _encode(reply: Any) -> Iterator[bytes]:
    if reply is None:
        yield b"_\r\n"
    elif isinstance(reply, bytes):
        yield b"$%d\r\n%b\r\n" % (len(reply), reply)
    elif isinstance(reply, Status):
        yield b"+%b\r\n" % reply.encode()
    elif isinstance(reply, int):
        yield b":%d\r\n" % reply
    elif isinstance(reply, float):
        yield b",%b\r\n" % f"{reply:.17g}".encode()
    elif isinstance(reply, RedisError):
        yield b"-%b\r\n" % str(reply).replace("\r\n", " ").replace("\n", " ").encode()
    elif isinstance(reply, dict):
        yield b"%%%d\r\n" % len(reply)
        for name, value in reply.items():
            yield from _encode(name)
            yield from _encode(value)
    elif isinstance(reply, list):
        yield (b">%d\r\n" if isinstance(reply, Push) else b"*%d\r\n") % len(reply)
        for part in reply:
            yield from _encode(part)
    else:
        assert isinstance(reply, _NoReply), reply
