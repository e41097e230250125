"""The connection to Redis of one configuration."""

from typing import NamedTuple

from router.net.redis.backend import RedisBackend
from router.net.redis.clock import RedisClock
from router.net.redis.connect import CONNECT_TIMEOUT
from router.net.redis.pipeline import RedisPipeline
from router.settings import Settings
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.connection.redis_writes import RedisWrites


class RedisLink(NamedTuple):
    """`clock`: of Redis, the same in every process. `writes`: whether Redis accepts them."""

    backend: RedisBackend
    clock: RedisClock
    pipeline: RedisPipeline
    writes: RedisWrites


def open_redis_link(settings: Settings) -> RedisLink:
    """It connects when the pipeline is started."""
    backend = open_backend(settings.redis_url, timeout=CONNECT_TIMEOUT)
    clock = RedisClock()
    pipeline = open_pipeline(backend, timeout=settings.cache.timeout, retry=settings.cache.retry, clock=clock)
    return RedisLink(backend, clock, pipeline, RedisWrites(pipeline, clock=clock.monotonic))
