"""The log of purges as whoever purges writes it: a record, and how many replicas have it.

Redis confirms a write before its replicas have it, so a failover may lose the record of a purge. WAIT says how many
replicas have all that this very connection wrote before; so it goes over the same connection as the record.
"""

import asyncio
from typing import Any, Final

import msgspec
from redis.asyncio.cluster import ClusterNode, PipelineCommand, RedisCluster

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.net.redis.commands import Command
from router.shared.purges import (
    BEGINNING,
    MAX_PURGES,
    PurgePosition,
    decode_entry_filter,
    log_start_command,
    nonce_field,
    parse_position,
)
from router.store.admin.scan import RedisClient, map_redis_errors

MAX_RECORDS: Final = MAX_PURGES
"""Purges that the log remembers, or a few more."""

SCOPE_FIELD: Final = "scope"
"""The field of a record that holds the scope as JSON."""

_REPLICATION_TIMEOUT_MS: Final = 1000  # milliseconds that replicas have to confirm; they take about one
_PAGE_SIZE: Final = 1000
_INFO_COMMAND: Final[Command] = ("INFO", "replication")


class ReplicaAcks(msgspec.Struct, frozen=True):
    """Of `connected` replicas, how many have `acknowledged` a record."""

    connected: int
    acknowledged: int


NO_REPLICAS: Final = ReplicaAcks(0, 0)


async def add_record(client: RedisClient, scope: EntryFilter) -> ReplicaAcks | None:
    """Adds the record of a purge; waits a second at most for replicas to have it. Raises LinkError.

    None where it is not known which replicas have it: Redis refuses to say, or the record's slot is being moved.
    """
    with map_redis_errors():
        server = _LogServer(client, await _log_node(client))
        record = ("XADD", PURGE_LOG_KEY, "MAXLEN", "~", MAX_RECORDS, "*", SCOPE_FIELD, scope.to_json(), *nonce_field())
        connected = await server.connected_replicas()
        if connected is None or connected == 0:
            await client.execute_command(*record)
            return None if connected is None else NO_REPLICAS
        added, acknowledged = await server.execute(record, ("WAIT", connected, _REPLICATION_TIMEOUT_MS))
        if isinstance(added, Exception):
            # Not lost: the server has refused it. In a cluster, another one may have taken over the slot.
            await client.execute_command(*record)
            return None
        return ReplicaAcks(connected, acknowledged) if isinstance(acknowledged, int) else None


async def last_record_id(client: RedisClient) -> bytes:
    """The id of the last record of the log, which is begun where there is none. Raises LinkError."""
    with map_redis_errors():
        found = await client.execute_command("XREVRANGE", PURGE_LOG_KEY, "+", "-", "COUNT", 1)
        id_: bytes = found[0][0] if found else await client.execute_command(*log_start_command())
    return id_


async def is_purged(client: RedisClient, key: str, documents: tuple[str, ...], since: PurgePosition) -> bool:
    """Whether an entry with such a mark is not given although it is there; see Purges.cover. Raises LinkError."""
    after = "-"
    first = last = BEGINNING
    covered = False
    with map_redis_errors():
        while True:
            found = await client.execute_command("XRANGE", PURGE_LOG_KEY, after, "+", "COUNT", _PAGE_SIZE)
            for id_, fields in found:
                last = parse_position(id_)
                first = last if first == BEGINNING else first
                scope = decode_entry_filter(fields)
                covered = covered or (last > since and scope is not None and scope.matches(key, documents))
            if len(found) < _PAGE_SIZE:
                return covered or not first <= since <= last
            after = "(" + found[-1][0].decode()


async def _log_node(client: RedisClient) -> ClusterNode | None:
    """Of a cluster, the server that holds the log."""
    if not isinstance(client, RedisCluster):
        return None
    await client.initialize()
    return client.get_node_from_key(PURGE_LOG_KEY)


class _LogServer:
    """The server that holds the log: of a cluster, one of its nodes."""

    def __init__(self, client: RedisClient, node: ClusterNode | None) -> None:
        self._client = client
        self._node = node

    async def execute(self, *commands: Command) -> list[Any]:
        """Sends commands over one connection; a refusal is an exception in its place."""
        if self._node is None:
            batch = self._client.pipeline(transaction=False)
            for command in commands:
                batch.execute_command(*command)
            return list(await batch.execute(raise_on_error=False))
        sent = [PipelineCommand(place, *command) for place, command in enumerate(commands)]
        await self._node.execute_pipeline(sent)
        for one in sent:
            if isinstance(one.result, (OSError, asyncio.TimeoutError)):
                raise one.result
        return [one.result for one in sent]

    async def connected_replicas(self) -> int | None:
        """None where Redis does not say."""
        (told,) = await self.execute(_INFO_COMMAND)
        return told.get("connected_slaves") if isinstance(told, dict) else None
