"""The connections to one Redis."""

from pathlib import Path
from typing import Final, NamedTuple

from router.net.redis.backend import RedisBackend
from router.net.redis.clock import RedisClock
from router.net.redis.connect import CONNECT_TIMEOUT, open_client
from router.net.redis.pipeline import RedisPipeline
from router.net.redis.url import parse_redis_url
from router.settings import Settings
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.connection.redis_writes import RedisWrites
from router.store.admin.scan import RedisClient

ADMIN_REDIS_TIMEOUT: Final = 5.0
"""Seconds that Redis has to reply to an admin request."""

_TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

RedisIdentity = tuple[str, tuple[tuple[int, int] | None, ...]]
"""The address of Redis, and when its files for TLS were last changed and their sizes."""


def redis_identity(settings: Settings) -> RedisIdentity:
    # A connection reads the files once, so certificates that were replaced need another one.
    options = parse_redis_url(settings.redis_url).tls_options
    return settings.redis_url, tuple(_version(str(options[name])) for name in _TLS_FILES if name in options)


def _version(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:  # the connection reports it
        return None
    return status.st_mtime_ns, status.st_size


class RedisLink(NamedTuple):
    """`clock`: of Redis, the same in every process. `writes`: whether Redis accepts them."""

    backend: RedisBackend
    clock: RedisClock
    pipeline: RedisPipeline
    writes: RedisWrites
    admin_client: RedisClient


def open_redis_link(settings: Settings) -> RedisLink:
    """It connects when the pipeline is started."""
    backend = open_backend(settings.redis_url, timeout=CONNECT_TIMEOUT)
    clock = RedisClock()
    pipeline = open_pipeline(backend, timeout=settings.cache.timeout, retry=settings.cache.retry, clock=clock)
    # A client of its own: an admin command may be slow, and the pipeline has the short timeout of a look-up.
    admin_client = open_client(settings.redis_url, timeout=ADMIN_REDIS_TIMEOUT)
    return RedisLink(backend, clock, pipeline, RedisWrites(pipeline, clock=clock.monotonic), admin_client)
