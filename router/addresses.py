"""Addresses as people write them in a configuration: can they be used?"""

from typing import Final
from urllib.parse import urlsplit

_REDIS: Final = ("redis", "rediss", "unix")
_PLANNED: Final = ("redis+sentinel", "redis+cluster", "memory")


def is_http(url: str) -> bool:
    """Whether it is the address of an HTTP server, without credentials."""
    try:
        parts = urlsplit(url)
        plain = url.isprintable() and " " not in url  # else urlsplit would quietly mend it
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return plain and named and "@" not in parts.netloc  # credentials would be shown, and never sent
    except ValueError:  # a port that is no number
        return False


def redis_problem(url: str) -> str | None:
    """What is wrong with an address of Redis, without the address, which may hold a password; None where nothing is."""
    from redis.asyncio.connection import parse_url  # which most commands need not load

    scheme = url.partition("://")[0]
    if scheme in _PLANNED:
        return f"{scheme}:// is not supported yet; use redis://, rediss://, unix:// or embedded"
    if scheme not in _REDIS:
        return "expected embedded, redis://, rediss:// or unix://"
    try:
        parse_url(url)
    except ValueError as error:  # it names the part that is wrong, and not the whole
        return str(error)
    return None
