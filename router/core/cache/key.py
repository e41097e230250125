"""The parts of a request that its cache key is derived from; see router.core.cache.key_derivation."""

from typing import Any

import msgspec

from router.core.cache.entry_filter import document_name, text_document_name

encode_canonical = msgspec.json.Encoder(order="deterministic").encode


class ContextMarkers(msgspec.Struct, frozen=True):
    """Delimiters of retrieved context in the text of a message."""

    open: str = "<context>"
    close: str = "</context>"


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
