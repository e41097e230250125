"""What a purge is about: one entry, or all that have some things in common."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import xxhash
from msgspec import Meta

from router.core.cache.redis_keys import KEY_PREFIX, claim_key
from router.errors import bad_request

MAX_DOCUMENT_NAME: Final = 128
"""Characters of a document's id; of a longer one, its hash is the name."""

MAX_PAGE_SIZE: Final = 1000
"""Entries on one page of a listing."""

KeyName = Annotated[str, Meta(pattern=r"^[a-z0-9._-]{1,64}\Z")]
HexHash = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
EntryKey = Annotated[
    str, Meta(pattern=r"^rh:1:[a-z0-9._-]{1,64}:[a-z0-9._-]{1,64}:[0-9a-f]{16}:[0-9a-f]{16}:[0-9a-f]{32}\Z")
]


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is given must hold, all of it; `system` and `rag` are hex as in the key; `document` names one document.

    Of nothing given, nothing is meant: a purge of everything says `all`.
    """

    key: EntryKey | None = None
    tenant: KeyName | None = None
    model: KeyName | None = None
    system: HexHash | None = None
    rag: HexHash | None = None
    document: str | None = None
    all: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it names nothing."""
        return not self.all and all(
            part is None for part in (self.key, self.tenant, self.model, self.system, self.rag, self.document)
        )

    def matches(self, key: str, documents: tuple[str, ...] = ()) -> bool:
        """Whether the entry at a key, made with those documents, is meant."""
        if self.is_empty or (self.key is not None and key != self.key):
            return False
        if self.document is not None and not possible_document_names(self.document) & set(documents):
            return False
        parts = key.removeprefix(KEY_PREFIX).split(":")
        wanted = (self.tenant, self.model, self.system, self.rag)
        return len(parts) == 5 and all(want is None or want == part for want, part in zip(wanted, parts, strict=False))

    @property
    def key_pattern(self) -> str:
        """What Redis' SCAN MATCH takes to find the entries that may be meant; no part can hold a special character."""
        return self.key or KEY_PREFIX + ":".join(
            part or "*" for part in (self.tenant, self.model, self.system, self.rag, None)
        )

    def to_json(self) -> bytes:
        """The scope as JSON, of a bounded length, for those who are to be told: a long document stands by its name."""
        document = None if self.document is None else document_name(self.document)
        return msgspec.json.encode(msgspec.structs.replace(self, document=document))

    @property
    def claim_pattern(self) -> str:
        """The same for the claims of generations in flight."""
        return claim_key(self.key_pattern)


def document_name(doc_id: str) -> str:
    """By what name an entry knows a document that has an id."""
    return doc_id if 0 < len(doc_id) <= MAX_DOCUMENT_NAME and doc_id.isprintable() else text_document_name(doc_id)


def text_document_name(text: str) -> str:
    """By what name an entry knows a document that is nothing but text: the text's xxh3-64 in hex."""
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def possible_document_names(document: str) -> set[str]:
    """The names that somebody may mean by an id, a text or the hash of a text."""
    return {document_name(document), text_document_name(document)}


def parse_purge_filter(body: bytes) -> EntryFilter:
    """The scope that a purge's JSON body names. Raises ApiError (400)."""
    try:
        scope = msgspec.json.decode(body, type=EntryFilter)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"The purge is not understood: {error}", code="invalid_purge") from None
    if scope.is_empty:
        raise bad_request(
            "A purge names `key`, `tenant`, `model`, `system`, `rag` or `document`, or says `all`.",
            code="invalid_purge",
        )
    if scope.all and not EntryFilter(all=True) == scope:
        raise bad_request("A purge of `all` takes nothing else.", param="all", code="invalid_purge")
    return scope


def parse_listing_filter(fields: Mapping[str, Any]) -> EntryFilter:
    """The scope of a listing that is narrowed down by these; by none, it is of all. Raises ApiError (400)."""
    try:
        scope = msgspec.convert(fields, EntryFilter)
    except msgspec.ValidationError as error:
        raise bad_request(f"The listing is not understood: {error}", code="invalid_query") from None
    return EntryFilter(all=True) if scope.is_empty else scope
