"""The latest requests of all routers, in Redis while someone watches.

rh:1:requests:latest     a list: RequestRows as JSON, the newest first, as far as one process knows
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.core.cache.redis_keys import LATEST_REQUESTS_KEY
from router.net.redis.commands import Command
from router.shared.status.status_documents import RequestRow

MAX_REQUESTS: Final = 200
"""Requests that are kept."""

_TTL: Final = 600  # seconds after the last request until the list expires
_MAX_ROW: Final = 4096  # bytes; a row's parts are all bounded, so that this is never reached

_decoder: Final = msgspec.json.Decoder(RequestRow)


def add_commands(rows: Sequence[RequestRow]) -> list[Command]:
    """`rows`: the oldest first, at least one."""
    values = [msgspec.json.encode(row) for row in rows]
    return [
        ("LPUSH", LATEST_REQUESTS_KEY, *values),
        ("LTRIM", LATEST_REQUESTS_KEY, 0, MAX_REQUESTS - 1),
        ("EXPIRE", LATEST_REQUESTS_KEY, _TTL),
    ]


def read_command() -> Command:
    return ("LRANGE", LATEST_REQUESTS_KEY, 0, MAX_REQUESTS - 1)


def decode_requests(reply: Any) -> list[RequestRow]:
    """The newest first; what cannot be decoded is left out."""
    rows = []
    for value in reply or ():
        if len(value) <= _MAX_ROW:
            try:
                rows.append(_decoder.decode(value))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
    return sorted(rows, key=lambda row: row.at, reverse=True)
