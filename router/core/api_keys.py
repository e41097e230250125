"""API keys: their hashes and ids, and the record of a key that lives in Redis.

Theory of operation. A record is written once, and changes once at most: when its key is revoked. So of two versions of
a record the revoked one is always the later, and any process may merge what it knows into what Redis has, in any order.
A revoked record stays for RETENTION, because a process that has missed the revocation would else write the key back.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

HASH_PREFIX: Final = "sha256:"
"""The prefix of a key's hex SHA-256 in the configuration."""

MAX_KEYS: Final = 10_000
"""Records in Redis, those of expired and revoked keys included."""

MIN_EXPIRY: Final = 60.0
MAX_EXPIRY: Final = 3650 * 86400.0
"""Seconds from the creation of a key to its end."""

RETENTION: Final = 30 * 86400.0
"""Seconds for which the record of an expired or revoked key is kept."""

MAX_RECORD: Final = 1024
"""Bytes of a record."""

_KEY_ID_DIGITS: Final = 8
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY_ID: Final = re.compile(rf"[0-9a-f]{{{_KEY_ID_DIGITS}}}")

_Time = Annotated[float, Meta(ge=0, le=1e12)]


def hash_key(key: bytes) -> str:
    return HASH_PREFIX + hashlib.sha256(key).hexdigest()


def key_id(digest: str) -> str:
    """A short name of a key for logs and people: the first digits of its digest, which `hash_key` returns."""
    return digest.removeprefix(HASH_PREFIX)[:_KEY_ID_DIGITS]


def is_key_id(text: str) -> bool:
    return _KEY_ID.fullmatch(text) is not None


def is_key_name(text: str) -> bool:
    """Whether a key may have this name. One that looks like an id may not: `revoke` takes both."""
    return _KEY_NAME.fullmatch(text) is not None and not is_key_id(text)


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key in Redis. Times are seconds since the epoch by Redis' clock.

    - `hash`: as `hash_key` returns it. `expires`: None for never; `revoked`: None while the key is valid.
    """

    hash: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    tenant: Annotated[str, Meta(pattern=r"^[a-z0-9._-]{1,64}\Z")]
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
    created: _Time
    expires: _Time | None = None
    revoked: _Time | None = None

    @property
    def id(self) -> str:
        return key_id(self.hash)

    def is_expired(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires

    def is_valid(self, now: float) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked is None and not self.is_expired(now)

    def is_obsolete(self, now: float) -> bool:
        """Whether its key ended more than RETENTION ago."""
        ends = [end for end in (self.expires, self.revoked) if end is not None]
        return bool(ends) and now - min(ends) > RETENTION


_decoder: Final = msgspec.json.Decoder(KeyRecord)


def encode_record(record: KeyRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_record(id_: bytes, value: bytes) -> KeyRecord | None:
    """The record that Redis has for an id; None if it cannot be decoded, or is the record of another key."""
    if len(value) > MAX_RECORD:
        return None
    try:
        record = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if record.id.encode() == id_ else None


def merge_records(
    known: Mapping[str, KeyRecord], stored: Mapping[str, KeyRecord], now: float
) -> tuple[dict[str, KeyRecord], list[KeyRecord]]:
    """All records by id, and those that Redis (`stored`) has lost, in whole or in part.

    A revoked record replaces one that is not; otherwise Redis decides. What it has is kept even if it is obsolete:
    `now` may be wrong, and be corrected later.
    """
    merged = dict(stored)
    lost = []
    for id_, record in known.items():
        other = stored.get(id_)
        if _is_lost(record, now) if other is None else _is_revocation_lost(record, other):
            merged[id_] = record
            lost.append(record)
    return merged, lost


def _is_lost(record: KeyRecord, now: float) -> bool:
    """Whether it must be written again if Redis has no record with its id."""
    return not record.is_expired(now) and not record.is_obsolete(now)


def _is_revocation_lost(record: KeyRecord, stored: KeyRecord) -> bool:
    return record.revoked is not None and stored.revoked is None and record.hash == stored.hash


def find_records(records: Iterable[KeyRecord], id_or_name: str, tenant: str | None = None) -> list[KeyRecord]:
    """The record with this id; else those with this name that are not revoked. `tenant`: only those of the tenant."""
    candidates = [record for record in records if tenant in (None, record.tenant)]
    if is_key_id(id_or_name):
        return [record for record in candidates if record.id == id_or_name]
    return [record for record in candidates if record.name == id_or_name and record.revoked is None]


def find_revoked(records: Iterable[KeyRecord], name: str, tenant: str | None = None) -> list[KeyRecord]:
    """The record with this name that was revoked last; none if there is none."""
    revoked = [each for each in records if each.name == name and each.revoked is not None]
    candidates = [each for each in revoked if tenant in (None, each.tenant)]
    return sorted(candidates, key=lambda each: each.revoked or 0.0)[-1:]
