"""A request's parts as hashes, to tell in which parts two requests differ."""

from typing import Literal

import msgspec

from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import split_query

MissReason = Literal["new", "expired", "purged", "sample", "not-stored", "system", "rag", "query", "params", "model"]


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
    """The parts of a key, and hashes of the two halves of the last one (`query`).

    - `question`: hash of the messages.
    - `params`: hash of the endpoint and all fields except the messages.

    Both are empty for an entry that was stored without them.
    """

    key: KeyParts
    question: str
    params: str

    def differing_parts(self, other: "Fingerprint") -> list[MissReason]:
        """The parts in which another fingerprint of the same tenant differs.

        Another revision of the model counts as `model`. Without `question` and `params`, a difference in either counts
        as `query`. Samples of one request do not differ.
        """
        key, other_key = self.key, other.key
        queries_differ = split_query(key.query)[0] != split_query(other_key.query)[0]
        has_halves = bool(self.question and other.question)
        question_differs, params_differ = self.question != other.question, self.params != other.params
        # The query part covers the question, the params and the revision. If the first two are equal, it is the third.
        revision_differs = has_halves and not question_differs and not params_differ and queries_differ
        parts: list[tuple[MissReason, bool]] = [
            ("model", key.model != other_key.model or revision_differs),
            ("system", key.system != other_key.system),
            ("rag", key.rag != other_key.rag),
            ("query", question_differs if has_halves else queries_differ),
            ("params", has_halves and params_differ),
        ]
        return [name for name, differs in parts if differs]


def entry_fingerprint(key: str, question: str, params: str) -> Fingerprint | None:
    """The fingerprint of an entry, from its key and its stored fields; None if the key is not an entry's key."""
    parts = KeyParts.try_parse(key)
    return None if parts is None else Fingerprint(parts, question, params)
