"""By what names an entry knows the documents that it was made with."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.entry_filter import MAX_DOCUMENT, Scope, named_by, text_name
from router.core.cache.key import Markers
from tests.support.factories import JSON, chat, completion, parts_of, talk


def names(*documents: Any) -> tuple[str, ...]:
    return parts_of(chat(documents=[*documents])).documents()


def test_a_request_without_documents_has_none() -> None:
    assert parts_of(chat()).documents() == ()
    assert parts_of(chat(documents=[])).documents() == ()
    assert parts_of(chat(documents=None)).documents() == ()
    assert parts_of(completion()).documents() == ()


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
        ({"text": "x"}, text_name("x")),
        ({"text": ""}, text_name("")),
        ({"title": "t", "text": "x"}, text_name("x")),
        ({"doc_id": "", "text": "x"}, text_name("x")),
        ({"doc_id": "\n", "text": "x"}, text_name("\n")),
        ({"doc_id": "a" * MAX_DOCUMENT}, "a" * MAX_DOCUMENT),
        ({"doc_id": "a" * (MAX_DOCUMENT + 1)}, text_name("a" * (MAX_DOCUMENT + 1))),
        ({}, text_name("{}")),
        ({"b": 1, "a": [2]}, text_name('{"a":[2],"b":1}')),
        ({"text": ["x"]}, text_name('{"text":["x"]}')),
        ({"doc_id": ["a"], "text": "x"}, text_name("x")),
        ({"doc_id": True, "text": "x"}, text_name("x")),
        ({"doc_id": 1.5, "text": "x"}, text_name("x")),
    ],
)
def test_a_document_is_known_by_its_id_else_by_its_text_else_by_all_of_it(document: Any, name: str) -> None:
    assert names(document) == (name,)


def test_each_document_is_named_once_and_in_order() -> None:
    assert names({"doc_id": "b"}, {"doc_id": "a"}, {"text": "x"}, {"doc_id": "b", "text": "another version"}) == (
        "b",
        "a",
        text_name("x"),
    )


def test_what_stands_between_markers_is_a_document_of_its_text() -> None:
    asked = talk(
        ("system", "Use <context>one</context> and <context>two</context>."),
        ("user", [{"type": "text", "text": "<context>three</context>?"}]),
        ("assistant", "<context>not mine</context>"),
    )
    assert parts_of(asked).documents() == tuple(map(text_name, ("one", "two", "three")))


def test_other_markers_mark_other_documents() -> None:
    asked = talk(("user", "<context>no</context> [[yes]]"))
    assert parts_of(asked, Markers("[[", "]]")).documents() == (text_name("yes"),)


def test_a_text_is_the_same_document_wherever_it_stands() -> None:
    asked = talk(("user", "<context>x</context>?"), documents=[{"text": "x"}])
    assert parts_of(asked).documents() == (text_name("x"),)


def test_thousands_of_documents_are_all_named() -> None:
    assert names(*({"doc_id": n} for n in range(5000))) == tuple(map(str, range(5000)))


@given(st.lists(st.dictionaries(st.sampled_from(["doc_id", "id", "text", "title"]), JSON, max_size=4), max_size=5))
def test_no_document_is_too_odd_to_be_named(documents: list[Any]) -> None:
    found = names(*documents)
    assert len(found) <= len(documents)
    assert bool(found) is bool(documents)
    for name in found:
        assert 0 < len(name) <= MAX_DOCUMENT
        assert name.isprintable()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_a_purge_finds_a_document_by_its_id_and_by_its_text(said: str) -> None:
    key = f"rh:1:acme:llama:{'0' * 16}:{'0' * 16}:{'0' * 32}"
    for document in ({"text": said}, *([{"doc_id": said, "text": "x"}] if said else [])):
        known = names(document)
        assert set(known) <= named_by(said)
        assert Scope(document=said).matches(key, known)
        assert Scope(document=text_name(said)).matches(key, known) or known == (said,)
