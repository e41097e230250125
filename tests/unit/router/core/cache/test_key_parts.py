"""The part of the key that a text belongs to; no text can move from one part to another."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.key import ContextMarkers
from router.core.cache.key_derivation import split_parts
from router.core.endpoints.endpoint import InferenceRequest
from router.errors import ApiError
from tests.support.factories import changed_parts, chat, completion, conversation, derive_key, request_parts


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("print(X)", "print(x)"), ("x", "x\n"), ("x", " x"), ("x", "x "), ("a  b", "a b"), ("a\nb", "a\r\nb"),
        ("a\tb", "a    b"), ("e\u0301", "\u00e9"), ("", " "), ("x", "x\u200b"), ("1", "1.0"), ("K", "\u212a"),
    ],
)  # fmt: skip
def test_texts_that_differ_at_all_have_two_keys(one: str, other: str) -> None:
    assert changed_parts(conversation(("user", one)), conversation(("user", other))) == {"query"}
    assert changed_parts(
        conversation(("system", one), ("user", "x")), conversation(("system", other), ("user", "x"))
    ) == {"system"}
    context = [f"<context>{text}</context>" for text in (one, other)]
    assert changed_parts(conversation(("user", context[0])), conversation(("user", context[1]))) == {"rag"}
    assert changed_parts(completion(prompt=one or "-"), completion(prompt=other)) == {"query"}


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_system_text_changes_only_the_system_part(role: str) -> None:
    assert changed_parts(conversation((role, "a"), ("user", "x")), conversation((role, "b"), ("user", "x"))) == {
        "system"
    }
    around = [conversation((role, f"{text}<context>c</context>{text}"), ("user", "x")) for text in ("a", "b")]
    assert changed_parts(*around) == {"system"}


def test_a_system_message_is_not_a_developer_message() -> None:
    assert changed_parts(
        conversation(("system", "a"), ("user", "x")), conversation(("developer", "a"), ("user", "x"))
    ) == {"query"}


def test_the_question_changes_only_the_query_part() -> None:
    one = conversation(("system", "s"), ("user", "<context>c</context>a"), documents=[{"text": "d"}])
    other = conversation(("system", "s"), ("user", "<context>c</context>b"), documents=[{"text": "d"}])
    assert changed_parts(one, other) == {"query"}


@pytest.mark.parametrize(
    "documents",
    [
        [{"text": "b"}], [{"text": "a", "doc_id": "1"}], [{"text": "a", "version": 2}], [{"text": "a"}, {"text": "a"}],
        [{"text": "a", "title": "t"}], [],
    ],
)  # fmt: skip
def test_another_document_or_version_changes_only_the_rag_part(documents: Any) -> None:
    assert changed_parts(chat(documents=[{"text": "a"}]), chat(documents=documents)) == {"rag"}


def test_documents_in_another_order_are_other_documents() -> None:
    one, other = {"text": "a"}, {"text": "b"}
    assert changed_parts(chat(documents=[one, other]), chat(documents=[other, one])) == {"rag"}


def test_no_documents_is_the_same_as_null() -> None:
    assert changed_parts(chat(), chat(documents=None)) == set()
    assert changed_parts(chat(), chat(documents=[])) == {"rag"}


def test_the_text_between_the_markers_is_the_rag_part_in_system_and_user_messages() -> None:
    for role in ("system", "user"):
        requests = [conversation((role, f"A<context>{text}</context>B"), ("user", "x")) for text in ("one", "two")]
        assert changed_parts(*requests) == {"rag"}
    requests = [conversation(("user", "x"), ("assistant", f"A<context>{text}</context>B")) for text in ("one", "two")]
    assert changed_parts(*requests) == {"query"}


def test_the_markers_are_configurable() -> None:
    markers = ContextMarkers("[[", "]]")
    requests = [
        split_parts(conversation(("user", f"a[[{text}]]<context>x</context>")), markers) for text in ("one", "two")
    ]
    assert [parts.rag for parts in requests] == [["one"], ["two"]]
    assert requests[0].query == requests[1].query


def test_an_unclosed_marker_is_text() -> None:
    assert request_parts(conversation(("user", "a<context>b"))).rag == []
    assert request_parts(conversation(("user", "a</context>b<context>"))).rag == []
    assert changed_parts(conversation(("user", "a<context>b")), conversation(("user", "a<context>c"))) == {"query"}


def test_each_context_of_a_text_is_a_separate_document() -> None:
    parts = request_parts(conversation(("user", "a<context>1</context>b<context>2</context>c")))
    assert parts.rag == ["1", "2"]
    one = conversation(("user", "<context>ab</context><context>c</context>"))
    assert changed_parts(one, conversation(("user", "<context>a</context><context>bc</context>"))) == {"rag"}


def test_the_question_is_the_last_user_message_without_its_context() -> None:
    parts = request_parts(
        conversation(("user", "old"), ("assistant", "x"), ("user", "a<context>1</context>b"), ("assistant", "y"))
    )
    assert parts.question == "a<context></context>b"
    several = conversation(
        ("user", [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}])
    )
    assert request_parts(several).question == "a\nb"
    assert request_parts(completion(prompt=["p", "q"])).question == "p"
    assert request_parts(completion(prompt=[1, 2])).question == ""


# Parts are delimited


def test_system_ab_and_query_c_is_not_system_a_and_query_bc() -> None:
    assert changed_parts(
        conversation(("system", "ab"), ("user", "c")), conversation(("system", "a"), ("user", "bc"))
    ) == {"system", "query"}


def arrangements(pieces: list[str]) -> list[InferenceRequest]:
    """The same texts in different places."""
    a, b, c = pieces
    return [
        conversation(("system", a), ("user", b), ("assistant", c)),
        conversation(("system", a), ("assistant", b), ("user", c)),
        conversation(("user", a), ("assistant", b), ("user", c)),
        conversation(("system", a + b), ("user", c)),
        conversation(("system", a), ("user", b + c)),
        conversation(("system", a), ("system", b), ("user", c)),
        conversation(("system", a + b), ("system", c)),
        conversation(("system", [{"type": "text", "text": a}, {"type": "text", "text": b}]), ("user", c)),
        conversation(("system", [{"type": "text", "text": a + b}]), ("user", c)),
        conversation(("system", a), ("user", [{"type": "text", "text": b}, {"type": "text", "text": c}])),
        conversation(("system", f"{a}<context>{b}</context>"), ("user", c)),
        conversation(("system", f"<context>{a}</context>{b}"), ("user", c)),
        conversation(("system", a), ("user", f"<context>{b}</context>{c}")),
        conversation(("system", a), ("user", f"{b}<context>{c}</context>")),
        conversation(("user", f"{a}<context>{b}</context>{c}")),
        conversation(("user", f"{a}<context>{b}</context><context>{c}</context>")),
        conversation(("user", f"{a}<context>{b + c}</context>")),
        conversation(("system", a), ("user", c), documents=[{"text": b}]),
        conversation(("user", c), documents=[{"text": a}, {"text": b}]),
        conversation(("user", c), documents=[{"text": a + b}]),
        conversation(("user", c), documents=[{"text": a, "title": b}]),
        conversation(("user", a), x=b, y=c),
        conversation(("user", a), x=[b, c]),
        conversation(("user", a), x=b + c),
        conversation((a, b), ("user", c)),
        conversation(("user", a), ("tool", b), ("tool", c)),
    ]


@given(st.lists(st.text('ab<>/,[]{}":0 \n', min_size=1, max_size=8), min_size=3, max_size=3))
def test_the_same_text_in_other_places_has_another_key(pieces: list[str]) -> None:
    requests = arrangements(pieces)
    assert len({derive_key(one).text for one in requests}) == len(requests)
    assert len({derive_key(one).digest for one in requests}) == len(requests)


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=2, max_size=4), st.data())
def test_text_split_into_messages_at_another_point_has_another_key(pieces: list[str], data: Any) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=3)))
    others = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for role in ("system", "user", "assistant"):
        one, other = (conversation(*((role, piece) for piece in cut)) for cut in (pieces, others))
        assert (changed_parts(one, other) == set()) == (pieces == others)


def test_content_as_text_and_as_parts_are_two_keys() -> None:
    for role in ("user", "system", "assistant"):
        assert changed_parts(conversation((role, "x")), conversation((role, [{"type": "text", "text": "x"}])))


def test_no_content_no_text_and_no_field_are_three_keys() -> None:
    for role in ("user", "system", "assistant", "tool"):
        requests = [chat(messages=[{"role": role, **content}]) for content in ({}, {"content": None}, {"content": ""})]
        assert len({derive_key(one).text for one in requests}) == 3


def test_texts_as_parts_are_a_key_of_their_own_with_the_context_in_its_own_part() -> None:
    for role in ("user", "system", "assistant"):
        contents = ("x", [{"type": "text", "text": "x"}], ["x"], ["text", "x"], ["parts", "x"], ["none"], ["x", ""])
        keys = {derive_key(conversation((role, content))).text for content in contents}
        assert len(keys) == len(contents)
    one, other = (conversation(("user", [f"<context>{text}</context>", "Why?"])) for text in "ab")
    assert changed_parts(one, other) == {"rag"}


@pytest.mark.parametrize("content", [[0], [1], ["text", 0], [["text", "x"], {}], [None], [[]]])
def test_a_request_cannot_imitate_the_placeholders_of_the_key(content: Any) -> None:
    with pytest.raises(ApiError):
        conversation(("user", content))


def test_a_part_without_text_keeps_its_other_fields() -> None:
    image = [{"type": "image_url", "image_url": {"url": url}} for url in ("a", "b")]
    assert changed_parts(conversation(("user", [image[0]])), conversation(("user", [image[1]]))) == {"query"}
    assert changed_parts(conversation(("system", [image[0]])), conversation(("system", [image[1]]))) == {"query"}
    marked = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    assert changed_parts(conversation(("user", [{"type": "text", "text": "x"}])), conversation(("user", [marked]))) == {
        "query"
    }
