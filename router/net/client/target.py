"""The parts of a request to an engine that do not change between requests."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import httpx

Origin: TypeAlias = tuple[str, str, int, str]
"""Scheme, host, port, and the file of the certificate authorities; empty for the system's. For a Unix socket, the host
is its path."""

_DEFAULT_PORTS: Final = MappingProxyType({"http": 80, "https": 443})
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_VALID_TARGET: Final = re.compile(rb"[!-~]+")


class RequestTarget:
    """A path at an engine: its origin, and the constant start of all requests to it (RFC 9112, section 3).

    `get_request` is a complete GET request; `post_prefix` is a POST request up to the value of content-length.
    """

    __slots__ = ("_post_start", "get_request", "origin", "post_prefix")

    def __init__(self, base: str, path: str, *, headers: Mapping[str, str] = _NO_HEADERS, ca_file: str = "") -> None:
        """`headers` are part of every request. Raises ValueError for anything that is not the URL of an HTTP server."""
        socket_path = base.removeprefix("unix://") if base.startswith("unix:///") else None
        address = base + path if socket_path is None else f"http://localhost{path}"
        try:
            url = httpx.URL(address)
        except httpx.InvalidURL as error:
            raise ValueError(f"{address!r} is not an address: {error}") from None
        if url.scheme not in _DEFAULT_PORTS or not url.raw_host or _VALID_TARGET.fullmatch(url.raw_path) is None:
            raise ValueError(f"{address!r} is not the address of an HTTP server")
        if socket_path is None:
            host, port = url.raw_host.decode("ascii"), url.port or _DEFAULT_PORTS[url.scheme]
            self.origin: Origin = (url.scheme, host, port, ca_file)
        else:
            self.origin = ("unix", socket_path, 0, "")
        # `identity`: a chunk is passed on as it arrives, without decoding.
        start = b"%b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n%b" % (
            url.raw_path,
            url.netloc,
            b"".join([header_line(name, value) for name, value in headers.items()]),
        )
        self.get_request = b"GET %b\r\n" % start
        self._post_start = b"POST %b" % start
        self.post_prefix = self.form_prefix(b"application/json")

    def form_prefix(self, content_type: bytes) -> bytes:
        """A POST request with another content type, up to the value of content-length."""
        return b"%bcontent-type: %b\r\ncontent-length: " % (self._post_start, content_type)


def header_line(name: str, value: str) -> bytes:
    """A header field line. Raises ValueError for a value that a parser would not read back (RFC 9112, section 5)."""
    # A CR or LF in the value would start another field line.
    if not value.isprintable():
        raise ValueError(f"a header cannot carry {value!r}")
    return f"{name}: {value}\r\n".encode("latin-1")
