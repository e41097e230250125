"""The backend for the current master of a service that Sentinels monitor.

Theory of operation. A new connection asks all Sentinels for the master at once. As soon as more than half have answered
it uses the answer with the greatest epoch, that is, with the latest failover. So a Sentinel that is frozen or
partitioned neither delays the connection nor misleads it. The server must then confirm with ROLE that it is a master. A
failover ends the connections to the old master, either because it is dead or because Sentinel closes them when it makes
it a replica. So the next command after a failure finds the new master
(https://redis.io/docs/latest/develop/reference/sentinel-clients/).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from redis.asyncio.connection import AbstractConnection
from redis.asyncio.sentinel import MasterNotFoundError

from router.net.redis.commands import Command
from router.net.redis.connection import ServerAddress
from router.net.redis.errors import REDIS_ERRORS, RedisBackendError, is_port
from router.net.redis.handshake import Handshake
from router.net.redis.replies import decode_reply, hash_fields
from router.net.redis.standalone import StandaloneBackend
from router.net.redis.url import HostPort

_ASK_TIMEOUT: Final = 2.0  # seconds


class SentinelBackend(StandaloneBackend):
    """The backend for one master, through one connection."""

    def __init__(self, service: str, sentinels: "Sentinels", handshake: Callable[[], Handshake]) -> None:
        super().__init__("", handshake)  # the address is known once the Sentinels have been asked
        self._service = service
        self._sentinels = sentinels

    @property
    def topology(self) -> object:
        return self._address

    async def servers(self) -> list[StandaloneBackend]:
        # Asks for the master before the topology is read: that of a listener that is the first to connect would change.
        try:
            async with asyncio.timeout(_ASK_TIMEOUT):
                await self._resolve_address()
        except REDIS_ERRORS as error:
            raise RedisBackendError.from_exception(error) from error
        return [self]

    async def _resolve_address(self) -> ServerAddress:
        self._address = await self._sentinels.discover_master(self._service)
        return self._address

    def _check_commands(self) -> Sequence[Command]:
        return [("ROLE",)]

    def _verify_check_reply(self, reply: Any) -> None:
        if not isinstance(reply, list) or not reply or reply[0] != b"master":
            raise RedisBackendError("the server is not the master")


class Sentinels:
    """Takes the place of redis-py's client, which asks one Sentinel after the other and waits for each that is frozen.

    Each query has a connection of its own, which ends with it, so there is nothing to close.
    """

    def __init__(self, hosts: Sequence[HostPort], new_connection: Callable[[HostPort], AbstractConnection]) -> None:
        self._hosts: Final = hosts
        self._new_connection: Final = new_connection

    async def discover_master(self, service_name: str) -> ServerAddress:
        """Raises MasterNotFoundError."""
        queries = [asyncio.create_task(_query_state(self._new_connection(host), service_name)) for host in self._hosts]
        states: list[_MasterState] = []
        try:
            for query in asyncio.as_completed(queries):
                state = await query
                if state is not None:
                    states.append(state)
                if len(states) * 2 > len(queries):
                    break
        finally:
            for slow in queries:
                slow.cancel()
        if not states:
            raise MasterNotFoundError("no Sentinel knows the master")
        latest = max(states)
        if not latest.is_up:
            raise MasterNotFoundError("the master is down and no new one is elected yet")
        return latest.address


class _MasterState(NamedTuple):
    """What a Sentinel says of the master."""

    epoch: int
    is_up: bool
    address: ServerAddress


async def _query_state(connection: AbstractConnection, service: str) -> _MasterState | None:
    """None if the Sentinel gives none: it does not answer, or does not know the service."""
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
        await connection.send_command("SENTINEL", "MASTERS")
        return decode_reply(partial(_read_state, service=service.encode()), await connection.read_response())
    except REDIS_ERRORS:
        return None
    except Exception:  # noqa: BLE001 - whatever redis-py's parser raises for a reply of another form
        return None
    finally:
        await connection.disconnect(nowait=True)  # closes it before it waits for anything, even when cancelled


def _read_state(masters: list[Any], service: bytes) -> _MasterState | None:
    for fields in map(hash_fields, masters):
        if fields[b"name"] == service:
            name, port, epoch = fields[b"ip"].decode(), int(fields[b"port"]), int(fields.get(b"config-epoch", 0))
            flags = set(fields[b"flags"].split(b","))
            if not is_port(port) or epoch < 0:
                raise ValueError("no address")
            return _MasterState(epoch, b"master" in flags and flags.isdisjoint((b"s_down", b"o_down")), (name, port))
    return None
