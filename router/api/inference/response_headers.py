"""The header lines of a response that was generated or stored; they report what the cache and the router did."""

from collections.abc import Callable
from typing import Final

from router.core.types import CacheStatus
from router.flow.exchange import Exchange, response_facts
from router.flow.request_kind import ResponseKind, response_kind
from router.net.server.cycle import header_lines

RawHeaders = list[tuple[bytes, bytes]]

HeaderTemplate = bytes
"""A %-format for the values that differ between responses of one kind: request id, key, and if `has_age` TTL and age.
Where the key is not shown, a conversion in its place renders nothing."""

JSON_CONTENT_TYPE: Final = (b"content-type", b"application/json")
_SSE_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers the events
)

_MAX_TEMPLATES: Final = 4096  # cached at most; a working set is far smaller, see request_kind
_EMPTY_CONVERSION: Final = b"%.0b"  # renders any bytes as nothing
# Without the type of its result: compiled, each item of a tuple with known types would be checked and copied.
_take_facts: Final[Callable[[Exchange], object]] = response_facts
_NO_LOOKUP: Final = (None, CacheStatus.BYPASS)  # nothing was looked up or stored under the key


class ResponseHeaders:
    """Renders header lines, without those that frame the body; see ClientConnection.start_response.

    Most lines are the same for all responses of a kind, so each kind has a template, cached and validated once. The
    values that fill it in cannot hold a control character: numbers, a request id (validated on arrival), and a key
    (made of hashes and configured names). So no value can become a second header.
    """

    def __init__(self) -> None:
        self._templates: dict[object, HeaderTemplate] = {}  # by ResponseFacts

    def render(self, exchange: Exchange) -> bytes:
        facts = _take_facts(exchange)
        template = self._templates.get(facts) or self._add_template(facts, response_kind(exchange))
        values: tuple[bytes | int | None, ...]
        values = exchange.request_id.encode(), b"" if exchange.key is None else exchange.key.encode()
        if exchange.age is not None:
            values += (exchange.ttl, exchange.age)
        lines = template % values
        lines += exchange.limit_headers  # they differ for every response, so they are in no template
        # Of a hit, `generation` is None; of a failure, `engine` is.
        if exchange.generation is not None and exchange.engine is not None and exchange.generation.placement.choice:
            lines += b"x-engine-reason: %b\r\n" % exchange.generation.placement.choice.encode()
        return lines

    def _add_template(self, facts: object, kind: ResponseKind) -> HeaderTemplate:
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        template = self._templates[facts] = build_template(kind)
        return template


def build_template(kind: ResponseKind) -> HeaderTemplate:
    cache, reason = kind.cache_status, kind.bypass_reason or kind.miss_reason
    facts = [
        (b"x-cache", cache), (b"x-cache-reason", reason if cache is not None else None), (b"x-task", kind.task),
        (b"x-engine", kind.engine), (b"x-fallback", kind.fallback_model),
        (b"x-adjusted", ", ".join(kind.adjusted_fields) or None),
    ]  # fmt: skip
    headers = [(name, value.encode().replace(b"%", b"%%")) for name, value in facts if value is not None]
    if kind.stream and kind.status == 200:
        headers += _SSE_HEADERS
    elif kind.media_type is not None and kind.status == 200:
        headers.append((b"content-type", kind.media_type.encode().replace(b"%", b"%%")))
    else:
        headers.append(JSON_CONTENT_TYPE)
    has_key = kind.has_key and cache not in _NO_LOOKUP
    lines = header_lines([(b"x-request-id", b"%b")])
    lines += header_lines([(b"x-cache-key", b"%b")]) if has_key else _EMPTY_CONVERSION
    return lines + header_lines([*_cache_status_headers(kind), *headers])


def _cache_status_headers(kind: ResponseKind) -> RawHeaders:
    """Cache-Status (RFC 9211), and Age for a response from the store."""
    if kind.has_age:
        hit = b"roundhouse; hit; ttl=%d; detail=local" if kind.from_local_cache else b"roundhouse; hit; ttl=%d"
        return [(b"cache-status", hit), (b"age", b"%d")]
    return [(b"cache-status", _forward_cache_status(kind))] if kind.cache_status is not None else []


def _forward_cache_status(kind: ResponseKind) -> bytes:
    if kind.cache_status is CacheStatus.COALESCED:
        return b"roundhouse; fwd=miss; collapsed"
    if kind.bypass_reason is not None:
        return b"roundhouse; fwd=bypass; detail=%b" % kind.bypass_reason.encode()
    return b"roundhouse; fwd=stale" if kind.miss_reason == "expired" else b"roundhouse; fwd=uri-miss"
