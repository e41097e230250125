"""The header lines of a response that was generated or stored; they report what the cache and the router did."""

from functools import lru_cache
from typing import Final

from router.core.cache.fingerprint import MissReason
from router.core.quota.rate_limit import rate_limit_headers as limit_headers
from router.core.types import BypassReason, CacheStatus, Task
from router.flow.exchange import Exchange
from router.net.server.cycle import header_lines

RawHeaders = list[tuple[bytes, bytes]]

JSON_CONTENT_TYPE: Final = (b"content-type", b"application/json")
_SSE_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers the events
)

_MAX_TEMPLATES: Final = 4096  # cached at most; a working set is far smaller, as the facts come from the configuration
_BYPASS: Final = CacheStatus.BYPASS


class ResponseHeaders:
    """Renders header lines, without those that frame the body; see ClientConnection.start_response.

    Most lines are the same for all responses of a kind, so each kind has a template, cached and validated once. The
    values that fill it in cannot hold a control character: numbers, a request id (validated on arrival), and a key
    (made of hashes and configured names). So no value can become a second header.
    """

    def __init__(self) -> None:
        self._cached_template = lru_cache(_MAX_TEMPLATES)(_build_template)

    def render(self, exchange: Exchange) -> bytes:
        cache, key, age = exchange.cache_status, exchange.key, exchange.age
        if cache is None or cache is _BYPASS:
            key = None  # nothing was looked up or stored under it
        template = self._cached_template(
            exchange.status == 200,
            exchange.stream,
            cache,
            exchange.from_local_cache,
            key is not None,
            age is not None,
            exchange.bypass_reason,
            exchange.miss_reason,
            exchange.task,
            exchange.engine,
            exchange.fallback_model,
            exchange.adjusted_fields,
        )
        values: tuple[bytes | int | None, ...] = (exchange.request_id.encode(),)
        if key is not None:
            values += (key.encode(),)
        if age is not None:
            values += (exchange.ttl, age)
        lines = template % values
        if exchange.permit is not None:
            # These numbers differ for every response, so they are in no template.
            lines += header_lines(limit_headers(exchange.permit.quota, exchange.permit.status))
        return lines


def _build_template(
    is_success: bool, stream: bool, cache: CacheStatus | None, local: bool, has_key: bool, has_age: bool,
    bypass: BypassReason | None, reason: MissReason | None, task: Task | None, engine: str | None, fallback: str | None,
    adjusted: tuple[str, ...],
) -> bytes:  # fmt: skip
    """The template, with placeholders for the request id, the key, and a stored response's TTL and age."""
    facts = [
        (b"x-cache", cache), (b"x-cache-reason", bypass or reason if cache is not None else None), (b"x-task", task),
        (b"x-engine", engine), (b"x-fallback", fallback), (b"x-adjusted", ", ".join(adjusted) or None),
    ]  # fmt: skip
    headers = [(b"x-request-id", b"%b")]
    if has_key:
        headers.append((b"x-cache-key", b"%b"))
    if has_age:
        hit = b"roundhouse; hit; ttl=%d; detail=local" if local else b"roundhouse; hit; ttl=%d"
        headers += [(b"cache-status", hit), (b"age", b"%d")]
    elif cache is not None:
        headers.append((b"cache-status", _forward_cache_status(cache, bypass, reason)))
    headers += [(name, value.encode().replace(b"%", b"%%")) for name, value in facts if value is not None]
    return header_lines([*headers, *(_SSE_HEADERS if stream and is_success else [JSON_CONTENT_TYPE])])


def _forward_cache_status(cache: CacheStatus, bypass: BypassReason | None, reason: MissReason | None) -> bytes:
    """The Cache-Status (RFC 9211) of a response that did not come from the store."""
    if cache is CacheStatus.COALESCED:
        return b"roundhouse; fwd=miss; collapsed"
    if bypass is not None:
        return b"roundhouse; fwd=bypass; detail=%b" % bypass.encode()
    return b"roundhouse; fwd=stale" if reason == "expired" else b"roundhouse; fwd=uri-miss"
