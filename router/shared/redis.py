"""Opens net/redis with the router's own keys, which its checks need: is the server up, does it accept writes?"""

from router.core.cache.redis_keys import ABSENT_KEY, PURGE_LOG_KEY
from router.net.redis.backend import RedisBackend
from router.net.redis.clock import RedisClock
from router.net.redis.connect import open_backend as connect_backend
from router.net.redis.pipeline import RedisPipeline


def open_backend(url: str, *, timeout: float) -> RedisBackend:
    """The backend for a URL. `timeout` in seconds, for connecting. Raises RedisUrlError."""
    return connect_backend(url, timeout=timeout, unused_key=ABSENT_KEY)


def open_pipeline(
    backend: RedisBackend, *, timeout: float, retry: float, clock: RedisClock | None = None
) -> RedisPipeline:
    """The pipeline over a backend. `timeout` and `retry` in seconds; see RedisPipeline."""
    return RedisPipeline(backend, timeout=timeout, retry_interval=retry, probe_key=PURGE_LOG_KEY, clock=clock)
