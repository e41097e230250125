"""The audit in Redis: rh:1:router:audit, a stream with an entry for each change.

    number      counts the entries
    at          when, in milliseconds since the epoch
    actor       who: `key 0f786551`, `session of key 0f786551`, `command line: USER@HOST`
    action      what was done, see router.shared.audit.changes.Action
    subject     to what
    details     a short JSON object
    router      the process that wrote it, `HOST:PID`
    nonce       random, so that no two entries have the same hash
    previous    the hash of the entry before
    hash        see router.shared.audit.audit_chain

Theory of operation. Redis' scripts cannot compute a SHA-256, so a writer computes the hash and sends the hash that it
takes for the newest. The script adds the entry only if that is true, and else replies with the newest, for another try:
each failed try is another writer's success. If the newest is the writer's own, its client has sent the try again after
a lost reply. What is too old is trimmed with the same command, and so is what is too much.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from router.core.cache.redis_keys import AUDIT_KEY
from router.net.redis.commands import Command
from router.net.redis.replies import decode_reply, hash_fields, stream_records
from router.shared.audit.audit_chain import Link, read_link

MAX_ENTRIES: Final = 100_000
"""Entries that are kept at most, whatever their age."""

PAGE: Final = 1000
"""Entries in one reply."""

_MAX_DIGITS: Final = 15  # of a time
_MAX_FIELD: Final = 16 << 10  # bytes; what routers write is shorter

# ARGV: the newest hash that the writer knows, the number of the new entry, seconds for which entries are kept (0: for
# ever), how many are kept, and the fields of the new entry. XADD trims: XTRIM would be a right that users lack.
_APPEND_SCRIPT: Final = """
local function field(record, name)
  for index = 1, record and #record[2] or 0, 2 do
    if record[2][index] == name then return record[2][index + 1] end
  end
  return ''
end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if field(newest, 'hash') ~= ARGV[1] then
  return {0, field(newest, 'number'), field(newest, 'previous'), field(newest, 'hash')}
end
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local first = 0
if ARGV[3] ~= '0' then first = (redis.call('TIME')[1] - ARGV[3]) * 1000 end
local kept, oldest_at = 0, 0
if oldest then
  kept = ARGV[2] - (tonumber(field(oldest, 'number')) or ARGV[2])
  oldest_at = tonumber(string.match(oldest[1], '^%d+'))
end
local trim = {'MINID', string.format('%.0f', first)}
if kept >= tonumber(ARGV[4]) and oldest_at >= first then trim = {'MAXLEN', ARGV[4]} end
redis.call('XADD', KEYS[1], trim[1], trim[2], '*', unpack(ARGV, 5))
return {1}
"""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry; see above. `id`: in the stream. `at`: in seconds since the epoch."""

    id: str
    number: int
    at: float
    actor: str
    action: str
    subject: str
    details: dict[str, Any]
    router: str
    previous: str
    hash: str


class StoredEntry(NamedTuple):
    id: str
    fields: dict[bytes, bytes]


class Newest(NamedTuple):
    """What Redis has: the `hash` as it stands there, and `link`: None without an entry, or for one of somebody else."""

    hash: bytes = b""
    link: Link | None = None


class Appended(NamedTuple):
    """The reply to a try. `newest`: if it is not what the writer took for it."""

    is_done: bool
    newest: Newest = Newest()


def append_command(linked: Mapping[bytes, bytes], expected: Newest, keep_seconds: int) -> Command:
    """`linked`: the fields of the entry after `expected`."""
    words = [word for pair in linked.items() for word in pair]
    return (
        "EVAL", _APPEND_SCRIPT, 1, AUDIT_KEY, expected.hash, linked[b"number"], keep_seconds, MAX_ENTRIES, *words
    )  # fmt: skip


def decode_appended(reply: Any) -> Appended:
    """Raises UnexpectedReplyError."""
    return decode_reply(_appended, reply)


def _appended(reply: Any) -> Appended:
    if reply == [1]:
        return Appended(is_done=True)
    zero, number, previous, hash_ = reply
    if zero != 0:
        raise ValueError
    # After an entry of somebody else the chain begins again, so that nobody can end the audit with one.
    place = read_link({b"number": number, b"previous": previous, b"hash": hash_})
    return Appended(is_done=False, newest=Newest(hash_, place))


def page_before_command(id_: str, count: int) -> Command:
    """The newest entries before `id_`; `+` for the newest of all."""
    return ("XREVRANGE", AUDIT_KEY, id_ if id_ == "+" else f"({id_}", "-", "COUNT", count)


def page_from_command(id_: str) -> Command:
    """The oldest entries from `id_` on; `-` for the oldest of all."""
    return ("XRANGE", AUDIT_KEY, id_, "+", "COUNT", PAGE)


def decode_page(reply: Any) -> list[StoredEntry]:
    """Raises UnexpectedReplyError."""
    return [StoredEntry(id_.decode("ascii"), _fields_once(fields)) for id_, fields in stream_records(reply)]


def _fields_once(words: Any) -> dict[bytes, bytes]:
    """Empty, and so no entry, if a name is repeated: people would see the first, and the hash covers the last."""
    fields = hash_fields(words)
    return {} if isinstance(words, list) and len(words) != 2 * len(fields) else fields


def decode_entries(stored: Sequence[StoredEntry]) -> list[AuditEntry]:
    """Without those that cannot be decoded, which a check of the chain reports."""
    entries = [decode_entry(each) for each in stored]
    return [entry for entry in entries if entry is not None]


def decode_entry(stored: StoredEntry) -> AuditEntry | None:
    words = {name.decode("utf-8", "replace"): value for name, value in stored.fields.items()}
    texts = {name: words.get(name, b"").decode("utf-8", "replace") for name in _TEXTS}
    place = read_link(stored.fields)
    try:
        at = int(words.get("at", b"")[:_MAX_DIGITS]) / 1000
        details = msgspec.json.decode(words.get("details", b""), type=dict[str, Any])
    except (ValueError, RecursionError):  # msgspec.DecodeError is a ValueError
        return None
    if place is None or not 0 <= at < 1e12 or any(len(value) > _MAX_FIELD for value in stored.fields.values()):
        return None
    return AuditEntry(
        id=stored.id, number=place.number, at=at, details=details, previous=place.previous, hash=place.hash, **texts
    )


_TEXTS: Final = ("actor", "action", "subject", "router")
