"""The log of purges as whoever purges writes it: a record, and how many replicas have it.

Redis confirms a write before its replicas have it, so a failover may lose the record of a purge. WAIT says how many
replicas have all that this very connection wrote before; so it goes over the same connection as the record.
"""

import asyncio
from typing import Any, Final

import msgspec
from redis.asyncio.cluster import ClusterNode, PipelineCommand, RedisCluster

from router.core.cache.entry_filter import Scope
from router.core.cache.redis_keys import PURGES
from router.net.redis.commands import Command
from router.shared.purges import BEGINNING, REMEMBERED, Mark, begin_log, mark_of, scope_of, unique
from router.store.admin.scan import Client, faults_told

RECORDS: Final = REMEMBERED
"""Purges that the log remembers, or a few more."""

SCOPE_FIELD: Final = "scope"
"""The field of a record that holds the scope as JSON."""

_REPLICATED_WITHIN: Final = 1000  # milliseconds that replicas have to confirm; they take about one
_PAGE: Final = 1000
_INFO: Final[Command] = ("INFO", "replication")


class Replicas(msgspec.Struct, frozen=True):
    """Of `connected` replicas, how many have `acknowledged` a record."""

    connected: int
    acknowledged: int


NO_REPLICAS: Final = Replicas(0, 0)


async def add_record(client: Client, scope: Scope) -> Replicas | None:
    """Adds the record of a purge; waits a second at most for replicas to have it. Raises LinkError.

    None where it is not known which replicas have it: Redis refuses to say, or the record's slot is being moved.
    """
    with faults_told():
        server = _Server(client, await _node(client))
        record = ("XADD", PURGES, "MAXLEN", "~", RECORDS, "*", SCOPE_FIELD, scope.record(), *unique())
        connected = await server.connected_replicas()
        if connected is None or connected == 0:
            await client.execute_command(*record)
            return None if connected is None else NO_REPLICAS
        added, acknowledged = await server.execute(record, ("WAIT", connected, _REPLICATED_WITHIN))
        if isinstance(added, Exception):
            # Not lost: the server has refused it. In a cluster, another one may have taken over the slot.
            await client.execute_command(*record)
            return None
        return Replicas(connected, acknowledged) if isinstance(acknowledged, int) else None


async def last_record(client: Client) -> bytes:
    """The id of the last record of the log, which is begun where there is none. Raises LinkError."""
    with faults_told():
        found = await client.execute_command("XREVRANGE", PURGES, "+", "-", "COUNT", 1)
        id_: bytes = found[0][0] if found else await client.execute_command(*begin_log())
    return id_


async def is_purged(client: Client, key: str, documents: tuple[str, ...], since: Mark) -> bool:
    """Whether an entry with such a mark is not given although it is there; see Purges.cover. Raises LinkError."""
    after = "-"
    first = last = BEGINNING
    covered = False
    with faults_told():
        while True:
            found = await client.execute_command("XRANGE", PURGES, after, "+", "COUNT", _PAGE)
            for id_, fields in found:
                last = mark_of(id_)
                first = last if first == BEGINNING else first
                scope = scope_of(fields)
                covered = covered or (last > since and scope is not None and scope.matches(key, documents))
            if len(found) < _PAGE:
                return covered or not first <= since <= last
            after = "(" + found[-1][0].decode()


async def _node(client: Client) -> ClusterNode | None:
    """Of a cluster, the server that holds the log."""
    if not isinstance(client, RedisCluster):
        return None
    await client.initialize()
    return client.get_node_from_key(PURGES)


class _Server:
    """The server that holds the log: of a cluster, one of its nodes."""

    def __init__(self, client: Client, node: ClusterNode | None) -> None:
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
        (told,) = await self.execute(_INFO)
        return told.get("connected_slaves") if isinstance(told, dict) else None
