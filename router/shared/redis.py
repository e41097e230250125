"""The router's way to Redis: net/redis, with the keys by which it asks whether a server is there and takes writes."""

from router.core.cache.redis_keys import NOTHING_HERE, PURGES
from router.net.redis.backend import Link
from router.net.redis.clock import RedisClock
from router.net.redis.connect import open_link as connect_link
from router.net.redis.pipeline import Line


def open_link(url: str, *, timeout: float) -> Link:
    """The link to the Redis at an address. `timeout` in seconds, for connecting. Raises AddressError."""
    return connect_link(url, timeout=timeout, unused_key=NOTHING_HERE)


def open_line(link: Link, *, timeout: float, retry: float, clock: RedisClock | None = None) -> Line:
    """The pipeline over a link; see Line."""
    return Line(link, timeout=timeout, retry=retry, probe_key=PURGES, clock=clock)
