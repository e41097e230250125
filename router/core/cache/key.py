"""The values of a cache key and of the request parts it is derived from; see router.core.cache.key_derivation."""

import hashlib
from typing import Any

import msgspec

from router.core.cache.entry_filter import document_name, text_document_name
from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import split_entry_key

encode_canonical = msgspec.json.Encoder(order="deterministic").encode


class ContextMarkers(msgspec.Struct, frozen=True):
    """Delimiters of retrieved context in the text of a message."""

    open: str = "<context>"
    close: str = "</context>"


class CacheKey(msgspec.Struct, eq=False, gc=False):
    """The key of a request.

    - `text`: the Redis key.
    - `canonical_parts`: what it is a hash of: tenant, model, and the canonical JSON of the system, rag and query part.
    - `parts`: the parts of `text`.
    - `digest`: hex SHA-256 of the canonical parts, which an entry under this key must have.
    """

    text: str
    canonical_parts: tuple[str | bytes, ...]
    # Computed on first use: an entry in the local cache is compared by its canonical parts, which needs no hash.
    _digest: str = ""
    _parts: KeyParts | None = None

    @property
    def parts(self) -> KeyParts:
        if self._parts is None:  # split on first use: a hit needs only the text
            parts = split_entry_key(self.text)
            assert parts is not None
            self._parts = KeyParts(*parts)
        return self._parts

    @property
    def digest(self) -> str:
        if not self._digest:
            digest = hashlib.sha256()
            for part in self.canonical_parts:
                data = part.encode() if isinstance(part, str) else part
                # The length prefix keeps ("ab", "c") and ("a", "bc") apart.
                digest.update(b"%d:%b" % (len(data), data))
            self._digest = digest.hexdigest()
        return self._digest

    @property
    def size(self) -> int:
        """Approximate size of the canonical parts in bytes."""
        return sum(map(len, self.canonical_parts))


class RequestParts(msgspec.Struct, frozen=True, gc=False):
    """The parts of a request; router.core.cache.key_derivation explains them.

    - `query`: the endpoint, the messages, and all other fields.
    - `question`: the last user text, without its context.
    - `texts_only`: every message is just a role and a text, so the request cannot refer to remote content; and it has
      none of the fields that engine_fields finds.
    """

    system: list[Any]
    rag: list[Any]
    query: list[Any]
    question: str
    texts_only: bool = False

    def document_names(self) -> tuple[str, ...]:
        """Unique names of the documents in the rag part, in order: their ids, or the hashes of their texts."""
        if not self.rag:
            return ()
        names: dict[str, None] = {}  # a dict, because it keeps the order
        for item in self.rag:
            for document in item if isinstance(item, list) else [item]:
                for name in _rag_document_names(document):
                    names[name] = None
        return tuple(names)


def _rag_document_names(document: Any) -> list[str]:
    if isinstance(document, str):
        return [text_document_name(document)]
    fields = document if isinstance(document, dict) else {}
    for doc_id in (fields.get("doc_id"), fields.get("id")):
        # True and False are ints in Python, but not ids.
        if isinstance(doc_id, str | int) and not isinstance(doc_id, bool) and doc_id != "":
            return [document_name(str(doc_id))]
    text = fields.get("text")
    if isinstance(text, str):
        return [text_document_name(text)]
    texts = [*_content_texts(fields.get("content")), encode_canonical(document).decode()]
    return [text_document_name(text) for text in texts]


def _content_texts(content: Any) -> list[str]:
    """The texts and the URLs in the content of a multi-modal document: a list of parts, as in a message."""
    texts = []
    for part in content if isinstance(content, list) else ():
        for name, value in part.items() if isinstance(part, dict) else ():
            text = value.get("url") if isinstance(value, dict) else value
            if isinstance(text, str) and (name == "text" or name.endswith("_url")):
                texts.append(text)
    return texts
