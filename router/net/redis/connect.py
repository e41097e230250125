"""Opens Redis by its URL, in any deployment: as a backend for the pipeline, or as a redis-py client."""

from typing import Any, Final

import redis.asyncio as aioredis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError

from router.net.redis.backend import RedisBackend
from router.net.redis.cluster import ClusterBackend
from router.net.redis.handshake import CLIENT_NAME
from router.net.redis.sentinel import ParallelSentinel, SentinelBackend, SentinelPool
from router.net.redis.standalone import StandaloneBackend
from router.net.redis.url import HostPort, RedisUrl, parse_redis_url

CONNECT_TIMEOUT: Final = 2.0
"""Seconds for a connection, TLS handshake included, outside of the path of a request."""

RedisPyClient = aioredis.Redis | RedisCluster


def open_client(url: str, *, timeout: float) -> RedisPyClient:
    """A redis-py client, for code outside of the path of a request. `timeout` in seconds, to connect and per reply.

    Raises RedisUrlError.
    """
    address = parse_redis_url(url)
    if address.kind != "cluster":
        return aioredis.Redis.from_pool(_pool(address, timeout))
    tls: dict[str, Any] = {"ssl": True, **address.tls_options} if address.tls else {}
    return RedisCluster(
        startup_nodes=[ClusterNode(name, port) for name, port in address.hosts],
        require_full_coverage=False,  # a slot without a server must not make the others unavailable
        **_connection_options(address, timeout),
        **tls,
    )


def new_connection(
    address: RedisUrl, host: HostPort | None, *, timeout: float, to_sentinel: bool = False
) -> AbstractConnection:
    """A connection, which is not open yet, to one server of a URL; to its socket if `host` is None.

    `timeout` in seconds, to connect and per reply. `to_sentinel`: it logs in with the user of the Sentinels.
    """
    options = _sentinel_options(address, timeout) if to_sentinel else _connection_options(address, timeout)
    database = 0 if to_sentinel else address.db
    if host is None:
        return UnixDomainSocketConnection(path=address.path, db=database, **options)
    if address.tls:
        return SSLConnection(host=host[0], port=host[1], db=database, **options, **dict[str, Any](address.tls_options))
    return Connection(host=host[0], port=host[1], db=database, **options)


def open_backend(url: str, *, timeout: float, unused_key: str) -> RedisBackend:
    """The backend for a URL. Raises RedisUrlError.

    `timeout` in seconds, for connecting. `unused_key`: a key that never exists; deleting it checks whether a single
    server accepts writes.
    """
    address = parse_redis_url(url)
    if address.kind == "cluster":
        return ClusterBackend(
            address.hosts,
            # No unused_key: a replica, and a primary that has become one, redirects to the primary.
            lambda host: StandaloneBackend(_server_pool(address, host, timeout)),
            timeout=timeout,
        )
    if address.kind == "sentinel":
        return SentinelBackend(_sentinel_pool(address, timeout))
    return StandaloneBackend(_pool(address, timeout), unused_key=unused_key)


def _pool(address: RedisUrl, timeout: float) -> "aioredis.ConnectionPool":
    if address.kind == "sentinel":
        return _sentinel_pool(address, timeout)
    if address.kind == "socket":
        return aioredis.ConnectionPool(
            connection_class=UnixDomainSocketConnection,
            path=address.path,
            db=address.db,
            **_connection_options(address, timeout),
        )
    return _server_pool(address, address.hosts[0], timeout)


def _server_pool(address: RedisUrl, host: HostPort, timeout: float) -> "aioredis.ConnectionPool":
    kind = _TLSPrimaryConnection if address.tls else _PrimaryConnection
    options: dict[str, Any] = {**_connection_options(address, timeout), **address.tls_options}
    return aioredis.ConnectionPool(connection_class=kind, host=host[0], port=host[1], db=address.db, **options)


class _PrimaryConnection(Connection):
    """redis-py's connection, which would stay connected to a server that has become a read-only replica."""

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*arguments, **options)
        except ReadOnlyError:
            await self.disconnect()  # the next command reconnects, to the server that the name resolves to then
            raise


class _TLSPrimaryConnection(SSLConnection, _PrimaryConnection):
    """The same connection with TLS."""


def _sentinel_pool(address: RedisUrl, timeout: float) -> SentinelPool:
    tls: dict[str, Any] = {"ssl": True, **address.tls_options} if address.tls else {}
    # Half of the time is for the Sentinels, the other half for the master.
    sentinels = ParallelSentinel(address.hosts, sentinel_kwargs={**_sentinel_options(address, timeout / 2), **tls})
    options = {**_connection_options(address, timeout), **tls, "db": address.db}
    return SentinelPool(address.service, sentinels, **options)  # type: ignore[no-untyped-call]


def _sentinel_options(address: RedisUrl, timeout: float) -> dict[str, Any]:
    login = {"username": address.sentinel_username, "password": address.sentinel_password}
    return _connection_options(address, timeout) | login


def _connection_options(address: RedisUrl, timeout: float) -> dict[str, Any]:
    return {
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        # By default redis-py retries for seconds. A cache must fail at once.
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        "client_name": CLIENT_NAME,
        "protocol": 3,
    }
