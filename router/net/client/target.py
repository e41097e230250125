"""What of a request to an engine is known before there is one."""

import re
from types import MappingProxyType
from typing import Final, TypeAlias

import httpx

Origin: TypeAlias = tuple[str, str, int]
"""Scheme, host and port."""

_DEFAULT_PORTS: Final = MappingProxyType({"http": 80, "https": 443})
_VALID_TARGET: Final = re.compile(rb"[!-~]+")


class RequestTarget:
    """One address of an engine: where to connect, and what all requests there begin with (RFC 9112, section 3).

    `get` is a whole request, `post` one up to the length of its body.
    """

    __slots__ = ("get_request", "origin", "post_prefix")

    def __init__(self, address: str) -> None:
        """Raises ValueError for what is no address of an HTTP server."""
        try:
            url = httpx.URL(address)
        except httpx.InvalidURL as error:
            raise ValueError(f"{address!r} is no address: {error}") from None
        if url.scheme not in _DEFAULT_PORTS or not url.raw_host or _VALID_TARGET.fullmatch(url.raw_path) is None:
            raise ValueError(f"{address!r} is no address of an HTTP server")
        self.origin: Origin = (url.scheme, url.raw_host.decode("ascii"), url.port or _DEFAULT_PORTS[url.scheme])
        start = b"%b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n" % (url.raw_path, url.netloc)
        self.get_request = b"GET %b\r\n" % start
        self.post_prefix = b"POST %bcontent-type: application/json\r\ncontent-length: " % start


def header_line(name: str, value: str) -> bytes:
    """A header's line. Raises ValueError for a value that would not be read back as that (RFC 9112, section 5)."""
    if not value.isprintable():
        raise ValueError(f"a header cannot carry {value!r}")
    return f"{name}: {value}\r\n".encode("latin-1")
