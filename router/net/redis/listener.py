"""Receives Redis' pushes: the keys that any client changes, and the messages of channels.

Theory of operation. Separate connections, one to every server that holds keys, enable tracking of key prefixes in
broadcasting mode (https://redis.io/docs/latest/develop/reference/client-side-caching/): Redis pushes the name of each
key with such a prefix that any client changes. It collects the changes of the commands that it reads at once, so a
batch of writes causes one push. The first connection also subscribes to the channels. A ping, which is TIME (see
router.net.redis.clock), shows that the server is still alive. If a ping is not answered in time, or if the servers have
changed, all connections are closed, and `on_disconnected` reports that changes may have been missed.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from router.net.redis.backend import RedisBackend, Server
from router.net.redis.clock import TIME_COMMAND, RedisClock
from router.net.redis.commands import encode_command
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
        clock: RedisClock | None = None,
        liveness: Liveness | None = None,
    ) -> None:
        """`retry_interval`: seconds between two attempts to connect. Pings update `clock` and `liveness`."""
        self._backend = backend
        self._prefixes = prefixes
        self._channels = channels
        self._callbacks = callbacks
        self.retry_interval = retry_interval
        self._clock = clock or RedisClock()
        self._liveness = liveness or Liveness()
        self._stopped: asyncio.Future[None] | None = None  # fails with what ends the current connections

    def track(self, prefixes: Sequence[str]) -> None:
        """Reports changes under these prefixes; under new ones once it has connected again, which is soon."""
        has_new, self._prefixes = not set(prefixes) <= set(self._prefixes), prefixes
        if not has_new:
            return
        # Now and not when `run` notices it: what is read from now on may have one of the new prefixes.
        self._callbacks.on_disconnected()
        self._stop(RedisBackendError("it is to track other keys"))

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
        connections = [
            RedisConnection(on_error_reply=_log_error_reply, on_push=self._on_push, on_lost=self._stop) for _ in servers
        ]
        self._clock.set_server_count(len(servers))
        self._liveness.set_server_count(len(servers))
        try:
            # One server is enough for the channels: a cluster's servers forward published messages to one another.
            for number, (server, connection) in enumerate(zip(servers, connections, strict=True)):
                await self._start_tracking(server, connection, deadline, subscribe=number == 0)
                self._ping(connection, number, deadline - loop.time())
            self._callbacks.on_connected()
            while not stopped.done():
                await asyncio.wait([stopped], timeout=PING_INTERVAL)
                if self._backend.topology != topology:
                    raise RedisBackendError("the set of servers has changed")
                for number, connection in enumerate(connections):
                    if connection.ready:  # not ready: the last ping is still unanswered, and has its own timeout
                        self._ping(connection, number, PING_TIMEOUT - PING_INTERVAL)
            stopped.result()
        finally:
            self._stop(RedisBackendError("the listener has stopped"))
            stopped.exception()  # marks it as retrieved, so that asyncio does not log it
            for connection in connections:
                connection.abort()
            self._clock.set_server_count(0)
            self._liveness.set_server_count(0)

    def _ping(self, connection: RedisConnection, server: int, timeout: float) -> None:
        sent_at = self._clock.monotonic()

        def on_reply(batch: CommandBatch) -> None:
            try:
                (reply,) = batch.result()
            except RedisBackendError:
                return  # the connection is lost, and `on_lost` reports it
            self._clock.update(reply, sent_at, server)
            self._liveness.on_ping_reply(sent_at, server)

        connection.execute([TIME_COMMAND], timeout).add_done_callback(on_reply)

    async def _start_tracking(
        self, server: Server, connection: RedisConnection, deadline: float, *, subscribe: bool
    ) -> None:
        clock = asyncio.get_running_loop().time
        await server.connect(connection, deadline - clock())
        prefixes = [word for prefix in self._prefixes for word in ("PREFIX", prefix)]
        commands = [encode_command(("CLIENT", "TRACKING", "ON", "BCAST", *prefixes))]
        if subscribe:
            # SUBSCRIBE is answered by pushes, not by a reply. So PING goes out with it, and its reply stands for both.
            commands.append(encode_command(("SUBSCRIBE", *self._channels)) + _PING_COMMAND)
        for reply in await connection.execute(commands, deadline - clock()):
            if isinstance(reply, Exception):
                raise RedisBackendError.from_exception(reply)

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


def _log_error_reply(error: Exception) -> None:
    log.debug("Redis rejects a command of the listener: %s", error)
