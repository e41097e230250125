"""Being told by Redis, at once, of what others change there.

Theory of operation. Connections of their own, one to every server that holds keys, ask Redis to track prefixes in
broadcasting mode (https://redis.io/docs/latest/develop/reference/client-side-caching/): whoever changes a key that
begins with one of them, Redis says which. It gathers what changes while it does what it has read, so that a batch of
writes is one word. The same connections take the messages of a channel. A beat, which asks for Redis' time (see
router.net.redis.clock), shows that the other side still lives: if Redis has not answered it in time, or if the
servers have changed, all connections are given up, and whoever relied on being told learns that he was not.
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
    """Who is told."""

    def on_connected(self) -> None:
        """From now on, every change will be told."""

    def on_disconnected(self) -> None:
        """From now on, or for a moment that is past, changes are not told."""

    def on_keys_changed(self, keys: Sequence[bytes] | None) -> None:
        """Somebody has changed these keys; None means all there are."""

    def on_message(self, payload: bytes) -> None:
        """Somebody has published this on the channel."""


class Listener:
    """Listens for as long as `run` runs, and begins anew when a connection is lost."""

    def __init__(
        self,
        backend: RedisBackend,
        *,
        prefixes: Sequence[str],
        channel: str,
        callbacks: ListenerCallbacks,
        retry_interval: float,
        clock: RedisClock | None = None,
        liveness: Liveness | None = None,
    ) -> None:
        """`retry`: seconds between two attempts to connect. `clock` and `liveness` are kept right."""
        self._backend = backend
        self._prefixes = prefixes
        self._channel = channel
        self._callbacks = callbacks
        self._retry_interval = retry_interval
        self._clock = clock or RedisClock()
        self._liveness = liveness or Liveness()
        self._stopped: asyncio.Future[None]  # fails with what ends the listening that is under way

    async def run(self) -> None:
        """Until it is cancelled."""
        told = ""
        while True:
            try:
                await self._listen()
            except RedisBackendError as error:
                log.debug("the listening connections to Redis are gone: %s", error)
            except Exception as defect:
                # The last line of defence: a defect here must not end the listening for ever, nor fill the log.
                if repr(defect) != told:
                    log.exception("listening to Redis failed")
                told = repr(defect)
            finally:
                self._callbacks.on_disconnected()
            await asyncio.sleep(self._retry_interval)

    async def _listen(self) -> None:
        """Raises LinkError once one of the connections is lost, and what was raised by whoever was told."""
        servers = await self._backend.servers()
        if not servers:
            raise RedisBackendError("there is no server")
        topology = self._backend.topology
        loop = asyncio.get_running_loop()
        until = loop.time() + _CONNECT_TIMEOUT
        over = self._stopped = loop.create_future()
        connections = [
            RedisConnection(on_error_reply=_log_error_reply, on_push=self._on_push, on_lost=self._stop) for _ in servers
        ]
        self._clock.set_server_count(len(servers))
        self._liveness.set_server_count(len(servers))
        try:
            for number, (server, connection) in enumerate(zip(servers, connections, strict=True)):
                await self._start_tracking(server, connection, until, subscribe=number == 0)
                self._ping(connection, number, until - loop.time())
            self._callbacks.on_connected()
            while not over.done():
                await asyncio.wait([over], timeout=PING_INTERVAL)
                if self._backend.topology != topology:
                    raise RedisBackendError("the servers have changed")
                for number, connection in enumerate(connections):
                    if connection.ready:  # else it has yet to answer the last beat
                        self._ping(connection, number, PING_TIMEOUT - PING_INTERVAL)
            over.result()
        finally:
            self._stop(RedisBackendError("nobody listens any more"))
            over.exception()  # nobody need look
            for connection in connections:
                connection.abort()
            self._clock.set_server_count(0)
            self._liveness.set_server_count(0)

    def _ping(self, connection: RedisConnection, server: int, timeout: float) -> None:
        sent = self._clock.monotonic()

        def answered(batch: CommandBatch) -> None:
            try:
                (reply,) = batch.result()
            except RedisBackendError:
                return  # which `lost` tells as well
            self._clock.update(reply, sent, server)
            self._liveness.on_ping_reply(sent, server)

        connection.execute([TIME_COMMAND], timeout).add_done_callback(answered)

    async def _start_tracking(
        self, server: Server, connection: RedisConnection, until: float, *, subscribe: bool
    ) -> None:
        clock = asyncio.get_running_loop().time
        await server.connect(connection, until - clock())
        prefixes = [word for prefix in self._prefixes for word in ("PREFIX", prefix)]
        commands = [encode_command(("CLIENT", "TRACKING", "ON", "BCAST", *prefixes))]
        if subscribe:
            # It is answered by a push, so what comes behind it has the reply.
            commands.append(encode_command(("SUBSCRIBE", self._channel)) + _PING_COMMAND)
        for reply in await connection.execute(commands, until - clock()):
            if isinstance(reply, Exception):
                raise RedisBackendError.from_exception(reply)

    # -- what the connections tell ----------------------------------------------------------------------------------

    def _on_push(self, push: list[Any]) -> None:
        try:
            if push[0] == b"invalidate":
                self._callbacks.on_keys_changed(push[1])
            elif push[0] == b"message":
                self._callbacks.on_message(push[2])
        except Exception as defect:  # noqa: BLE001 - `run` tells of it
            # A change that was not taken in is one that was not told.
            self._stop(defect)

    def _stop(self, error: Exception) -> None:
        if not self._stopped.done():
            self._stopped.set_exception(error)


def _log_error_reply(error: Exception) -> None:
    log.debug("Redis does not let a router listen: %s", error)
