"""Which entries a purge or a listing is about: one entry, or all entries that have given parts in common."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import xxhash
from msgspec import Meta

from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import claim_key, entry_key
from router.errors import ApiError, bad_request

MAX_DOCUMENT_NAME: Final = 128
"""Maximum length of a document id in characters; a longer id is replaced by its hash."""

MAX_PAGE_SIZE: Final = 1000
"""Maximum number of entries on one page of a listing."""

# `\Z` and not `$`, which would also match before a newline at the end.
KeyName = Annotated[str, Meta(pattern=r"^[a-z0-9._-]{1,64}\Z")]
HexHash = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
EntryKey = Annotated[
    str,
    Meta(pattern=r"^rh:1:[a-z0-9._-]{1,64}:[a-z0-9._-]{1,64}:[0-9a-f]{16}:[0-9a-f]{16}:[0-9a-f]{32}(\.[1-9][0-9]?)?\Z"),
]

_NAME: Final = "must be 1 to 64 of the characters a-z, 0-9, `.`, `_` and `-`"
_HASH: Final = "must be 16 hexadecimal digits in lower case, as in X-Cache-Key"
_FORMS: Final = {
    "key": "must be a whole key, as in X-Cache-Key: rh:1:TENANT:MODEL:SYSTEM:RAG:QUERY",
    "tenant": _NAME,
    "model": _NAME,
    "system": _HASH,
    "rag": _HASH,
}


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Matches the entries for which all given fields hold.

    `system` and `rag` are hashes in hex, as in the key; `document` is the id, the text, or the hash of the text of a
    document. An empty filter matches nothing; `all` matches everything.
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
        return not self.all and all(
            part is None for part in (self.key, self.tenant, self.model, self.system, self.rag, self.document)
        )

    def matches(self, key: str, documents: tuple[str, ...] = ()) -> bool:
        if self.is_empty or (self.key is not None and key != self.key):
            return False
        if self.document is not None and not possible_document_names(self.document) & set(documents):
            return False
        parts = KeyParts.try_parse(key)
        return (
            parts is not None
            and self.tenant in (None, parts.tenant)
            and self.model in (None, parts.model)
            and self.system in (None, parts.system)
            and self.rag in (None, parts.rag)
        )

    @property
    def key_pattern(self) -> str:
        """A pattern for Redis' SCAN MATCH that finds at least the matching entries; it ignores `document`."""
        # Nothing needs escaping: no part can contain a special character of a pattern.
        return self.key or entry_key(
            self.tenant or "*", self.model or "*", self.system or "*", self.rag or "*", query="*"
        )

    def to_json(self) -> bytes:
        """The filter as JSON of bounded length, for the purge log; a long document is replaced by its name."""
        document = None if self.document is None else document_name(self.document)
        return msgspec.json.encode(msgspec.structs.replace(self, document=document))

    @property
    def claim_pattern(self) -> str:
        return claim_key(self.key_pattern)


def document_name(doc_id: str) -> str:
    """The name that an entry stores for a document with this id."""
    return doc_id if 0 < len(doc_id) <= MAX_DOCUMENT_NAME and doc_id.isprintable() else text_document_name(doc_id)


def text_document_name(text: str) -> str:
    """The name that an entry stores for a document without an id: the xxh3-64 of its text in hex."""
    # surrogatepass: JSON may contain lone surrogates, which plain UTF-8 refuses.
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def possible_document_names(document: str) -> set[str]:
    """The names under which an entry may store what a client gives as an id, a text, or the hash of a text."""
    return {document_name(document), text_document_name(document)}


def parse_purge_filter(body: bytes) -> EntryFilter:
    """Parses the JSON body of a purge. Raises ApiError (400) if it is invalid or empty."""
    try:
        entry_filter = msgspec.json.decode(body, type=EntryFilter)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid("purge", error, code="invalid_purge") from None
    if entry_filter.is_empty:
        raise bad_request(
            "A purge needs `key`, `tenant`, `model`, `system`, `rag` or `document`, or `all`.",
            code="invalid_purge",
        )
    if entry_filter.all and not EntryFilter(all=True) == entry_filter:
        raise bad_request("A purge of `all` takes no other field.", param="all", code="invalid_purge")
    return entry_filter


def parse_listing_filter(fields: Mapping[str, Any]) -> EntryFilter:
    """Parses the query parameters of a listing; without any, the filter matches all. Raises ApiError (400)."""
    try:
        entry_filter = msgspec.convert(fields, EntryFilter)
    except msgspec.ValidationError as error:
        raise _invalid("filter", error, code="invalid_query") from None
    return EntryFilter(all=True) if entry_filter.is_empty else entry_filter


def _invalid(what: str, error: Exception, *, code: str) -> ApiError:
    """The refusal. msgspec's message has a regular expression where a text does not have the form of its field."""
    message = str(error)
    field = message.rpartition("`$.")[2].removesuffix("`")
    if "matching regex" in message and field in _FORMS:
        return bad_request(f"Invalid {what}: `{field}` {_FORMS[field]}.", param=field, code=code)
    return bad_request(f"Invalid {what}: {message}", code=code)
