"""The API keys that live in Redis, and what the routers do with them.

    rh:1:apikey:records     a hash: a key's id -> its KeyRecord as JSON; `version` -> the time of the last change
    rh:1:apikey:applied     a hash: a router process -> the version that it applies
    rh:1:apikey:used        a hash: a key's id -> when it was last used, in seconds since the epoch

Redis never has a key, only its hash. Every change gives the records a later version, in milliseconds of Redis' clock.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from router.core.api_keys import MAX_KEYS, KeyRecord, decode_record, encode_record
from router.core.cache.redis_keys import KEYS_APPLIED_KEY, KEYS_RECORDS_KEY, KEYS_USED_KEY
from router.core.plural import pluralize
from router.net.redis.commands import Command
from router.net.redis.replies import hash_fields

log = logging.getLogger("roundhouse.keys")

PRESENCE_INTERVAL: Final = 10.0
"""Seconds between two renewals of a process' presence, and between two reports of used keys."""

PRESENCE_LIFETIME: Final = 30.0
"""Seconds for which the presence of a process counts."""

MAX_PROCESSES: Final = 1000
"""Router processes that are read; further ones are ignored."""

USED_RETENTION: Final = 400 * 86400
"""Seconds after the last use of any key after which Redis drops the times."""

_VERSION: Final = "version"
_PER_COMMAND: Final = 500  # lookups share the connection, and Redis runs a script to its end
_MAX_READ: Final = 2 * MAX_KEYS  # commands that run at the same time may add a few more than MAX_KEYS
_MAX_DIGITS: Final = 15
_VERSION_BOUND: Final = 10**14  # in the year 5138; a version from there on was not written by us, and counts as 0
_MAX_PID: Final = 2**31

# ARGV: a version that the caller knows, then triples: `revoked` replaces a stored record, `new` does not; id; record.
# Returns the number of records written, and the version.
MERGE_SCRIPT: Final = f"""
local written = 0
for i = 2, #ARGV, 3 do
  local stored = redis.call('HGET', KEYS[1], ARGV[i + 1])
  if not stored or (ARGV[i] == 'revoked' and stored ~= ARGV[i + 2]) then
    redis.call('HSET', KEYS[1], ARGV[i + 1], ARGV[i + 2])
    written = written + 1
  end
end
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '') or 0
if not (version >= 0 and version < {_VERSION_BOUND}) then version = 0 end
if written > 0 then
  local now = redis.call('TIME')
  version = math.max(now[1] * 1000 + math.floor(now[2] / 1000), version + 1, ARGV[1] + 1)
  redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version))
end
return {{written, version}}
"""

# ARGV: the time to live in seconds, then pairs of an id and the time of its last use. A later time stays.
USED_SCRIPT: Final = """
for i = 2, #ARGV, 2 do
  local stored = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '') or 0
  if tonumber(ARGV[i + 1]) > stored then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
"""


class StoredRecords(NamedTuple):
    """What Redis has. `version`: 0 if it has none."""

    version: int
    by_id: dict[str, KeyRecord]


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A router process, and the version of the records that it applies. `at`: by Redis' clock.

    Its bounds: Redis may have anything, and a version that no process has would count as a confirmation.
    """

    host: str
    pid: Annotated[int, Meta(ge=0, le=_MAX_PID)]
    version: Annotated[int, Meta(ge=0, lt=_VERSION_BOUND)]
    at: float


_presence_decoder: Final = msgspec.json.Decoder(Presence)


def read_version_command() -> Command:
    return ("HGET", KEYS_RECORDS_KEY, _VERSION)


def read_records_command() -> Command:
    return ("HGETALL", KEYS_RECORDS_KEY)


def decode_version(value: Any) -> int:
    version = int(value) if isinstance(value, bytes) and value.isdigit() and len(value) <= _MAX_DIGITS else 0
    return version if version < _VERSION_BOUND else 0


def decode_records(reply: Any) -> StoredRecords:
    """The records in the reply to `read_records_command`; what cannot be decoded is left out."""
    fields = hash_fields(reply)
    version = decode_version(fields.pop(_VERSION.encode(), b""))
    # Those that cannot be decoded do not take the places of others.
    decoded = (decode_record(id_, value) for id_, value in fields.items())
    records = {record.id: record for record in islice((each for each in decoded if each is not None), _MAX_READ)}
    if len(records) < len(fields):
        # One line for all: there may be any number of them, and every change reads them again.
        ignored = pluralize(len(fields) - len(records), "record")
        log.warning("ignored %s of API keys in Redis that cannot be decoded", ignored)
    return StoredRecords(version, records)


def merge_commands(records: Iterable[KeyRecord], known_version: int) -> Iterator[Command]:
    """Adds records, and marks keys as revoked; a record that Redis has revoked stays so."""
    words = [
        ("revoked" if record.revoked is not None else "new", record.id, encode_record(record)) for record in records
    ]
    for start in range(0, len(words), _PER_COMMAND):
        arguments = [word for triple in words[start : start + _PER_COMMAND] for word in triple]
        yield ("EVAL", MERGE_SCRIPT, 1, KEYS_RECORDS_KEY, known_version, *arguments)


def remove_records_command(ids: Iterable[str]) -> Command:
    return ("HDEL", KEYS_RECORDS_KEY, *ids)


def presence_commands(process: str, presence: Presence) -> list[Command]:
    return [
        ("HSET", KEYS_APPLIED_KEY, process, msgspec.json.encode(presence)),
        ("EXPIRE", KEYS_APPLIED_KEY, int(10 * PRESENCE_LIFETIME)),
    ]


def withdraw_command(*processes: str) -> Command:
    return ("HDEL", KEYS_APPLIED_KEY, *processes)


def read_presences_command() -> Command:
    return ("HGETALL", KEYS_APPLIED_KEY)


def decode_presences(reply: Any) -> dict[str, Presence]:
    presences = {}
    for process, value in list(hash_fields(reply).items())[:MAX_PROCESSES]:
        try:
            presences[process.decode()] = _presence_decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return presences


def used_commands(times: Mapping[str, int]) -> Iterator[Command]:
    """`times`: by a key's id, in seconds since the epoch."""
    items = list(times.items())
    for start in range(0, len(items), _PER_COMMAND):
        words = [word for item in items[start : start + _PER_COMMAND] for word in item]
        yield ("EVAL", USED_SCRIPT, 1, KEYS_USED_KEY, USED_RETENTION, *words)


def read_used_command() -> Command:
    return ("HGETALL", KEYS_USED_KEY)


def decode_used(reply: Any) -> dict[str, int]:
    return {
        id_.decode("ascii", "replace"): int(value)
        for id_, value in hash_fields(reply).items()
        if value.isdigit() and len(value) <= _MAX_DIGITS
    }
