"""Which web pages of other origins may use the router: CORS, as the Fetch standard defines it.

A browser sends `Origin` with a request of a page, and shows the page the response only if that names the origin in
`Access-Control-Allow-Origin`. Before any request with a key or JSON, it asks with a preflight: OPTIONS without a key.
CORS protects the user of a browser, not the router; what a client may do is decided by its key alone.

All header lines are made at the start. A request costs a search for its `Origin` and a lookup. The router never sends
`Access-Control-Allow-Credentials`, so no browser adds cookies; keys are sent in headers. Source:
https://fetch.spec.whatwg.org/#http-cors-protocol
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from router.net.server.cycle import header_lines
from router.upstream.adapter_changes import LOAD_PATH, UNLOAD_PATH

RawHeaders = Sequence[tuple[bytes, bytes]]

MAX_AGE: Final = 7200
"""Seconds for which a browser may reuse the answer to a preflight; Chromium takes no more."""

_MAX_REQUESTED: Final = 2048  # bytes of Access-Control-Request-Headers
_HEADER_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+( ?, ?[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")

ALLOWED_METHODS: Final = b"GET, HEAD, POST, DELETE, OPTIONS"
ALLOWED_HEADERS: Final = (
    b"authorization", b"cache-control", b"content-type", b"traceparent", b"tracestate", b"x-api-key", b"x-cache-ttl",
    b"x-max-ttft", b"x-request-id", b"x-session-id",
)  # fmt: skip
"""The request headers that the router reads, without X-Tenant-ID: only a proxy may set it."""

# `*` is a valid name of a header, and a page may ask for it; in the answer, it would allow every header.
_NEVER_ALLOWED: Final = (b"x-tenant-id", b"*")

EXPOSED_HEADERS: Final = (
    b"Age", b"Cache-Status", b"Retry-After", b"X-Adjusted", b"X-Cache", b"X-Cache-Key", b"X-Cache-Reason", b"X-Engine",
    b"X-Engine-Reason", b"X-Fallback", b"X-Task", b"x-ratelimit-limit-requests", b"x-ratelimit-limit-tokens",
    b"x-ratelimit-remaining-requests", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-requests",
    b"x-ratelimit-reset-tokens", b"x-request-id",
)  # fmt: skip
"""The response headers that a page may read in addition to the few that it always may."""

_VARY: Final = (b"vary", b"Origin")
_PRIVATE_PATHS: Final = ("/admin", "/dashboard", LOAD_PATH, UNLOAD_PATH)


class CorsPolicy:
    """The header lines that tell a browser what a page may do.

    - An origin that is not allowed gets a response without them; the request itself is answered as any other.
    - Responses for different origins differ, so all have `Vary: Origin`; with `*` they are equal.
    - A preflight may name any header, so that an SDK with a new one needs no new router; X-Tenant-ID is the exception.
    """

    def __init__(self, allowed_origins: Iterable[str]) -> None:
        """`allowed_origins`: as browsers send them, or `*` alone for all."""
        origins = [origin.encode("ascii") for origin in allowed_origins]
        exposed = (b"access-control-expose-headers", b", ".join(EXPOSED_HEADERS))
        self._any = b"*" in origins
        self._other_lines = header_lines([(b"access-control-allow-origin", b"*"), exposed] if self._any else [_VARY])
        self._lines = {
            origin: header_lines([(b"access-control-allow-origin", origin), exposed, _VARY]) for origin in origins
        }

    def allows(self, headers: RawHeaders) -> bool:
        """Whether a request with these headers is from a page that may use the router."""
        return self._any or _single(headers, b"origin") in self._lines

    def response_lines(self, headers: RawHeaders) -> bytes:
        """The lines of a response to a request with these headers."""
        if self._any:
            return self._other_lines
        return self._lines.get(_single(headers, b"origin") or b"", self._other_lines)

    def preflight_lines(self, headers: RawHeaders) -> bytes | None:
        """The lines of the answer to an OPTIONS request; None if that is no preflight."""
        origin = _single(headers, b"origin")
        if origin is None or _single(headers, b"access-control-request-method") is None:
            return None
        if not self._any and origin not in self._lines:
            return self._other_lines
        return header_lines(
            [
                (b"access-control-allow-origin", b"*" if self._any else origin),
                (b"access-control-allow-methods", ALLOWED_METHODS),
                (b"access-control-allow-headers", _allowed_headers(headers)),
                (b"access-control-max-age", b"%d" % MAX_AGE),
                (b"vary", b"Origin, Access-Control-Request-Headers"),
            ]
        )


def is_private(path: str) -> bool:
    """Whether a path belongs to the admin API or the dashboard, which no page of another origin may use."""
    return any(path == private or path.startswith(f"{private}/") for private in _PRIVATE_PATHS)


def _allowed_headers(headers: RawHeaders) -> bytes:
    requested = _single(headers, b"access-control-request-headers") or b""
    if len(requested) > _MAX_REQUESTED or _HEADER_NAMES.fullmatch(requested) is None:
        return b", ".join(ALLOWED_HEADERS)
    names = dict.fromkeys([*ALLOWED_HEADERS, *(name.strip() for name in requested.lower().split(b","))])
    return b", ".join([name for name in names if name not in _NEVER_ALLOWED])


def _single(headers: RawHeaders, header_name: bytes) -> bytes | None:
    """A header's value if it was sent exactly once."""
    values = [value for name, value in headers if name == header_name]
    return values[0] if len(values) == 1 else None
