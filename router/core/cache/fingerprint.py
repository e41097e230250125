"""A request's parts as hashes, to tell in which parts two requests differ."""

from typing import Literal

import msgspec

from router.core.cache.redis_keys import KEY_PREFIX

MissReason = Literal["new", "expired", "system", "rag", "query", "params", "model"]


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
    """The five parts of a key, and hashes of the two halves of the last one (`query`).

    - `question`: hash of the messages.
    - `params`: hash of the endpoint and all fields except the messages.

    Both are empty for an entry that was stored without them.
    """

    tenant: str
    model: str
    system: str
    rag: str
    query: str
    question: str
    params: str

    def differing_parts(self, other: "Fingerprint") -> list[MissReason]:
        """The parts in which another fingerprint of the same tenant differs.

        Another revision of the model counts as `model`. Without `question` and `params`, a difference in either counts
        as `query`.
        """
        has_halves = bool(self.question and other.question)
        question_differs, params_differ = self.question != other.question, self.params != other.params
        # The query part covers the question, the params and the revision. If the first two are equal, it is the third.
        revision_differs = has_halves and not question_differs and not params_differ and self.query != other.query
        parts: list[tuple[MissReason, bool]] = [
            ("model", self.model != other.model or revision_differs),
            ("system", self.system != other.system),
            ("rag", self.rag != other.rag),
            ("query", question_differs if has_halves else self.query != other.query),
            ("params", has_halves and params_differ),
        ]
        return [name for name, differs in parts if differs]


def entry_fingerprint(key: str, question: str, params: str) -> Fingerprint | None:
    """The fingerprint of an entry, from its key and its stored fields; None if the key is not an entry's key."""
    parts = key.removeprefix(KEY_PREFIX).split(":")
    if len(parts) != 5:
        return None
    tenant, model, system, rag, query = parts
    return Fingerprint(tenant, model, system, rag, query, question, params)
