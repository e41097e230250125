"""What a purge filter matches: all given conditions must hold, and an empty filter matches nothing."""

import fnmatch
import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.entry_filter import (
    MAX_DOCUMENT_NAME,
    EntryFilter,
    document_name,
    parse_listing_filter,
    parse_purge_filter,
    possible_document_names,
    text_document_name,
)
from router.core.cache.redis_keys import claim_key, flight_key, hits_key
from router.errors import ApiError
from tests.support.factories import TEXTS, conversation, derive_key, request_parts

KEY: Final = "rh:1:acme:llama:" + ":".join(("a" * 16, "b" * 16, "c" * 32))
OTHER: Final = "rh:1:other:mistral:" + ":".join(("d" * 16, "e" * 16, "f" * 32))

PARTS: Final[list[dict[str, Any]]] = [
    {"key": KEY},
    {"tenant": "acme"},
    {"model": "llama"},
    {"system": "a" * 16},
    {"rag": "b" * 16},
    {"document": "handbook"},
]
ANY_OF_THEM: Final = st.lists(st.sampled_from(PARTS), min_size=1).map(lambda parts: dict(_joined(parts)))
DOCUMENTS: Final = ("handbook", "faq")


def _joined(parts: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [item for part in parts for item in part.items()]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_each_part_matches_the_entries_that_have_it_and_no_others(part: dict[str, Any]) -> None:
    scope = EntryFilter(**part)
    assert scope.matches(KEY, DOCUMENTS)
    assert not scope.matches(OTHER, ("faq",))


@given(ANY_OF_THEM)
def test_an_entry_must_match_every_given_part(given_parts: dict[str, Any]) -> None:
    scope = EntryFilter(**given_parts)
    assert scope.matches(KEY, DOCUMENTS)
    for place, part in enumerate(("tenant", "model", "system", "rag"), 2):
        pieces = KEY.split(":")
        pieces[place] = OTHER.split(":")[place]
        assert scope.matches(":".join(pieces), DOCUMENTS) == (part not in given_parts and "key" not in given_parts)
    assert scope.matches(KEY, ("faq",)) == ("document" not in given_parts)


def test_an_empty_filter_matches_nothing() -> None:
    assert EntryFilter().is_empty
    assert not EntryFilter().matches(KEY)


def test_all_matches_every_entry_and_no_other_key() -> None:
    everything = EntryFilter(all=True)
    assert everything.matches(KEY)
    assert everything.matches(OTHER, DOCUMENTS)
    for name in (claim_key(KEY), flight_key(KEY, "1"), hits_key("acme"), "rh:1:purge", "something:else", ""):
        assert not everything.matches(name)


@given(ANY_OF_THEM, st.sampled_from([KEY, OTHER]))
def test_the_pattern_matches_at_least_what_the_filter_matches(given_parts: dict[str, Any], key: str) -> None:
    scope = EntryFilter(**given_parts)
    if scope.matches(key, DOCUMENTS):
        assert fnmatch.fnmatchcase(key, scope.key_pattern)
        assert fnmatch.fnmatchcase(claim_key(key), scope.claim_pattern)


def test_a_tenants_pattern_matches_nothing_of_a_tenant_whose_name_has_the_same_prefix() -> None:
    scope = EntryFilter(tenant="acme")
    assert not fnmatch.fnmatchcase(KEY.replace("acme", "acme2"), scope.key_pattern)
    assert not fnmatch.fnmatchcase(claim_key(KEY.replace("acme", "my.acme")), scope.claim_pattern)


# -- documents --------------------------------------------------------------------------------------------------------


def test_a_document_is_named_by_its_id_by_its_text_and_by_the_hash_of_its_text() -> None:
    request = conversation(
        ("user", "<context>the whole text</context> Why?"), documents=[{"doc_id": "handbook", "text": "t"}]
    )
    key, names = derive_key(request).text, request_parts(request).document_names()
    for document in ("handbook", "the whole text", text_document_name("the whole text")):
        assert EntryFilter(document=document).matches(key, names)
    for document in ("Handbook", "t", "the whole", "", text_document_name("handbook")):
        assert not EntryFilter(document=document).matches(key, names)


@pytest.mark.parametrize("doc_id", ["x" * (MAX_DOCUMENT_NAME + 1), "line\nbreak", "nul\0", ""])
def test_an_id_that_a_field_cannot_contain_is_matched_by_its_hash(doc_id: str) -> None:
    assert document_name(doc_id) == text_document_name(doc_id)
    assert document_name(doc_id) in possible_document_names(doc_id)


@given(TEXTS | st.text(max_size=300))
def test_a_record_is_short_and_matches_what_the_filter_matches(document: str) -> None:
    scope = EntryFilter(tenant="acme", document=document)
    decoded = parse_purge_filter(scope.to_json())
    assert len(scope.to_json()) < 1000
    for named in possible_document_names(document):
        assert decoded.matches(KEY, (named,))
    assert not decoded.matches(KEY, ("something else",))


def test_a_filter_that_json_cannot_represent_is_still_a_record() -> None:
    assert parse_purge_filter(EntryFilter(document="\udcff").to_json()).matches(KEY, (document_name("\udcff"),))


# -- parsing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [*PARTS, {"all": True}, {"tenant": "acme", "model": "llama"}], ids=str)
def test_a_filter_is_read_as_it_was_written(body: dict[str, Any]) -> None:
    assert parse_purge_filter(json.dumps(body).encode()) == EntryFilter(**body)
    assert json.loads(EntryFilter(**body).to_json()) == body


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b"null", b"nonsense", b"\xff", b'{"all": false}', b'{"tenant": null}',
        b'{"tenant": "Acme"}', b'{"tenant": "*"}', b'{"tenant": "a:b"}', b'{"tenant": ""}', b'{"model": "llama\\n"}',
        b'{"system": "abc"}', b'{"rag": "' + b"G" * 16 + b'"}', b'{"key": "rh:1:acme"}',
        b'{"key": "rh:1:*:*:' + b"a" * 16 + b":" + b"b" * 16 + b":" + b"c" * 32 + b'"}',
        b'{"key": "rh:1:claim:' + KEY[5:].encode() + b'"}',
        b'{"tenants": "acme"}', b'{"all": true, "tenant": "acme"}', b'{"all": 1}', b'{"document": 5}',
        b"[" * 100_000,
    ],
    ids=lambda body: body[:30].decode("latin-1"),
)  # fmt: skip
def test_an_empty_or_invalid_filter_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_purge_filter(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_purge")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("key", "nonsense", "`key` must be a whole key, as in X-Cache-Key: rh:1:TENANT:MODEL:SYSTEM:RAG:QUERY."),
        ("tenant", "Acme", "`tenant` must be 1 to 64 of the characters a-z, 0-9, `.`, `_` and `-`."),
        ("model", "", "`model` must be 1 to 64 of the characters a-z, 0-9, `.`, `_` and `-`."),
        ("system", "abc", "`system` must be 16 hexadecimal digits in lower case, as in X-Cache-Key."),
        ("rag", "*", "`rag` must be 16 hexadecimal digits in lower case, as in X-Cache-Key."),
    ],
)
def test_a_value_in_the_wrong_form_is_refused_in_plain_words(field: str, value: str, message: str) -> None:
    with pytest.raises(ApiError) as purge:
        parse_purge_filter(json.dumps({field: value}).encode())
    with pytest.raises(ApiError) as listing:
        parse_listing_filter({field: value})
    assert (purge.value.message, purge.value.param) == (f"Invalid purge: {message}", field)
    assert (listing.value.message, listing.value.param) == (f"Invalid filter: {message}", field)


@given(st.binary(max_size=60) | st.recursive(st.text(), st.lists).map(lambda value: json.dumps(value).encode()))
def test_no_body_raises_anything_but_a_refusal(body: bytes) -> None:
    with pytest.raises(ApiError):
        parse_purge_filter(body)
