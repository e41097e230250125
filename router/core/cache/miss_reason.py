"""Why a request is a cache miss: the value of X-Cache-Reason with X-Cache: MISS.

Theory. Two keys show in which parts two requests differ, but a search for the nearest entry would cost more than the
reason is worth. So a process remembers, for each entry that it learns of, hashes of the key with one part left out. If
the hash without the system part is known, the request differs from some entry in its system part only.
"""

from typing import Final

import xxhash

from router.core.cache.cache_key import CacheKey
from router.core.cache.fingerprint import Fingerprint, MissReason
from router.core.cache.key import RequestParts, encode_canonical
from router.core.cache.purge_index import BEGINNING, PurgePosition
from router.core.cache.redis_keys import split_entry_key, split_query

MAX_REMEMBERED_ENTRIES: Final = 4096
"""Entries whose keys a process remembers; about 3 MB."""

_HASHES_PER_ENTRY: Final = 7  # the length of what hash_parts returns


def fingerprint_request(key: CacheKey, parts: RequestParts) -> Fingerprint:
    endpoint, messages, rest = parts.query
    question, params = encode_canonical(messages), encode_canonical([endpoint, rest])
    return Fingerprint(key.parts, xxhash.xxh3_64_hexdigest(question), xxhash.xxh3_64_hexdigest(params))


PartHashes = tuple[int, ...]
"""Hashes of the whole key, and of the key with one part left out; _REASONS_BY_HASH gives the order."""


def hash_parts(fingerprint: Fingerprint) -> PartHashes:
    # Each tuple begins with a tag, so that hashes of different parts cannot be mistaken for each other.
    key = fingerprint.key
    tenant, model, system, rag = key.tenant, key.model, key.system, key.rag
    sample = split_query(key.query)[1]  # else two samples of a request would look like two revisions of its model
    question, params = fingerprint.question + sample, fingerprint.params + sample
    return (
        *_hash_key_parts(tenant, model, system, rag, key.query),
        # No query part: if the question and the params are the same, only the model's revision can differ there.
        hash(("revision", tenant, model, system, rag, question, params)),
        hash(("params", tenant, model, system, rag, question)),
        hash(("model", tenant, system, rag, question, params)),
    )


def _hash_key(tenant: str, model: str, system: str, rag: str, query: str) -> int:
    return hash(("key", tenant, model, system, rag, query))


def _hash_key_parts(tenant: str, model: str, system: str, rag: str, query: str) -> PartHashes:
    return (
        _hash_key(tenant, model, system, rag, query),
        hash(("system", tenant, model, rag, query)),
        hash(("rag", tenant, model, system, query)),
        hash(("query", tenant, model, system, rag)),
    )


_MAX_COPIED: Final = 1000  # hashes; a tenth of a millisecond
_OWN: Final = 4  # the index of a hash that only `SeenKeys.add` adds

# Index into PartHashes, and the reason if that hash is known. The first known one counts: 0 is the whole key; then
# come the hashes with question or params (4 to 6), which say more than those of the key parts alone (1 to 3).
_REASONS_BY_HASH: Final[tuple[tuple[int, MissReason], ...]] = (
    (0, "expired"), (4, "model"), (5, "params"), (6, "model"), (1, "system"), (2, "rag"), (3, "query"),
)  # fmt: skip


class SeenKeys:
    """The keys of entries that a process has learned of, as hashes; the oldest are forgotten first."""

    def __init__(self, max_entries: int = MAX_REMEMBERED_ENTRIES) -> None:
        """`max_entries`: the most entries remembered; at least the newest half of that many always are."""
        # Two generations instead of a queue: when `_new` is full it becomes `_old`, and the previous `_old` is dropped.
        # That needs no order per entry, and a hash that is added again is young again.
        self._new: set[int] = set()
        self._old: set[int] = set()
        self._max_new_hashes = _HASHES_PER_ENTRY * max_entries // 2
        self._not_stored: set[int] = set()  # hashes of whole keys, at most as many as entries
        # What was known before a purge, see `purged_since`: little is copied, with the position of the purge. Copying
        # much would delay requests, so the last such generations are kept as they are.
        self._before_purge: dict[int, PurgePosition] = {}
        self._kept_position = BEGINNING
        self._kept_new: set[int] = set()
        self._kept_old: set[int] = set()

    def miss_reason(self, hashes: PartHashes) -> MissReason:
        new, old = self._new, self._old
        if hashes[0] in self._not_stored:
            return "not-stored"
        for index, reason in _REASONS_BY_HASH:
            part_hash = hashes[index]
            if part_hash in new or part_hash in old:
                return reason
        return "new"

    @property
    def remembers_purges(self) -> bool:
        """False where only a key that is known can have been purged."""
        return bool(self._before_purge or self._kept_new)

    def purged_since(self, hashes: PartHashes) -> PurgePosition | None:
        """If a purge at this position or later covers the key, a purge is why its entry is gone.

        None if no entry of this key is known, or if this process has stored one since the last purge. Then a purge
        that covers the key, as one of a whole tenant does, is not why there is none.
        """
        whole = hashes[0]
        if whole in self._not_stored:
            return None
        since = self._before_purge.get(whole)
        if since is not None:
            return since
        if whole in self._kept_new or whole in self._kept_old:
            return self._kept_position
        if whole not in self._new and whole not in self._old:
            return None
        # Redis reports the deletion by a purge like any change, which makes the key known and nothing else of it.
        return None if hashes[_OWN] in self._new or hashes[_OWN] in self._old else BEGINNING

    def add(self, hashes: PartHashes) -> None:
        whole = hashes[0]
        self._not_stored.discard(whole)
        if self.remembers_purges:
            self._before_purge.pop(whole, None)
            self._kept_new.discard(whole)
            self._kept_old.discard(whole)
        self._add_hashes(hashes)

    def add_not_stored(self, hashes: PartHashes) -> None:
        """The response to this request could not be stored."""
        if len(self._not_stored) * 2 * _HASHES_PER_ENTRY >= self._max_new_hashes:
            self._not_stored = set()
        self._not_stored.add(hashes[0])

    def add_purged(self, hashes: PartHashes) -> None:
        """The response to this request was not stored because of a purge."""
        self._before_purge[hashes[0]] = BEGINNING

    def add_key(self, key: str) -> None:
        """Adds an entry of which only the key is known, such as one that another process stored."""
        parts = split_entry_key(key)
        if parts is None:
            return
        tenant, model, system, rag, query = parts
        whole = _hash_key(tenant, model, system, rag, query)
        self._not_stored.discard(whole)
        # This process is also notified of its own writes; those keys are in `_new` already.
        if whole not in self._new:
            self._add_hashes(_hash_key_parts(tenant, model, system, rag, query))

    def on_purge(self, position: PurgePosition) -> None:
        """Forgets everything but which keys had an entry: the purge may be why they have none any more."""
        if len(self._new) + len(self._old) > _MAX_COPIED:
            self._kept_position, self._kept_new, self._kept_old = position, self._new, self._old
        else:
            if len(self._before_purge) > self._max_new_hashes:
                self._before_purge = {}
            # All hashes and not those of whole keys alone, which cannot be told apart.
            for known in (self._old, self._new):
                self._before_purge.update(dict.fromkeys(known, position))
        self._new, self._old, self._not_stored = set(), set(), set()

    def clear(self) -> None:
        self._new, self._old, self._not_stored = set(), set(), set()
        self._before_purge, self._kept_new, self._kept_old = {}, set(), set()

    def _add_hashes(self, hashes: PartHashes) -> None:
        self._new.update(hashes)
        if len(self._new) > self._max_new_hashes:
            self._old, self._new = self._new, set()
