"""The names under which an entry records the documents that it was made with."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.entry_filter import MAX_DOCUMENT_NAME, EntryFilter, possible_document_names, text_document_name
from router.core.cache.key import ContextMarkers
from tests.support.factories import JSON_VALUES, chat, completion, conversation, request_parts


def names(*documents: Any) -> tuple[str, ...]:
    return request_parts(chat(documents=[*documents])).document_names()


def test_a_request_without_documents_has_none() -> None:
    assert request_parts(chat()).document_names() == ()
    assert request_parts(chat(documents=[])).document_names() == ()
    assert request_parts(chat(documents=None)).document_names() == ()
    assert request_parts(completion()).document_names() == ()


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"doc_id": "a", "text": "x"}, "a"),
        ({"id": "b", "text": "x"}, "b"),
        ({"doc_id": "a", "id": "b", "text": "x"}, "a"),
        ({"doc_id": "", "id": "b", "text": "x"}, "b"),
        ({"doc_id": None, "id": "b", "text": "x"}, "b"),
        ({"doc_id": 7, "text": "x"}, "7"),
        ({"doc_id": 0, "text": "x"}, "0"),
        ({"doc_id": -1.0, "text": "x"}, "-1"),
        ({"doc_id": "Größe 7", "text": "x"}, "Größe 7"),
        ({"text": "x"}, text_document_name("x")),
        ({"text": ""}, text_document_name("")),
        ({"title": "t", "text": "x"}, text_document_name("x")),
        ({"doc_id": "", "text": "x"}, text_document_name("x")),
        ({"doc_id": "\n", "text": "x"}, text_document_name("\n")),
        ({"doc_id": "a" * MAX_DOCUMENT_NAME}, "a" * MAX_DOCUMENT_NAME),
        ({"doc_id": "a" * (MAX_DOCUMENT_NAME + 1)}, text_document_name("a" * (MAX_DOCUMENT_NAME + 1))),
        ({}, text_document_name("{}")),
        ({"b": 1, "a": [2]}, text_document_name('{"a":[2],"b":1}')),
        ({"text": ["x"]}, text_document_name('{"text":["x"]}')),
        ({"doc_id": ["a"], "text": "x"}, text_document_name("x")),
        ({"doc_id": True, "text": "x"}, text_document_name("x")),
        ({"doc_id": 1.5, "text": "x"}, text_document_name("x")),
    ],
)
def test_a_document_is_identified_by_its_id_else_by_its_text_else_by_all_of_it(document: Any, name: str) -> None:
    assert names(document) == (name,)


def test_each_document_is_named_once_and_in_order() -> None:
    assert names({"doc_id": "b"}, {"doc_id": "a"}, {"text": "x"}, {"doc_id": "b", "text": "another version"}) == (
        "b",
        "a",
        text_document_name("x"),
    )


def test_text_between_markers_is_a_document() -> None:
    request = conversation(
        ("system", "Use <context>one</context> and <context>two</context>."),
        ("user", [{"type": "text", "text": "<context>three</context>?"}]),
        ("assistant", "<context>not mine</context>"),
    )
    assert request_parts(request).document_names() == tuple(map(text_document_name, ("one", "two", "three")))


def test_other_markers_mark_other_documents() -> None:
    request = conversation(("user", "<context>no</context> [[yes]]"))
    assert request_parts(request, ContextMarkers("[[", "]]")).document_names() == (text_document_name("yes"),)


def test_a_text_is_the_same_document_wherever_it_occurs() -> None:
    request = conversation(("user", "<context>x</context>?"), documents=[{"text": "x"}])
    assert request_parts(request).document_names() == (text_document_name("x"),)


def test_thousands_of_documents_are_all_named() -> None:
    assert names(*({"doc_id": n} for n in range(5000))) == tuple(map(str, range(5000)))


@given(
    st.lists(st.dictionaries(st.sampled_from(["doc_id", "id", "text", "title"]), JSON_VALUES, max_size=4), max_size=5)
)
def test_any_document_can_be_named(documents: list[Any]) -> None:
    document_names = names(*documents)
    assert len(document_names) <= len(documents)
    assert bool(document_names) is bool(documents)
    for name in document_names:
        assert 0 < len(name) <= MAX_DOCUMENT_NAME
        assert name.isprintable()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_a_purge_finds_a_document_by_its_id_and_by_its_text(text: str) -> None:
    key = f"rh:1:acme:llama:{'0' * 16}:{'0' * 16}:{'0' * 32}"
    for document in ({"text": text}, *([{"doc_id": text, "text": "x"}] if text else [])):
        known = names(document)
        assert set(known) <= possible_document_names(text)
        assert EntryFilter(document=text).matches(key, known)
        assert EntryFilter(document=text_document_name(text)).matches(key, known) or known == (text,)
