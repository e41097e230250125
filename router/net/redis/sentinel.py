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
from typing import Any, Final

from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from router.net.redis.commands import Command
from router.net.redis.connection import ServerAddress
from router.net.redis.errors import REDIS_ERRORS, RedisBackendError, is_port
from router.net.redis.handshake import Handshake
from router.net.redis.replies import decode_reply
from router.net.redis.standalone import StandaloneBackend

_ASK_TIMEOUT: Final = 2.0  # seconds


class SentinelBackend(StandaloneBackend):
    """The backend for one master, through one connection."""

    def __init__(self, service: str, sentinels: "ParallelSentinel", handshake: Callable[[], Handshake]) -> None:
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

    async def aclose(self) -> None:
        await super().aclose()
        await self._sentinels.aclose()

    async def _resolve_address(self) -> ServerAddress:
        self._address = await self._sentinels.discover_master(self._service)
        return self._address

    def _check_commands(self) -> Sequence[Command]:
        return [("ROLE",)]

    def _verify_check_reply(self, reply: Any) -> None:
        if not isinstance(reply, list) or not reply or reply[0] != b"master":
            raise RedisBackendError("the server is not the master")


class SentinelPool(SentinelConnectionPool):
    """redis-py's pool, which would leave the connections to the Sentinels open."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:  # False: redis-py only drops idle connections to a former master
            await self.sentinel_manager.aclose()


class ParallelSentinel(Sentinel):
    """redis-py's Sentinel client, which would ask one Sentinel after the other and wait for each that is frozen."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        queries = [asyncio.create_task(_query_state(sentinel, service_name)) for sentinel in self.sentinels]
        states: list[dict[str, Any]] = []
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
        latest = max(states, key=_epoch)
        if not self.check_master_state(latest, service_name):
            raise MasterNotFoundError("the master is down and no new one is elected yet")
        return latest["ip"], int(latest["port"])


async def _query_state(sentinel: Any, service: str) -> dict[str, Any] | None:
    """A Sentinel's state of the master; None if it gives none: it does not answer, or does not know the service."""
    try:
        masters = await sentinel.sentinel_masters()
        return decode_reply(partial(_read_state, service=service), masters)
    except REDIS_ERRORS:
        return None
    except Exception:  # noqa: BLE001 - whatever redis-py's parser raises for a reply of another form
        return None


def _read_state(masters: Any, service: str) -> dict[str, Any] | None:
    state: dict[str, Any] | None = masters.get(service)
    if state is not None and not (isinstance(state["ip"], str) and is_port(int(state["port"])) and _epoch(state) >= 0):
        raise ValueError("no address")
    return state


def _epoch(state: dict[str, Any]) -> int:
    return int(state.get("config-epoch", 0))
