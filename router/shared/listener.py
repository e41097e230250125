"""Being told by Redis, at once, of what others change there.

Theory of operation. Connections of their own, one to every server that holds keys, ask Redis to track prefixes in
broadcasting mode (https://redis.io/docs/latest/develop/reference/client-side-caching/): whoever changes a key that
begins with one of them, Redis says which. The same connections take the messages of a channel. A beat shows that the
other side still lives: if Redis has said nothing for longer than that should take, or if the servers have changed,
all connections are given up, and whoever relied on being told learns that he was not.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from redis.asyncio.connection import AbstractConnection

from router.shared.link import FAULTS, Link, LinkError
from router.shared.tasks import end

log = logging.getLogger("roundhouse.redis")

BEAT: Final = 0.3
"""Seconds between two signs of life that Redis is asked for."""

SILENCE: Final = 0.8
"""Seconds without any sign after which a connection is taken to be lost: with what it takes to notice, under one."""

_CONNECT: Final = 2.0  # seconds


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

    def __init__(self, link: Link, *, prefixes: Sequence[str], channel: str, hears: Hears, retry: float) -> None:
        """`retry`: seconds between two attempts to connect."""
        self._link = link
        self._prefixes = prefixes
        self._channel = channel
        self._hears = hears
        self._retry = retry
        self._pushed: list[Sequence[bytes] | None] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        told = ""
        while True:
            connections: list[Any] = []
            try:
                connections += await self._link.listeners()
                await self._listen(connections)
            except (*FAULTS, LinkError) as error:
                log.debug("the listening connections to Redis are gone: %s", LinkError.of(error))
            except Exception as defect:
                # The last line of defence: a defect here must not end the listening for ever, nor fill the log.
                if repr(defect) != told:
                    log.exception("listening to Redis failed")
                told = repr(defect)
            finally:
                self._hears.deaf()
                for connection in connections:
                    with contextlib.suppress(*FAULTS):
                        await connection.disconnect(nowait=True)
            await asyncio.sleep(self._retry)

    async def _listen(self, connections: Sequence[Any]) -> None:
        """Returns or raises once one of the connections is lost."""
        if not connections:
            raise LinkError("there is no server")
        self._pushed.clear()
        topology = self._link.topology
        async with asyncio.timeout(_CONNECT):
            for number, connection in enumerate(connections):
                await self._begin(connection, subscribe=number == 0)
        self._hears.listening()
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._read(connection)) for connection in connections]
        tasks.append(loop.create_task(self._beat(connections, topology)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end(*tasks)

    async def _begin(self, connection: Any, *, subscribe: bool) -> None:
        connection.socket_timeout = None  # silence is what it mostly hears; _read minds it
        await connection.connect()
        # There is no other way to be given them; the one for messages is the default.
        connection._parser.set_invalidation_push_handler(self._invalidated)  # noqa: SLF001
        prefixes = [word for prefix in self._prefixes for word in ("PREFIX", prefix)]
        await connection.send_command("CLIENT", "TRACKING", "ON", "BCAST", *prefixes)
        await connection.read_response()
        if subscribe:
            await connection.send_command("SUBSCRIBE", self._channel)
            await connection.read_response(push_request=True)

    async def _beat(self, connections: Sequence[AbstractConnection], topology: object) -> None:
        while True:
            await asyncio.sleep(BEAT)
            if self._link.topology != topology:
                raise LinkError("the servers have changed")
            for connection in connections:
                await connection.send_command("PING", check_health=False)

    async def _read(self, connection: Any) -> None:
        last = heard = asyncio.get_running_loop().time()
        while True:
            said = await connection.read_response(push_request=True, disable_decoding=True, timeout=SILENCE)
            heard = asyncio.get_running_loop().time()
            # redis-py gives None for silence, and for a push that the handler below has had.
            if said is None and heard - last >= SILENCE:
                raise LinkError("Redis is silent")
            if said is not None:
                last = heard
            pushed, self._pushed = self._pushed, []
            for keys in pushed:
                self._hears.changed(keys)
            if isinstance(said, list) and said[0] == b"message":
                self._hears.message(said[2])

    async def _invalidated(self, push: Sequence[Any]) -> None:
        self._pushed.append(push[1])  # redis-py would keep what is raised here to itself, and the change would be lost
