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

from router.net.redis.backend import Link, Server
from router.net.redis.clock import ASK_TIME, RedisClock
from router.net.redis.commands import pack
from router.net.redis.connection import Batch, Connection
from router.net.redis.errors import LinkError
from router.net.redis.liveness import BEAT, SILENCE, Liveness

log = logging.getLogger("roundhouse.redis")

_CONNECT: Final = 2.0  # seconds
_PING: Final = pack(("PING",))


class Hears(Protocol):
    """Who is told."""

    def listening(self) -> None:
        """From now on, every change will be told."""

    def deaf(self) -> None:
        """From now on, or for a moment that is past, changes are not told."""

    def changed(self, keys: Sequence[bytes] | None) -> None:
        """Somebody has changed these keys; None means all there are."""

    def message(self, payload: bytes) -> None:
        """Somebody has published this on the channel."""


class Listener:
    """Listens for as long as `run` runs, and begins anew when a connection is lost."""

    def __init__(
        self, link: Link, *, prefixes: Sequence[str], channel: str, hears: Hears, retry: float,
        clock: RedisClock | None = None, liveness: Liveness | None = None,
    ) -> None:  # fmt: skip
        """`retry`: seconds between two attempts to connect. `clock` and `liveness` are kept right."""
        self._link = link
        self._prefixes = prefixes
        self._channel = channel
        self._hears = hears
        self._retry = retry
        self._clock = clock or RedisClock()
        self._liveness = liveness or Liveness()
        self._over: asyncio.Future[None]  # fails with what ends the listening that is under way

    async def run(self) -> None:
        """Until it is cancelled."""
        told = ""
        while True:
            try:
                await self._listen()
            except LinkError as error:
                log.debug("the listening connections to Redis are gone: %s", error)
            except Exception as defect:
                # The last line of defence: a defect here must not end the listening for ever, nor fill the log.
                if repr(defect) != told:
                    log.exception("listening to Redis failed")
                told = repr(defect)
            finally:
                self._hears.deaf()
            await asyncio.sleep(self._retry)

    async def _listen(self) -> None:
        """Raises LinkError once one of the connections is lost, and what was raised by whoever was told."""
        servers = await self._link.servers()
        if not servers:
            raise LinkError("there is no server")
        topology = self._link.topology
        loop = asyncio.get_running_loop()
        until = loop.time() + _CONNECT
        over = self._over = loop.create_future()
        connections = [Connection(refused=_refused, pushed=self._pushed, lost=self._end) for _ in servers]
        self._clock.listen(len(servers))
        self._liveness.listen(len(servers))
        try:
            for number, (server, connection) in enumerate(zip(servers, connections, strict=True)):
                await self._begin(server, connection, until, subscribe=number == 0)
                self._ask_time(connection, number, until - loop.time())
            self._hears.listening()
            while not over.done():
                await asyncio.wait([over], timeout=BEAT)
                if self._link.topology != topology:
                    raise LinkError("the servers have changed")
                for number, connection in enumerate(connections):
                    if connection.ready:  # else it has yet to answer the last beat
                        self._ask_time(connection, number, SILENCE - BEAT)
            over.result()
        finally:
            self._end(LinkError("nobody listens any more"))
            over.exception()  # nobody need look
            for connection in connections:
                connection.abort()
            self._clock.listen(0)
            self._liveness.listen(0)

    def _ask_time(self, connection: Connection, server: int, timeout: float) -> None:
        sent = self._clock.monotonic()

        def answered(batch: Batch) -> None:
            try:
                (reply,) = batch.result()
            except LinkError:
                return  # which `lost` tells as well
            self._clock.note(reply, sent, server)
            self._liveness.answered(sent, server)

        connection.send([ASK_TIME], timeout).add_done_callback(answered)

    async def _begin(self, server: Server, connection: Connection, until: float, *, subscribe: bool) -> None:
        clock = asyncio.get_running_loop().time
        await server.connect(connection, until - clock())
        prefixes = [word for prefix in self._prefixes for word in ("PREFIX", prefix)]
        commands = [pack(("CLIENT", "TRACKING", "ON", "BCAST", *prefixes))]
        if subscribe:
            # It is answered by a push, so what comes behind it has the reply.
            commands.append(pack(("SUBSCRIBE", self._channel)) + _PING)
        for reply in await connection.send(commands, until - clock()):
            if isinstance(reply, Exception):
                raise LinkError.of(reply)

    # -- what the connections tell ----------------------------------------------------------------------------------

    def _pushed(self, push: list[Any]) -> None:
        try:
            if push[0] == b"invalidate":
                self._hears.changed(push[1])
            elif push[0] == b"message":
                self._hears.message(push[2])
        except Exception as defect:  # noqa: BLE001 - `run` tells of it
            # A change that was not taken in is one that was not told.
            self._end(defect)

    def _end(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)


def _refused(error: Exception) -> None:
    log.debug("Redis does not let a router listen: %s", error)
