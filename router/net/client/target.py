"""The parts of a request to an engine that do not change between requests."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import quote, urlsplit

Origin: TypeAlias = tuple[str, str, int, str]
"""Scheme, host, port, and the file of the certificate authorities; empty for the system's. For a Unix socket, the host
is its path."""

_DEFAULT_PORTS: Final = MappingProxyType({"http": 80, "https": 443})
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_VALID_HOST: Final = re.compile(r"[!-~]+")
_IN_PATHS: Final = "/?:@!$&'()*+,;=-._~%[]"
"""RFC 3986, section 3.3, and what servers take beside it; a `%` begins what is encoded already."""


class RequestTarget:
    """A path at an engine: its origin, and the constant start of all requests to it (RFC 9112, section 3).

    `get_request` is a complete GET request; `post_prefix` is a POST request up to the value of content-length.
    """

    __slots__ = ("_post_start", "get_request", "origin", "post_prefix")

    def __init__(self, base: str, path: str, *, headers: Mapping[str, str] = _NO_HEADERS, ca_file: str = "") -> None:
        """`headers` are part of every request. Raises ValueError for anything that is not the URL of an HTTP server."""
        socket_path = base.removeprefix("unix://") if base.startswith("unix:///") else None
        address = base + path if socket_path is None else f"http://localhost{path}"
        scheme, host, port, raw_path = _parts(address)
        default = port == _DEFAULT_PORTS[scheme]
        authority = (f"[{host}]" if ":" in host else host) + ("" if default else f":{port}")
        if socket_path is None:
            self.origin: Origin = (scheme, host, port, ca_file)
        else:
            self.origin = ("unix", socket_path, 0, "")
        # `identity`: a chunk is passed on as it arrives, without decoding.
        start = b"%b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n%b" % (
            raw_path.encode("ascii"),
            authority.encode("ascii"),
            b"".join([header_line(name, value) for name, value in headers.items()]),
        )
        self.get_request = b"GET %b\r\n" % start
        self._post_start = b"POST %b" % start
        self.post_prefix = self.form_prefix(b"application/json")

    def form_prefix(self, content_type: bytes) -> bytes:
        """A POST request with another content type, up to the value of content-length."""
        return b"%bcontent-type: %b\r\ncontent-length: " % (self._post_start, content_type)


def _parts(address: str) -> tuple[str, str, int, str]:
    """Scheme, host, port, and the path with the query, all in ASCII. Raises ValueError."""
    if not address.isprintable():  # urlsplit would remove such characters
        raise ValueError(f"{address!r} is not an address")
    try:
        url = urlsplit(address)
        host, port = url.hostname or "", url.port
        host = host if host.isascii() else host.encode("idna").decode("ascii")
    except ValueError as error:  # UnicodeError is one
        raise ValueError(f"{address!r} is not an address: {error}") from None
    if url.scheme not in _DEFAULT_PORTS or _VALID_HOST.fullmatch(host) is None:
        raise ValueError(f"{address!r} is not the address of an HTTP server")
    path = quote(url.path or "/", safe=_IN_PATHS) + (f"?{quote(url.query, safe=_IN_PATHS)}" if url.query else "")
    return url.scheme, host, port if port is not None else _DEFAULT_PORTS[url.scheme], path


def header_line(name: str, value: str) -> bytes:
    """A header field line. Raises ValueError for a value that a parser would not read back (RFC 9112, section 5)."""
    # A CR or LF in the value would start another field line.
    if not value.isprintable():
        raise ValueError(f"the header {name} cannot carry its value")  # which may be a secret
    return f"{name}: {value}\r\n".encode("latin-1")
