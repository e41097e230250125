"""Rules for how the router reaches an engine: the key, headers and certificates, and what the engine can do."""

import re
from collections.abc import Iterator
from typing import Final

from router.net.client.tls import create_tls_context
from router.settings.mistakes import Mistake, Place
from router.settings.tables import EngineSettings

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2
_PATH: Final = re.compile(r"/[!-\"$-~]*")
_MAX_HEADERS: Final = 32
_MAX_VALUE: Final = 8192  # bytes; servers take about as much for a whole head
_OWN_HEADERS: Final = frozenset(
    ("host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding", "x-request-id",
     "traceparent", "tracestate", "upgrade", "te", "trailer", "expect", "x-data-parallel-rank")
)  # fmt: skip
_STARTED_HERE: Final = (
    "cannot be combined with [engine.launch]: roundhouse reaches the engines that it starts without it; remove it"
)


def broken_access(place: Place, engine: EngineSettings) -> Iterator[Mistake]:
    """The violations in one engine's settings."""
    if engine.api_key is not None and not is_header_value(engine.api_key):
        yield Mistake((*place, "api_key"), "must be 1 to 8192 printable ASCII characters")
    yield from _headers((*place, "headers"), engine)
    if engine.ca_file is not None and not _has_certificates(engine.ca_file):
        yield Mistake((*place, "ca_file"), "is not a file with the certificates of the authorities as PEM")
    if engine.health is not None and _PATH.fullmatch(engine.health) is None:
        yield Mistake((*place, "health"), "is not a path such as /health")
    if engine.launch is not None:
        yield from _of_launched(place, engine)


def _headers(place: Place, engine: EngineSettings) -> Iterator[Mistake]:
    if len(engine.headers) > _MAX_HEADERS:
        yield Mistake(place, f"must have at most {_MAX_HEADERS} headers", of_value=False)
        return
    lower = [name.lower() for name in engine.headers]
    for name, value in engine.headers.items():
        where: Place = (*place, name)
        if _TOKEN.fullmatch(name) is None:
            yield Mistake(where, "is not the name of a header", of_value=False)
        elif name.lower() in _OWN_HEADERS:
            yield Mistake(where, "is a header that the router sets itself; remove it", of_value=False)
        elif name.lower() == "authorization" and engine.api_key is not None:
            api_key: Place = (*place[:-1], "api_key")
            yield Mistake(
                where, "cannot be combined with api_key; set only one of them", of_value=False, reads=(api_key,)
            )
        elif lower.count(name.lower()) > 1:
            yield Mistake(where, "is set twice, in different case", of_value=False)
        elif not is_header_value(value):
            yield Mistake(where, "must be 1 to 8192 printable ASCII characters")


def _of_launched(place: Place, engine: EngineSettings) -> Iterator[Mistake]:
    reads: tuple[Place, ...] = ((*place, "launch"),)
    for name, is_set in (
        ("api_key", engine.api_key is not None),
        ("headers", bool(engine.headers)),
        ("ca_file", engine.ca_file is not None),
    ):
        if is_set:
            yield Mistake((*place, name), _STARTED_HERE, of_value=False, reads=reads)
    if engine.url is not None and engine.url.startswith("unix://"):
        yield Mistake((*place, "url"), "must have a host and a port for an engine with [engine.launch]", reads=reads)
    if engine.kind not in (None, "vllm"):
        yield Mistake((*place, "kind"), 'must be "vllm" for an engine with [engine.launch]', reads=reads)


def _has_certificates(path: str) -> bool:
    try:
        return create_tls_context(path).cert_store_stats()["x509"] > 0
    except OSError:  # ssl.SSLError is one
        return False


def is_header_value(value: str) -> bool:
    """Whether every server reads it back as it is."""
    return 0 < len(value) <= _MAX_VALUE and value.isascii() and value.isprintable() and value == value.strip()
