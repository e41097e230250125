"""The hash chain of the audit.

Theory of operation. Each entry has the hash of the entry before it (`previous`) and a hash over all of its own fields.
So whoever changes, removes, adds or moves an entry has to compute the hashes of all later ones again, up to the newest,
which stands in the log of the router that wrote it. The chain has no secret: who may write to Redis can make another
one. It shows a change to those who compare it with a log. Old entries are trimmed, so what the first one that is kept
says of the entry before it is taken as given; its `number` says how many there were.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

NO_ENTRY: Final = "0" * 64
"""The `previous` of an entry before which there was none."""

Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

_HASH_FIELD: Final = b"hash"


class Link(msgspec.Struct, frozen=True):
    """An entry's place in the chain."""

    number: Annotated[int, Meta(ge=1, lt=10**15)]
    previous: Hash
    hash: Hash


class BrokenLink(msgspec.Struct, frozen=True, kw_only=True):
    """The first entry that does not follow from those before it. `id`: in the stream; `number`: as it says itself."""

    id: str
    number: int | None
    problem: str


class ChainReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at all entries found.

    - `entries`: that were checked. `trimmed`: entries before the first one, which are not kept.
    - `newest`: the hash of the newest entry; None if there is none, or the chain is broken before it.
    - `broken`: None if the chain holds.
    """

    entries: int
    trimmed: int
    newest: str | None
    broken: BrokenLink | None


def link(fields: Mapping[bytes, bytes], before: Link | None) -> dict[bytes, bytes]:
    """The fields of an entry, with those that make it the one after `before`."""
    number = before.number + 1 if before is not None else 1
    previous = before.hash if before is not None else NO_ENTRY
    linked = {**fields, b"number": b"%d" % number, b"previous": previous.encode()}
    return {**linked, _HASH_FIELD: hash_fields(linked).encode()}


def hash_fields(fields: Mapping[bytes, bytes]) -> str:
    """The SHA-256, in hex, over all fields but the hash.

    For each, in the order of the names: `LENGTH:NAME,LENGTH:VALUE,` with lengths in bytes (netstrings), so that no two
    entries have the same text. A field that a later version adds is covered, too.
    """
    digest = hashlib.sha256()
    for name in sorted(fields):
        if name != _HASH_FIELD:
            for word in (name, fields[name]):
                digest.update(b"%d:%b," % (len(word), word))
    return digest.hexdigest()


def read_link(fields: Mapping[bytes, bytes]) -> Link | None:
    """None if the entry does not say its place. Whether what it says is true, ChainCheck finds out."""
    words = {name: fields.get(name.encode(), b"") for name in ("number", "previous", "hash")}
    try:
        return msgspec.convert({name: word.decode("ascii") for name, word in words.items()}, Link, strict=False)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return None


class ChainCheck:
    """Takes entries from the oldest on, and finds the first that does not follow from those before it.

    - The first entry may have any place: those before it are trimmed.
    - A changed, missing, added, repeated or moved entry breaks the chain, at itself or at the one after it.
    - Missing entries at the end are not seen: nothing follows them.
    """

    def __init__(self) -> None:
        self._entries = self._trimmed = 0
        self._last: Link | None = None
        self._broken: BrokenLink | None = None

    def add(self, id_: str, fields: Mapping[bytes, bytes]) -> None:
        if self._broken is not None:
            return
        own = read_link(fields)
        problem = _problem(fields, own, self._last)
        if problem is not None:
            self._broken = BrokenLink(id=id_, number=own.number if own is not None else None, problem=problem)
            return
        if self._last is None and own is not None:
            self._trimmed = own.number - 1
        self._last = own
        self._entries += 1

    def report(self) -> ChainReport:
        newest = self._last.hash if self._last is not None and self._broken is None else None
        return ChainReport(entries=self._entries, trimmed=self._trimmed, newest=newest, broken=self._broken)


def _problem(fields: Mapping[bytes, bytes], own: Link | None, before: Link | None) -> str | None:
    if own is None:
        return "it is not an entry of the audit"
    if hash_fields(fields) != own.hash:
        return "it was changed: its hash is another one"
    if before is None or own.previous == before.hash:
        # A chain whose hashes are right may still count wrongly, if somebody made it anew.
        return None if before is None or own.number == before.number + 1 else "its number does not follow"
    missing = own.number - before.number - 1
    if missing > 0:
        return f"{missing} before it are missing" if missing > 1 else "the one before it is missing"
    return "it does not follow the one before it: that was changed, or something was added or moved"
