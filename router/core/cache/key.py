"""A key, and the parts of the request that it is derived from; see router.core.cache.key_derivation."""

import hashlib
from typing import Any

import msgspec

from router.core.cache.entry_filter import document_name, text_document_name

encode_canonical = msgspec.json.Encoder(order="deterministic").encode


class ContextMarkers(msgspec.Struct, frozen=True):
    """What stands before and after retrieved context in a message's text."""

    open: str = "<context>"
    close: str = "</context>"


class CacheKey(msgspec.Struct, eq=False, gc=False):
    """`text` is the Redis key; `form` all that it stands for: tenant, model, and the bytes of the three parts.

    `digest`, the hex SHA-256 of the form, is what an entry under the key must bear; it is worked out when it is asked
    for first, since whoever has the form of an entry needs none.
    """

    text: str
    canonical_parts: tuple[str | bytes, ...]
    _digest: str = ""

    @property
    def digest(self) -> str:
        if not self._digest:
            digest = hashlib.sha256()
            for part in self.canonical_parts:
                data = part.encode() if isinstance(part, str) else part
                digest.update(b"%d:%b" % (len(data), data))
            self._digest = digest.hexdigest()
        return self._digest

    @property
    def size(self) -> int:
        """Bytes of the form, about."""
        return sum(map(len, self.canonical_parts))


class RequestParts(msgspec.Struct, frozen=True, gc=False):
    """A request, taken apart; see the theory of router.core.cache.key_derivation.

    - `query`: the endpoint, the messages, and all other fields.
    - `question`: the last text of a user, without its context.
    - `texts_only`: each message is a role and a text, so that none refers to anything elsewhere.
    """

    system: list[Any]
    rag: list[Any]
    query: list[Any]
    question: str
    texts_only: bool = False

    def document_names(self) -> tuple[str, ...]:
        """The names of the documents in the rag part: their ids, or the hashes of their texts."""
        if not self.rag:
            return ()
        names: dict[str, None] = {}
        for item in self.rag:
            for document in item if isinstance(item, list) else [item]:
                names[_rag_document_name(document)] = None
        return tuple(names)


def _rag_document_name(document: Any) -> str:
    if isinstance(document, str):
        return text_document_name(document)
    fields = document if isinstance(document, dict) else {}
    for doc_id in (fields.get("doc_id"), fields.get("id")):
        if isinstance(doc_id, str | int) and not isinstance(doc_id, bool) and doc_id != "":
            return document_name(str(doc_id))
    text = fields.get("text")
    return text_document_name(text if isinstance(text, str) else encode_canonical(document).decode())
