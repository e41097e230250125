"""Receives Redis' pushes: the keys that any client changes, and the messages of channels.

Theory of operation. Separate connections, one to every server that holds keys, enable tracking of key prefixes in
broadcasting mode (https://redis.io/docs/latest/develop/reference/client-side-caching/): Redis pushes the name of each
key with such a prefix that any client changes. It collects the changes of the commands that it reads at once, so a
batch of writes causes one push. The first connection also subscribes to the channels. A ping, which is TIME (see
router.net.redis.clock), shows that the server is still alive. If a ping is not answered in time, or if the servers have
changed, all connections are closed, and `on_disconnected` reports that changes may have been missed. Redis adds new
prefixes to those that a connection tracks. So they go out with the next ping, and nothing is missed.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from router.net.redis.backend import RedisBackend, Server
from router.net.redis.clock import TIME_COMMAND, RedisClock
from router.net.redis.commands import EncodedCommand, encode_command
from router.net.redis.connection import CommandBatch, RedisConnection
from router.net.redis.errors import RedisBackendError
from router.net.redis.liveness import PING_INTERVAL, PING_TIMEOUT, Liveness

log = logging.getLogger("roundhouse.redis")

_CONNECT_TIMEOUT: Final = 2.0  # seconds
_PING_COMMAND: Final = encode_command(("PING",))


class ListenerCallbacks(Protocol):
    """What the listener calls."""

    def on_connected(self) -> None:
        """From now on, every change is reported."""

    def on_disconnected(self) -> None:
        """Changes may have been missed, and are not reported until `on_connected`."""

    def on_keys_changed(self, keys: Sequence[bytes] | None) -> None:
        """These keys have changed or expired; None means all keys (FLUSHALL, FLUSHDB)."""

    def on_message(self, channel: bytes, payload: bytes) -> None:
        """A message was published on a channel."""


class _Link(NamedTuple):
    """A connection to one of the servers, which are numbered from 0, and the prefixes that it tracks."""

    connection: RedisConnection
    number: int
    tracked: set[str]

    def lacks(self, prefixes: Sequence[str]) -> list[str]:
        return [prefix for prefix in prefixes if prefix not in self.tracked]


class Listener:
    """Listens while `run` is running, and reconnects when a connection is lost."""

    def __init__(
        self,
        backend: RedisBackend,
        *,
        prefixes: Sequence[str],
        channels: Sequence[str],
        callbacks: ListenerCallbacks,
        retry_interval: float,
        ping_timeout: float = PING_TIMEOUT,
        clock: RedisClock | None = None,
        liveness: Liveness | None = None,
    ) -> None:
        """`retry_interval`: seconds between two attempts to connect. Pings update `clock` and `liveness`.

        A connection is lost `ping_timeout` seconds after the last ping that was answered.
        """
        self._backend = backend
        self._prefixes = prefixes
        self._channels = channels
        self._callbacks = callbacks
        self.retry_interval = retry_interval
        self._reply_timeout = ping_timeout - PING_INTERVAL
        self._clock = clock or RedisClock()
        self._liveness = liveness or Liveness()
        self._stopped: asyncio.Future[None] | None = None  # fails with what ends the current connections
        self._links: list[_Link] = []  # those that report changes
        self._is_complete = asyncio.Event()  # all prefixes are tracked, or no change is reported at all

    async def track(self, prefixes: Sequence[str]) -> None:
        """To be called before the first key with a new prefix is read.

        Returns when changes under these prefixes are reported, or none are, since it is not connected. A prefix that is
        missing here stays tracked until it connects again.
        """
        self._prefixes = prefixes
        if self._lacks_prefixes():
            self._is_complete.clear()
            self._ping_all()
            await self._is_complete.wait()

    def _lacks_prefixes(self) -> bool:
        return any(link.lacks(self._prefixes) for link in self._links)

    async def run(self) -> None:
        logged = ""
        while True:
            try:
                await self._listen()
            except RedisBackendError as error:
                log.debug("lost the listener's connection to Redis: %s", error)
            except Exception as defect:
                # The last line of defence: a defect must not stop the listener for good. It is logged once, not at
                # each attempt.
                if repr(defect) != logged:
                    log.exception("the Redis listener failed")
                logged = repr(defect)
            finally:
                self._callbacks.on_disconnected()
            await asyncio.sleep(self.retry_interval)

    async def _listen(self) -> None:
        """Raises RedisBackendError when a connection is lost, and any exception that a callback raised."""
        servers = await self._backend.servers()
        if not servers:
            raise RedisBackendError("no server found")
        topology = self._backend.topology
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CONNECT_TIMEOUT
        stopped = self._stopped = loop.create_future()
        connection = partial(
            RedisConnection, on_error_reply=_log_error_reply, on_push=self._on_push, on_lost=self._stop
        )
        links = [_Link(connection(), number, set()) for number in range(len(servers))]
        self._clock.set_server_count(len(servers))
        self._liveness.set_server_count(len(servers))
        try:
            # One server is enough for the channels: a cluster's servers forward published messages to one another.
            for server, link in zip(servers, links, strict=True):
                await self._start_tracking(server, link, deadline, subscribe=link.number == 0)
                self._ping(link, deadline - loop.time())
            self._links = links
            if self._lacks_prefixes():
                raise RedisBackendError("there are new prefixes since it began to connect")
            self._callbacks.on_connected()
            while not stopped.done():
                await asyncio.wait([stopped], timeout=PING_INTERVAL)
                if self._backend.topology != topology:
                    raise RedisBackendError("the set of servers has changed")
                self._ping_all()
            stopped.result()
        finally:
            self._stop(RedisBackendError("the listener has stopped"))
            stopped.exception()  # marks it as retrieved, so that asyncio does not log it
            self._links = []
            self._is_complete.set()
            for link in links:
                link.connection.abort()
            self._clock.set_server_count(0)
            self._liveness.set_server_count(0)

    def _ping_all(self) -> None:
        for link in self._links:
            if link.connection.ready:  # not ready: the last ping is still unanswered, and has its own timeout
                self._ping(link, self._reply_timeout)

    def _ping(self, link: _Link, timeout: float) -> None:
        added = link.lacks(self._prefixes)
        sent_at = self._clock.monotonic()

        def on_reply(batch: CommandBatch) -> None:
            try:
                *replies, time = batch.result()
            except RedisBackendError:
                return  # the connection is lost, and `on_lost` reports it
            for reply in replies:
                if isinstance(reply, Exception):
                    self._stop(RedisBackendError.from_exception(reply))
                    return
            link.tracked.update(added)
            if not self._lacks_prefixes():
                self._is_complete.set()
            self._clock.update(time, sent_at, link.number)
            self._liveness.on_ping_reply(sent_at, link.number)

        commands = [_tracking_command(added), TIME_COMMAND] if added else [TIME_COMMAND]
        link.connection.execute(commands, timeout).add_done_callback(on_reply)

    async def _start_tracking(self, server: Server, link: _Link, deadline: float, *, subscribe: bool) -> None:
        clock = asyncio.get_running_loop().time
        await server.connect(link.connection, deadline - clock())
        prefixes = self._prefixes
        commands = [_tracking_command(prefixes)]
        if subscribe:
            # SUBSCRIBE is answered by pushes, not by a reply. So PING goes out with it, and its reply stands for both.
            commands.append(encode_command(("SUBSCRIBE", *self._channels)) + _PING_COMMAND)
        for reply in await link.connection.execute(commands, deadline - clock()):
            if isinstance(reply, Exception):
                raise RedisBackendError.from_exception(reply)
        link.tracked.update(prefixes)

    # -- the connections' callbacks ---------------------------------------------------------------------------------

    def _on_push(self, push: list[Any]) -> None:
        try:
            if push[0] == b"invalidate":
                self._callbacks.on_keys_changed(push[1])
            elif push[0] == b"message":
                self._callbacks.on_message(push[1], push[2])
        except Exception as defect:  # noqa: BLE001 - `run` logs it
            # A change that was not processed counts as missed, so the listener starts again.
            self._stop(defect)

    def _stop(self, error: Exception) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_exception(error)


def _tracking_command(prefixes: Sequence[str]) -> EncodedCommand:
    words = [word for prefix in prefixes for word in ("PREFIX", prefix)]
    return encode_command(("CLIENT", "TRACKING", "ON", "BCAST", *words))


def _log_error_reply(error: Exception) -> None:
    log.debug("Redis rejects a command of the listener: %s", error)
