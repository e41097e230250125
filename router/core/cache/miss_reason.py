"""Why a request was not answered from the cache: the word of X-Cache-Reason beside X-Cache: MISS.

Theory. A key says in which parts two requests differ, but to find the nearest entry among all would cost more than a
miss is worth. So a process remembers, for each entry that it hears of, what the entry's key is without one of its
parts. A request that is known without its system part differs from some entry in that part alone.
"""

from typing import Final

import xxhash

from router.core.cache.fingerprint import Fingerprint, MissReason
from router.core.cache.key import RequestParts, encode_canonical
from router.core.cache.redis_keys import KEY_PREFIX

MAX_REMEMBERED_ENTRIES: Final = 4096
"""Entries of which a process remembers the key; some 3 MB."""

_HASHES_PER_ENTRY: Final = 7  # what is remembered of one entry


def fingerprint_request(key: str, parts: RequestParts) -> Fingerprint:
    """The fingerprint of a request that was taken apart, and whose key was derived from that."""
    endpoint, messages, rest = parts.query
    question, params = encode_canonical(messages), encode_canonical([endpoint, rest])
    tenant, model, system, rag, query = key[len(KEY_PREFIX) :].split(":")
    return Fingerprint(
        tenant, model, system, rag, query, xxhash.xxh3_64_hexdigest(question), xxhash.xxh3_64_hexdigest(params)
    )


PartHashes = tuple[int, ...]
"""Hashes of a request's parts: of all that are in its key, and of all but one. See _REASONS."""


def hash_parts(fingerprint: Fingerprint) -> PartHashes:
    """What Hints remembers of an entry, and looks for."""
    tenant, model, system, rag = fingerprint.tenant, fingerprint.model, fingerprint.system, fingerprint.rag
    question, params = fingerprint.question, fingerprint.params
    return (
        *_hash_key_parts(tenant, model, system, rag, fingerprint.query),
        # Where all is the same but the key's last part, that is the model's revision.
        hash(("revision", tenant, model, system, rag, question, params)),
        hash(("params", tenant, model, system, rag, question)),
        hash(("model", tenant, system, rag, question, params)),
    )


def _hash_key_parts(tenant: str, model: str, system: str, rag: str, query: str) -> PartHashes:
    return (
        hash(("key", tenant, model, system, rag, query)),
        hash(("system", tenant, model, rag, query)),
        hash(("rag", tenant, model, system, query)),
        hash(("query", tenant, model, system, rag)),
    )


_REASONS_BY_HASH: Final[tuple[tuple[int, MissReason], ...]] = (
    (0, "expired"), (4, "model"), (5, "params"), (6, "model"), (1, "system"), (2, "rag"), (3, "query"),
)  # fmt: skip
"""What it means that a mark is known, by its place among the marks; the first counts."""


class SeenKeys:
    """The keys that a process has heard of, each with one part left out; the oldest are forgotten first.

    What is new goes into one set; when that is full, it becomes the old one, and what was there before is forgotten.
    """

    __slots__ = ("_max_new_hashes", "_new", "_old")

    def __init__(self, max_entries: int = MAX_REMEMBERED_ENTRIES) -> None:
        """`remembered`: entries that are remembered at most; half of them are for certain."""
        self._new: set[int] = set()
        self._old: set[int] = set()
        self._max_new_hashes = _HASHES_PER_ENTRY * max_entries // 2

    def miss_reason(self, hashes: PartHashes) -> MissReason:
        """The word for a request that has no entry."""
        new, old = self._new, self._old
        for place, reason in _REASONS_BY_HASH:
            mark = hashes[place]
            if mark in new or mark in old:
                return reason
        return "new"

    def add(self, hashes: PartHashes) -> None:
        """An entry of which all is known."""
        self._add_hashes(hashes)

    def add_key(self, key: str) -> None:
        """An entry of which the key is known, as another process wrote it, or this one."""
        parts = key[len(KEY_PREFIX) :].split(":")
        if len(parts) == 5 and (marks := _hash_key_parts(*parts))[0] not in self._new:
            self._add_hashes(marks)

    def clear(self) -> None:
        self._new, self._old = set(), set()

    def _add_hashes(self, hashes: PartHashes) -> None:
        self._new.update(hashes)
        if len(self._new) > self._max_new_hashes:
            self._old, self._new = self._new, set()
