"""Rules for the origins of web pages that may use the router (CORS)."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from router.settings.mistakes import Mistake, Place

ANY_ORIGIN: Final = "*"
"""Stands for every origin."""

MAX_ORIGINS: Final = 100

# A browser sends the scheme and the host in lower case, an international name as Punycode, and nothing after the port
# (RFC 6454, section 6.2). Extensions and desktop applications have schemes of their own.
_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>[1-9][0-9]{0,4}))?"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


def broken_origins(place: Place, origins: Sequence[str]) -> Iterator[Mistake]:
    """The violations in a list of origins."""
    if len(origins) > MAX_ORIGINS:
        yield Mistake(place, f"must have at most {MAX_ORIGINS} origins", of_value=False)
        return
    for index, origin in enumerate(origins):
        where: Place = (*place, index)
        if origin == ANY_ORIGIN:
            if len(origins) > 1:
                yield Mistake(where, "cannot be combined with other origins: it stands for all of them")
        elif (problem := _problem(origin)) is not None:
            yield Mistake(where, problem)
        elif origin in origins[:index]:
            yield Mistake(where, "is listed twice")


def _problem(origin: str) -> str | None:
    if not origin:
        return None  # could not be read, which is reported already
    if origin == "null":
        return "cannot be allowed: every sandboxed page and local file has this origin"
    if "*" in origin:
        return 'has a wildcard; write each origin out, or "*" alone for all'
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return _not_an_origin(origin)
    port = match["port"]
    if port is not None and port == _DEFAULT_PORTS.get(match["scheme"]):
        return f"has the default port, which browsers leave out; write {origin.removesuffix(f':{port}')}"
    return None if port is None or int(port) <= 65535 else "has no valid port"


def _not_an_origin(origin: str) -> str:
    without_path = re.match(r"[a-z][a-z0-9+.-]*://[^/?#@]+(?=[/?#])", origin)
    if without_path is not None and _ORIGIN.fullmatch(without_path[0]):
        return f"has a path; an origin ends after the host and port: write {without_path[0]}"
    if _ORIGIN.fullmatch(origin.lower()):
        return f"has capital letters, which browsers do not send; write {origin.lower()}"
    return "is not an origin such as https://app.example or http://localhost:3000"
