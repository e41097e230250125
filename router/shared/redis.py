"""The router's way to Redis: net/redis, with the keys by which it asks whether a server is there and takes writes."""

from router.core.cache.redis_keys import ABSENT_KEY, PURGE_LOG_KEY
from router.net.redis.backend import RedisBackend
from router.net.redis.clock import RedisClock
from router.net.redis.connect import open_backend as connect_link
from router.net.redis.pipeline import RedisPipeline


def open_link(url: str, *, timeout: float) -> RedisBackend:
    """The link to the Redis at an address. `timeout` in seconds, for connecting. Raises AddressError."""
    return connect_link(url, timeout=timeout, unused_key=ABSENT_KEY)


def open_line(link: RedisBackend, *, timeout: float, retry: float, clock: RedisClock | None = None) -> RedisPipeline:
    """The pipeline over a link; see Line."""
    return RedisPipeline(link, timeout=timeout, retry_interval=retry, probe_key=PURGE_LOG_KEY, clock=clock)
