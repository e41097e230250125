"""Writes to the purge log: adds a record, and counts the replicas that have it.

Redis confirms a write before its replicas have it, so a failover may lose the record of a purge. WAIT returns how many
replicas have all previous writes of the same connection, so it must use the connection that added the record.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from redis.asyncio.cluster import ClusterNode, PipelineCommand, RedisCluster

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.net.redis.commands import Command
from router.shared.cache.purges import (
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
"""Purges that the log keeps, approximately: Redis trims it by whole nodes."""

SCOPE_FIELD: Final = "scope"
"""The field of a record that holds the filter as JSON."""

_REPLICATION_TIMEOUT_MS: Final = 1000  # replicas usually confirm in about one millisecond
_PAGE_SIZE: Final = 1000
_INFO_COMMAND: Final[Command] = ("INFO", "replication")


class ReplicaAcks(msgspec.Struct, frozen=True):
    """The number of `connected` replicas, and how many of them have `acknowledged` a record."""

    connected: int
    acknowledged: int


NO_REPLICAS: Final = ReplicaAcks(0, 0)


async def add_records(client: RedisClient, scopes: Sequence[EntryFilter]) -> ReplicaAcks | None:
    """Add a record for each purge; waits at most a second for replicas to confirm them. Raises RedisBackendError.

    None where it is unknown which replicas have them: Redis does not report them, or their slot is being moved.
    """
    with map_redis_errors():
        server = _LogServer(client, await _log_node(client))
        records: list[Command] = [
            ("XADD", PURGE_LOG_KEY, "MAXLEN", "~", MAX_RECORDS, "*", SCOPE_FIELD, scope.to_json(), *nonce_field())
            for scope in scopes
        ]
        connected = await server.connected_replicas()
        if connected is None or connected == 0:  # no replica to wait for
            await _send(client, records)
            return None if connected is None else NO_REPLICAS
        # One WAIT for all of them: a replica that does not answer delays a purge of many keys by one second.
        *added, acknowledged = await server.execute(*records, ("WAIT", connected, _REPLICATION_TIMEOUT_MS))
        refused = [record for record, reply in zip(records, added, strict=True) if isinstance(reply, Exception)]
        if refused:
            # The server has refused them, so repeating them adds none twice. In a cluster, another node may own the
            # slot by now; the client follows the redirection.
            await _send(client, refused)
            return None
        return ReplicaAcks(connected, acknowledged) if isinstance(acknowledged, int) else None


async def _send(client: RedisClient, commands: Sequence[Command]) -> None:
    batch = client.pipeline(transaction=False)
    for command in commands:
        batch.execute_command(*command)
    # Not raised by redis-py, which would put the command into the message: a filter may have a document's text.
    for reply in await batch.execute(raise_on_error=False):
        if isinstance(reply, Exception):
            raise reply


async def last_record_id(client: RedisClient) -> bytes:
    """The id of the log's last record. Starts the log if there is none. Raises RedisBackendError."""
    with map_redis_errors():
        records = await client.execute_command("XREVRANGE", PURGE_LOG_KEY, "+", "-", "COUNT", 1)
        id_: bytes = records[0][0] if records else await client.execute_command(*log_start_command())
    return id_


async def is_purged(client: RedisClient, key: str, documents: tuple[str, ...], since: PurgePosition) -> bool:
    """Whether `get` refuses an entry with this purge position; see Purges.covers. Raises RedisBackendError."""
    after = "-"
    first = last = BEGINNING
    covered = False
    with map_redis_errors():
        while True:
            records = await client.execute_command("XRANGE", PURGE_LOG_KEY, after, "+", "COUNT", _PAGE_SIZE)
            for id_, fields in records:
                last = parse_position(id_)
                first = last if first == BEGINNING else first
                scope = decode_entry_filter(fields)
                covered = covered or (last > since and scope is not None and scope.matches(key, documents))
            if len(records) < _PAGE_SIZE:
                # A position outside of the log belongs to a log that is lost.
                return covered or not first <= since <= last
            after = "(" + records[-1][0].decode()


async def _log_node(client: RedisClient) -> ClusterNode | None:
    if not isinstance(client, RedisCluster):
        return None
    await client.initialize()
    return client.get_node_from_key(PURGE_LOG_KEY)


class _LogServer:
    """The server, or the cluster node, that holds the log."""

    def __init__(self, client: RedisClient, node: ClusterNode | None) -> None:
        self._client = client
        self._node = node

    async def execute(self, *commands: Command) -> list[Any]:
        """Send commands over one connection. An error reply is an exception in the reply's place."""
        if self._node is None:
            batch = self._client.pipeline(transaction=False)
            for command in commands:
                batch.execute_command(*command)
            return list(await batch.execute(raise_on_error=False))
        sent = [PipelineCommand(position, *command) for position, command in enumerate(commands)]
        await self._node.execute_pipeline(sent)
        for sent_command in sent:
            # A failed connection is raised; an error reply is returned, as above.
            if isinstance(sent_command.result, (OSError, asyncio.TimeoutError)):
                raise sent_command.result
        return [sent_command.result for sent_command in sent]

    async def connected_replicas(self) -> int | None:
        (info,) = await self.execute(_INFO_COMMAND)
        return info.get("connected_slaves") if isinstance(info, dict) else None  # else an error reply
