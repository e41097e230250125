"""Why a request was not answered from the cache: the word of X-Cache-Reason beside X-Cache: MISS.

Theory. A key says in which parts two requests differ, but to find the nearest entry among all would cost more than a
miss is worth. So a process remembers, for each entry that it hears of, what the entry's key is without one of its
parts. A request that is known without its system part differs from some entry in that part alone.
"""

from typing import Final, Literal

import msgspec
import xxhash

from router.core.key import Parts, canonical
from router.core.names import PREFIX

MissReason = Literal["new", "expired", "system", "rag", "query", "params", "model"]

REMEMBERED: Final = 4096
"""Entries of which a process remembers the key; some 2.5 MB."""


class Fingerprint(msgspec.Struct, frozen=True):
    """A request's parts as an entry notes them: those of its key, and hashes of the two halves of the last.

    `question` is what was asked, `params` how: all fields but the messages, and the endpoint.
    """

    tenant: str
    model: str
    system: str
    rag: str
    query: str
    question: str
    params: str

    def differences(self, other: "Fingerprint") -> list[MissReason]:
        """In which parts another differs, of the same tenant; none where they are the same but for the revision."""
        parts: list[tuple[MissReason, bool]] = [
            ("model", self.model != other.model),
            ("system", self.system != other.system),
            ("rag", self.rag != other.rag),
            ("query", self.question != other.question),
            ("params", self.params != other.params),
        ]
        return [name for name, differs in parts if differs]


def fingerprint(key: str, parts: Parts) -> Fingerprint:
    """The fingerprint of a request that was taken apart, and whose key was derived from that."""
    endpoint, messages, rest = parts.query
    tenant, model, system, rag, query = key[len(PREFIX) :].split(":")
    return Fingerprint(
        tenant, model, system, rag, query,
        xxhash.xxh3_64_hexdigest(canonical(messages)), xxhash.xxh3_64_hexdigest(canonical([endpoint, rest])),
    )  # fmt: skip


class Hints:
    """The keys that a process has heard of, each with one part left out; the oldest are forgotten first."""

    __slots__ = ("_known", "_limit")

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._known: dict[int, None] = {}
        self._limit = 6 * remembered

    def reason(self, wanted: Fingerprint) -> MissReason:
        """The word for a request that has no entry."""
        for reason, mark in self._marks(wanted):
            if mark in self._known:
                return reason
        return "new"

    def note(self, stored: Fingerprint) -> None:
        """An entry of which all is known."""
        self._remember([mark for _, mark in self._marks(stored)])

    def note_key(self, key: str) -> None:
        """An entry of which the key is known, as another process wrote it."""
        parts = key[len(PREFIX) :].split(":")
        if len(parts) == 5:
            self._remember(self._marks_of_key(*parts))

    def clear(self) -> None:
        self._known.clear()

    def _remember(self, marks: list[int]) -> None:
        known = self._known
        for mark in marks:
            known.pop(mark, None)
            known[mark] = None
        while len(known) > self._limit:
            del known[next(iter(known))]

    def _marks(self, of: Fingerprint) -> list[tuple[MissReason, int]]:
        exact, system, rag, context = self._marks_of_key(of.tenant, of.model, of.system, of.rag, of.query)
        params = hash(("params", of.tenant, of.model, of.system, of.rag, of.question))
        model = hash(("model", of.tenant, of.system, of.rag, of.question, of.params))
        return [("expired", exact), ("params", params), ("model", model),
                ("system", system), ("rag", rag), ("query", context)]  # fmt: skip

    @staticmethod
    def _marks_of_key(tenant: str, model: str, system: str, rag: str, query: str) -> list[int]:
        return [
            hash(("key", tenant, model, system, rag, query)),
            hash(("system", tenant, model, rag, query)),
            hash(("rag", tenant, model, system, query)),
            hash(("query", tenant, model, system, rag)),
        ]
