"""Redis, however people run it: from the address in the configuration to a link, or to redis-py's client."""

from typing import Any, Final

import redis.asyncio as aioredis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError

from router.net.redis.backend import Link
from router.net.redis.cluster import ClusterLink
from router.net.redis.handshake import CLIENT_NAME
from router.net.redis.sentinel import SentinelLink, SentinelPool, Sentinels
from router.net.redis.standalone import ServerLink
from router.net.redis.url import Host, RedisAddress, parse

CONNECT: Final = 2.0
"""Seconds for a connection, TLS handshake included, where nothing waits for it that is hot."""

Client = aioredis.Redis | RedisCluster


def open_client(url: str, *, timeout: float) -> Client:
    """A redis-py client, for what is not hot. `timeout` in seconds, for connecting and for each answer.

    Raises AddressError.
    """
    address = parse(url)
    if address.kind != "cluster":
        return aioredis.Redis.from_pool(_pool(address, timeout))
    tls: dict[str, Any] = {"ssl": True, **address.tls_options} if address.tls else {}
    return RedisCluster(
        startup_nodes=[ClusterNode(name, port) for name, port in address.hosts],
        require_full_coverage=False,
        **_options(address, timeout),
        **tls,
    )


def open_link(url: str, *, timeout: float, unused_key: str) -> Link:
    """The link to the Redis at an address. Raises AddressError.

    `timeout` in seconds, for connecting. `unused_key`: a key that never exists, by which a single server is asked
    whether it takes writes.
    """
    address = parse(url)
    if address.kind == "cluster":
        return ClusterLink(
            address.hosts,
            # A replica says where the primary is, and so does a primary that has become one.
            lambda host: ServerLink(_server_pool(address, host, timeout)),
            timeout=timeout,
        )
    if address.kind == "sentinel":
        return SentinelLink(_sentinel_pool(address, timeout))
    return ServerLink(_pool(address, timeout), unused_key=unused_key)


def _pool(address: RedisAddress, timeout: float) -> "aioredis.ConnectionPool":
    if address.kind == "sentinel":
        return _sentinel_pool(address, timeout)
    if address.kind == "socket":
        return aioredis.ConnectionPool(
            connection_class=UnixDomainSocketConnection,
            path=address.path,
            db=address.db,
            **_options(address, timeout),
        )
    return _server_pool(address, address.hosts[0], timeout)


def _server_pool(address: RedisAddress, host: Host, timeout: float) -> "aioredis.ConnectionPool":
    kind = _TLSToPrimary if address.tls else _ToPrimary
    options: dict[str, Any] = {**_options(address, timeout), **address.tls_options}
    return aioredis.ConnectionPool(connection_class=kind, host=host[0], port=host[1], db=address.db, **options)


class _ToPrimary(Connection):
    """redis-py's, which would stay with a server that has become a read-only replica."""

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*arguments, **options)
        except ReadOnlyError:
            await self.disconnect()  # so that it connects anew, to whichever server is behind the name then
            raise


class _TLSToPrimary(SSLConnection, _ToPrimary):
    """The same with TLS."""


def _sentinel_pool(address: RedisAddress, timeout: float) -> SentinelPool:
    tls: dict[str, Any] = {"ssl": True, **address.tls_options} if address.tls else {}
    # Half of the time for the Sentinels, the other for the master.
    asking = _options(address, timeout / 2) | {
        "username": address.sentinel_username,
        "password": address.sentinel_password,
    }
    sentinels = Sentinels(address.hosts, sentinel_kwargs={**asking, **tls})
    options = {**_options(address, timeout), **tls, "db": address.db}
    return SentinelPool(address.service, sentinels, **options)  # type: ignore[no-untyped-call]


def _options(address: RedisAddress, timeout: float) -> dict[str, Any]:
    """What redis-py is told for every connection, by its names."""
    return {
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        # redis-py tries again for seconds unless it is told not to.
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        "client_name": CLIENT_NAME,
        "protocol": 3,
    }
