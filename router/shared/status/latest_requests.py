"""The latest requests of all routers, in Redis while someone watches.

rh:1:requests:recent      a sorted set: RequestRows as JSON, by their end
rh:1:requests:notable     the same, of those that failed or were slow
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from router.core.cache.redis_keys import NOTABLE_REQUESTS_KEY, RECENT_REQUESTS_KEY
from router.core.types import CacheStatus
from router.net.redis.commands import Command
from router.shared.status.status_documents import RequestRow

MAX_REQUESTS: Final = 2000
"""Requests that are kept of each kind."""

_TTL: Final = 600  # seconds after the last request until they expire
_MAX_ROW: Final = 8192  # bytes; a row's parts are all bounded, so that this is never reached

_IS_HIT: Final = b'"cache":"HIT"'
_HAS_STATUS_200: Final = b'"status":200,'
_BROKE_OFF: Final = b'"outcome":"failed"'

_decoder: Final = msgspec.json.Decoder(RequestRow)


class RequestFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests are shown; None: all.

    `failed`: those with an error. `refused`: whether with a status from 400 to 499. `slow`: slower than most of their
    model. `hits`: with those that the cache served.
    """

    request_id: str | None = None
    tenant: str | None = None
    model: str | None = None
    key_id: str | None = None
    failed: bool = False
    refused: bool | None = None
    slow: bool = False
    hits: bool = True

    def shows(self, row: RequestRow) -> bool:
        return (
            self.request_id in (None, row.request_id)
            and self.tenant in (None, row.tenant)
            and self.model in (None, row.model)
            and self.key_id in (None, row.key_id)
            and (not self.failed or row.has_failed)
            and self.refused in (None, row.is_refused)
            and (not self.slow or (row.notable and not row.has_failed))
            and (self.hits or row.cache != CacheStatus.HIT)
        )

    def may_show(self, value: bytes, needles: Sequence[bytes]) -> bool:
        """Whether a row may be shown, by its JSON: to decode all rows would stop the process for many milliseconds.

        `needles`: those of this filter. Quotes within a text are escaped, so that no text looks like a field.
        """
        return (
            all(needle in value for needle in needles)
            and (self.hits or _IS_HIT not in value)
            and (not self.failed or _HAS_STATUS_200 not in value or _BROKE_OFF in value)
        )

    def needles(self) -> list[bytes]:
        """What the JSON of each row that is shown contains."""
        named = {"request_id": self.request_id, "tenant": self.tenant, "model": self.model, "key_id": self.key_id}
        fields: dict[str, str | bool] = {name: value for name, value in named.items() if value is not None}
        if self.slow:
            fields["notable"] = True
        return [msgspec.json.encode({name: value})[1:-1] for name, value in fields.items()]


ALL: Final = RequestFilter()


def add_commands(recent: Sequence[RequestRow], notable: Sequence[RequestRow], *, again: bool = False) -> list[Command]:
    """`again`: Redis may have some of them."""
    return [
        *_add_commands(RECENT_REQUESTS_KEY, recent, again=again),
        *_add_commands(NOTABLE_REQUESTS_KEY, notable, again=again),
    ]


def _add_commands(key: str, rows: Sequence[RequestRow], *, again: bool) -> Iterator[Command]:
    if rows:
        values = [msgspec.json.encode(row) for row in rows]
        if again:
            yield "ZREM", key, *values
        # ZINCRBY of a new member sets its score. A user of Redis has the right to it already, unlike to ZADD.
        yield from (("ZINCRBY", key, row.at, value) for row, value in zip(rows, values, strict=True))
        yield "ZREMRANGEBYRANK", key, 0, -MAX_REQUESTS - 1
        yield "EXPIRE", key, _TTL


def read_commands(count: int = MAX_REQUESTS) -> list[Command]:
    """`count`: the newest of each kind."""
    return [("ZREVRANGE", key, 0, count - 1) for key in (RECENT_REQUESTS_KEY, NOTABLE_REQUESTS_KEY)]


def decode_requests(replies: Sequence[Any], shown: RequestFilter = ALL, limit: int = MAX_REQUESTS) -> list[RequestRow]:
    """The newest first, each once; what cannot be decoded is left out. `limit`: how many of each reply at most."""
    return merge((row for reply in replies for row in islice(_decode(reply or (), shown), limit)), (), shown)


def _decode(values: Iterable[bytes], shown: RequestFilter) -> Iterator[RequestRow]:
    needles = shown.needles()
    for value in values:
        if len(value) <= _MAX_ROW and shown.may_show(value, needles):
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                row = _decoder.decode(value)
                if shown.shows(row):
                    yield row


def merge(rows: Iterable[RequestRow], others: Iterable[RequestRow], shown: RequestFilter) -> list[RequestRow]:
    """Those that are shown, the newest first, each once."""
    found = {(row.router, row.request_id, row.at): row for row in (*rows, *others) if shown.shows(row)}
    return sorted(found.values(), key=lambda row: row.at, reverse=True)
