"""A request's parts as its entry notes them, so that two requests can be told apart part by part."""

from typing import Literal

import msgspec

from router.core.cache.redis_keys import KEY_PREFIX

MissReason = Literal["new", "expired", "system", "rag", "query", "params", "model"]


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
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

    def differing_parts(self, other: "Fingerprint") -> list[MissReason]:
        """In which parts another differs, of the same tenant; another revision of the model is another model.

        Of an entry that does not know its two halves, the one or the other that differs counts as `query`.
        """
        halves = bool(self.question and other.question)
        asked, how = self.question != other.question, self.params != other.params
        revision = halves and not asked and not how and self.query != other.query
        parts: list[tuple[MissReason, bool]] = [
            ("model", self.model != other.model or revision),
            ("system", self.system != other.system),
            ("rag", self.rag != other.rag),
            ("query", asked if halves else self.query != other.query),
            ("params", halves and how),
        ]
        return [name for name, differs in parts if differs]


def entry_fingerprint(key: str, question: str, params: str) -> Fingerprint | None:
    """The fingerprint of the entry at a key, with what it notes of itself; None where the key is none of an entry."""
    parts = key.removeprefix(KEY_PREFIX).split(":")
    if len(parts) != 5:
        return None
    tenant, model, system, rag, query = parts
    return Fingerprint(tenant, model, system, rag, query, question, params)
