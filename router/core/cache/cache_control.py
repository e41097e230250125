"""Parses the client's Cache-Control and X-Cache-TTL request headers.

Source: RFC 9111, section 5.2.1 (request directives). Unknown directives are ignored, as it requires.
"""

from math import inf
from typing import Final

import msgspec

from router.errors import bad_request


class CacheControl(msgspec.Struct, frozen=True):
    """The cache directives of one request.

    - `no_store`: neither look up nor store. `no_cache`: do not look up, but store.
    - `only_if_cached`: never generate a response.
    - `max_age`: the maximum age of a stored response in seconds.
    - `max_stale`: by how many seconds a stored response may exceed its time to live.
    - `ttl`: an upper bound, in seconds, for how long this response is stored; it never extends the configured time.
    """

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age: int | None = None
    max_stale: float | None = None
    ttl: int | None = None


NO_DIRECTIVES: Final = CacheControl()


def parse_cache_control(cache_control: bytes, cache_ttl: bytes | None) -> CacheControl:
    """Parses the values of the two headers; several Cache-Control headers are joined by commas first.

    An invalid `max-age` counts as 0, because the client wants some limit (RFC 9111, section 4.2.1); an invalid
    `max-stale` is ignored. A `max-stale` without a value accepts any age (section 5.2.1.2).
    Raises ApiError (400) if X-Cache-TTL is not a number of seconds.
    """
    directives = {}
    for directive in cache_control.lower().split(b","):
        name, _, value = directive.partition(b"=")
        directives[name.strip()] = value.strip().strip(b'"')
    age = directives.get(b"max-age")
    stale = directives.get(b"max-stale")
    if cache_ttl is not None and not _is_delta_seconds(cache_ttl):
        raise bad_request("`X-Cache-TTL` must be a whole number of seconds.", param="X-Cache-TTL")
    return CacheControl(
        no_store=b"no-store" in directives,
        no_cache=b"no-cache" in directives,
        only_if_cached=b"only-if-cached" in directives,
        max_age=None if age is None else int(age) if _is_delta_seconds(age) else 0,
        max_stale=None if stale is None else inf if stale == b"" else int(stale) if _is_delta_seconds(stale) else None,
        ttl=None if cache_ttl is None else int(cache_ttl),
    )


def _is_delta_seconds(text: bytes) -> bool:
    # Ten digits cover 2**31 seconds, the greatest value that RFC 9111, section 1.2.2, asks for.
    return text.isdigit() and len(text) <= 10
