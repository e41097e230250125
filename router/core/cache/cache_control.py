"""What a client asks of the cache: its Cache-Control and X-Cache-TTL.

Source: RFC 9111, section 5.2.1 (request directives). Directives that nobody here knows are passed over, as it demands.
"""

from math import inf
from typing import Final

import msgspec

from router.errors import bad_request


class CacheControl(msgspec.Struct, frozen=True):
    """The wishes of one request.

    - `no_store`: neither look up nor store. `no_cache`: do not look up, but store.
    - `only_if_cached`: rather no answer than a generated one.
    - `max_age`: the greatest age in seconds that a stored answer may have.
    - `max_stale`: by how many seconds a stored answer may be older than its time to live.
    - `ttl`: the longest that this answer may be kept, in seconds; it only ever shortens.
    """

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age: int | None = None
    max_stale: float | None = None
    ttl: int | None = None


NO_DIRECTIVES: Final = CacheControl()


def parse_cache_control(cache_control: bytes, cache_ttl: bytes | None) -> CacheControl:
    """Reads the values of the two headers; several Cache-Control headers are one, joined by commas.

    A `max-age` that is no number counts as 0, since the client does not want just any age (RFC 9111, section 4.2.1); a
    `max-stale` that is none does not count. A `max-stale` without a number accepts any age (section 5.2.1.2).
    Raises ApiError (400) for an X-Cache-TTL that is no number of seconds, because nobody else checks that one.
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
    return text.isdigit() and len(text) <= 10
