"""Which text belongs to which part of the key, and that no part can flow into another."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.key import Markers
from router.core.cache.key_derivation import take_apart
from router.core.endpoints.request import Request
from router.errors import ApiError
from tests.support.factories import changed, chat, completion, key_of, parts_of, talk


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("print(X)", "print(x)"), ("x", "x\n"), ("x", " x"), ("x", "x "), ("a  b", "a b"), ("a\nb", "a\r\nb"),
        ("a\tb", "a    b"), ("e\u0301", "\u00e9"), ("", " "), ("x", "x\u200b"), ("1", "1.0"), ("K", "\u212a"),
    ],
)  # fmt: skip
def test_texts_that_differ_at_all_have_two_keys(one: str, other: str) -> None:
    assert changed(talk(("user", one)), talk(("user", other))) == {"query"}
    assert changed(talk(("system", one), ("user", "x")), talk(("system", other), ("user", "x"))) == {"system"}
    context = [f"<context>{text}</context>" for text in (one, other)]
    assert changed(talk(("user", context[0])), talk(("user", context[1]))) == {"rag"}
    assert changed(completion(prompt=one or "-"), completion(prompt=other)) == {"query"}


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_system_text_changes_the_system_part_alone(role: str) -> None:
    assert changed(talk((role, "a"), ("user", "x")), talk((role, "b"), ("user", "x"))) == {"system"}
    around = [talk((role, f"{text}<context>c</context>{text}"), ("user", "x")) for text in ("a", "b")]
    assert changed(*around) == {"system"}


def test_a_system_message_is_not_a_developer_message() -> None:
    assert changed(talk(("system", "a"), ("user", "x")), talk(("developer", "a"), ("user", "x"))) == {"query"}


def test_the_question_changes_the_query_part_alone() -> None:
    one = talk(("system", "s"), ("user", "<context>c</context>a"), documents=[{"text": "d"}])
    other = talk(("system", "s"), ("user", "<context>c</context>b"), documents=[{"text": "d"}])
    assert changed(one, other) == {"query"}


@pytest.mark.parametrize(
    "documents",
    [
        [{"text": "b"}], [{"text": "a", "doc_id": "1"}], [{"text": "a", "version": 2}], [{"text": "a"}, {"text": "a"}],
        [{"text": "a", "title": "t"}], [],
    ],
)  # fmt: skip
def test_another_document_or_version_of_it_changes_the_rag_part_alone(documents: Any) -> None:
    assert changed(chat(documents=[{"text": "a"}]), chat(documents=documents)) == {"rag"}


def test_documents_in_another_order_are_other_documents() -> None:
    one, other = {"text": "a"}, {"text": "b"}
    assert changed(chat(documents=[one, other]), chat(documents=[other, one])) == {"rag"}


def test_no_documents_is_the_same_as_null() -> None:
    assert changed(chat(), chat(documents=None)) == set()
    assert changed(chat(), chat(documents=[])) == {"rag"}


def test_the_text_between_the_markers_is_the_rag_part_in_system_and_user_messages() -> None:
    for role in ("system", "user"):
        asked = [talk((role, f"A<context>{text}</context>B"), ("user", "x")) for text in ("one", "two")]
        assert changed(*asked) == {"rag"}
    asked = [talk(("user", "x"), ("assistant", f"A<context>{text}</context>B")) for text in ("one", "two")]
    assert changed(*asked) == {"query"}


def test_the_markers_can_be_others() -> None:
    markers = Markers("[[", "]]")
    asked = [take_apart(talk(("user", f"a[[{text}]]<context>x</context>")), markers) for text in ("one", "two")]
    assert [parts.rag for parts in asked] == [["one"], ["two"]]
    assert asked[0].query == asked[1].query


def test_a_marker_that_is_not_closed_is_text() -> None:
    assert parts_of(talk(("user", "a<context>b"))).rag == []
    assert parts_of(talk(("user", "a</context>b<context>"))).rag == []
    assert changed(talk(("user", "a<context>b")), talk(("user", "a<context>c"))) == {"query"}


def test_each_context_of_a_text_is_a_piece_of_its_own() -> None:
    parts = parts_of(talk(("user", "a<context>1</context>b<context>2</context>c")))
    assert parts.rag == ["1", "2"]
    one = talk(("user", "<context>ab</context><context>c</context>"))
    assert changed(one, talk(("user", "<context>a</context><context>bc</context>"))) == {"rag"}


def test_the_question_is_the_last_user_message_without_its_context() -> None:
    parts = parts_of(talk(("user", "old"), ("assistant", "x"), ("user", "a<context>1</context>b"), ("assistant", "y")))
    assert parts.question == "a<context></context>b"
    several = talk(("user", [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]))
    assert parts_of(several).question == "a\nb"
    assert parts_of(completion(prompt=["p", "q"])).question == "p"
    assert parts_of(completion(prompt=[1, 2])).question == ""


# One part cannot flow into another


def test_system_ab_and_query_c_is_not_system_a_and_query_bc() -> None:
    assert changed(talk(("system", "ab"), ("user", "c")), talk(("system", "a"), ("user", "bc"))) == {"system", "query"}


def arrangements(pieces: list[str]) -> list[Request]:
    """The same texts, each time in other places."""
    a, b, c = pieces
    return [
        talk(("system", a), ("user", b), ("assistant", c)),
        talk(("system", a), ("assistant", b), ("user", c)),
        talk(("user", a), ("assistant", b), ("user", c)),
        talk(("system", a + b), ("user", c)),
        talk(("system", a), ("user", b + c)),
        talk(("system", a), ("system", b), ("user", c)),
        talk(("system", a + b), ("system", c)),
        talk(("system", [{"type": "text", "text": a}, {"type": "text", "text": b}]), ("user", c)),
        talk(("system", [{"type": "text", "text": a + b}]), ("user", c)),
        talk(("system", a), ("user", [{"type": "text", "text": b}, {"type": "text", "text": c}])),
        talk(("system", f"{a}<context>{b}</context>"), ("user", c)),
        talk(("system", f"<context>{a}</context>{b}"), ("user", c)),
        talk(("system", a), ("user", f"<context>{b}</context>{c}")),
        talk(("system", a), ("user", f"{b}<context>{c}</context>")),
        talk(("user", f"{a}<context>{b}</context>{c}")),
        talk(("user", f"{a}<context>{b}</context><context>{c}</context>")),
        talk(("user", f"{a}<context>{b + c}</context>")),
        talk(("system", a), ("user", c), documents=[{"text": b}]),
        talk(("user", c), documents=[{"text": a}, {"text": b}]),
        talk(("user", c), documents=[{"text": a + b}]),
        talk(("user", c), documents=[{"text": a, "title": b}]),
        talk(("user", a), x=b, y=c),
        talk(("user", a), x=[b, c]),
        talk(("user", a), x=b + c),
        talk((a, b), ("user", c)),
        talk(("user", a), ("tool", b), ("tool", c)),
    ]


@given(st.lists(st.text('ab<>/,[]{}":0 \n', min_size=1, max_size=8), min_size=3, max_size=3))
def test_the_same_text_in_other_places_has_another_key(pieces: list[str]) -> None:
    asked = arrangements(pieces)
    assert len({key_of(one).text for one in asked}) == len(asked)
    assert len({key_of(one).digest for one in asked}) == len(asked)


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=2, max_size=4), st.data())
def test_text_cut_into_messages_elsewhere_has_another_key(pieces: list[str], data: Any) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=3)))
    others = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for role in ("system", "user", "assistant"):
        one, other = (talk(*((role, piece) for piece in found)) for found in (pieces, others))
        assert (changed(one, other) == set()) == (pieces == others)


def test_content_as_text_and_as_parts_are_two_keys() -> None:
    for role in ("user", "system", "assistant"):
        assert changed(talk((role, "x")), talk((role, [{"type": "text", "text": "x"}])))


def test_no_content_no_text_and_no_field_are_three_keys() -> None:
    for role in ("user", "system", "assistant", "tool"):
        asked = [chat(messages=[{"role": role, **content}]) for content in ({}, {"content": None}, {"content": ""})]
        assert len({key_of(one).text for one in asked}) == 3


@pytest.mark.parametrize(
    "content", [[0], [1], ["text", 0], ["text", "x"], ["parts"], [["text", "x"], {}], ["none"], [None], [[]]]
)
def test_no_client_can_spell_what_the_key_writes_for_another_form(content: Any) -> None:
    with pytest.raises(ApiError):
        talk(("user", content))


def test_a_part_without_text_keeps_its_other_fields() -> None:
    image = [{"type": "image_url", "image_url": {"url": url}} for url in ("a", "b")]
    assert changed(talk(("user", [image[0]])), talk(("user", [image[1]]))) == {"query"}
    assert changed(talk(("system", [image[0]])), talk(("system", [image[1]]))) == {"query"}
    marked = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    assert changed(talk(("user", [{"type": "text", "text": "x"}])), talk(("user", [marked]))) == {"query"}
