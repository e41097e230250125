"""Opens Redis by its URL, in any deployment: as a backend for the pipeline, or as a redis-py client."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

import redis.asyncio as aioredis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError

from router.net.redis.backend import RedisBackend
from router.net.redis.cluster import ClusterBackend
from router.net.redis.handshake import CLIENT_NAME, Handshake
from router.net.redis.sentinel import SentinelBackend, Sentinels
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
    options = _connection_options(address, timeout) | _tls_options(address)
    if address.kind == "cluster":
        return RedisCluster(
            startup_nodes=[ClusterNode(name, port) for name, port in address.hosts],
            require_full_coverage=False,  # a slot without a server must not make the others unavailable
            **options,
        )
    if address.kind == "sentinel":
        sentinels = _sentinels(address, timeout)
        pool = SentinelConnectionPool(address.service, sentinels, db=address.db, **options)  # type: ignore[no-untyped-call]
        return aioredis.Redis.from_pool(pool)
    to_server = _TLSPrimaryConnection if address.tls else _PrimaryConnection
    kind, place = _place(address, address.hosts[0] if address.hosts else None, to_server)
    options = _connection_options(address, timeout) | place
    return aioredis.Redis.from_pool(aioredis.ConnectionPool(connection_class=kind, db=address.db, **options))


def new_connection(
    address: RedisUrl, host: HostPort | None, *, timeout: float, to_sentinel: bool = False
) -> AbstractConnection:
    """A connection, which is not open yet, to one server of a URL; to its socket if `host` is None.

    `timeout` in seconds, to connect and per reply. `to_sentinel`: it logs in with the user of the Sentinels.
    """
    # Not a _PrimaryConnection: a replica is asked on after it has refused a write.
    kind, place = _place(address, host, SSLConnection if address.tls else Connection)
    if to_sentinel:
        return kind(**place, **_sentinel_options(address, timeout))
    return kind(**place, **_connection_options(address, timeout), db=address.db)


def open_backend(url: str, *, timeout: float, unused_key: str) -> RedisBackend:
    """The backend for a URL. Raises RedisUrlError.

    `timeout` in seconds, for connecting. `unused_key`: a key that never exists; deleting it checks whether a single
    server accepts writes.
    """
    address = parse_redis_url(url)
    handshake: Callable[[], Handshake] = cache(partial(_handshake, address))  # an exception is not kept
    if address.kind == "cluster":
        # No unused_key: a replica, and a primary that has become one, redirects to the primary.
        return ClusterBackend(address.hosts, partial(StandaloneBackend, handshake=handshake), timeout=timeout)
    if address.kind == "sentinel":
        return SentinelBackend(address.service, _sentinels(address, timeout), handshake)
    server = address.hosts[0] if address.hosts else address.path
    return StandaloneBackend(server, handshake, unused_key=unused_key)


def _handshake(address: RedisUrl) -> Handshake:
    tls = SSLConnection(**dict[str, Any](address.tls_options)).ssl_context.get() if address.tls else None
    return Handshake(address.username, address.password, address.db, tls)


def _place(
    address: RedisUrl, host: HostPort | None, to_server: type[AbstractConnection]
) -> tuple[type[AbstractConnection], dict[str, Any]]:
    """The kind of connection, `to_server` unless it is to a socket, and the options that say where the server is."""
    if host is None:
        return UnixDomainSocketConnection, {"path": address.path}
    return to_server, {"host": host[0], "port": host[1], **address.tls_options}


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


def _sentinels(address: RedisUrl, timeout: float) -> Sentinels:
    # Half of the time is for the Sentinels, the other half for the master.
    return Sentinels(address.hosts, partial(new_connection, address, timeout=timeout / 2, to_sentinel=True))


def _tls_options(address: RedisUrl) -> dict[str, Any]:
    return {"ssl": True, **address.tls_options} if address.tls else {}


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
