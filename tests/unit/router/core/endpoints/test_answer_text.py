"""The text of a response for people, at any endpoint; other bodies give no text, and nothing raises."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.recording.answer_text import (
    answer_contains,
    answer_preview,
    answer_text,
    preview_of_beginning,
)


def text(answer: Any) -> str | None:
    return answer_text(json.dumps(answer).encode())


def chat(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": at, "message": message} for at, message in enumerate(messages)]}


def test_the_text_of_a_chat_is_its_content() -> None:
    assert text(chat({"role": "assistant", "content": "Grüße\n\n[text]"})) == "Grüße\n\n[text]"


def test_every_choice_has_its_label() -> None:
    assert text(chat({"content": "One"}, {"content": "Two"})) == "[choice 0]\nOne\n\n[choice 1]\nTwo"
    assert text(chat({"content": "One"}, {"content": "Two", "refusal": "No"})) == (
        "[choice 0]\nOne\n\n[choice 1]\nTwo\n\n[choice 1: refusal]\nNo"
    )


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_precedes_the_content_under_a_label(name: str) -> None:
    assert text(chat({"content": "42", name: "6 by 7"})) == "[reasoning]\n6 by 7\n\n[text]\n42"


def test_tool_calls_have_a_name_and_arguments() -> None:
    calls = [
        {"type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}},
        {"type": "function", "function": {"name": "now"}},
        {"type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}},
    ]
    assert text(chat({"content": None, "tool_calls": calls})) == (
        '[tool call get_weather]\n{"city":"Paris"}\n\n[tool call now]\n\n[tool call sql]\nSELECT 1'
    )
    assert text(chat({"content": "", "function_call": {"name": "f", "arguments": "{}"}})) == "[tool call f]\n{}"


def test_content_may_be_parts_and_audio_has_a_transcript() -> None:
    assert text(chat({"content": [{"type": "text", "text": "Hi"}]})) == "Hi"
    assert text(chat({"content": None, "audio": {"transcript": "Hello"}})) == "[audio]\nHello"


def test_the_text_of_a_completion_is_its_text() -> None:
    assert text({"object": "text_completion", "choices": [{"index": 0, "text": "    return 1\n"}]}) == "    return 1\n"


def test_the_text_of_a_response_is_that_of_its_items() -> None:
    message: dict[str, Any] = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    assert text({"object": "response", "output": [message]}) == "Hi"
    output = [
        {"type": "reasoning", "summary": [{"text": "In short"}], "content": [{"text": "At length"}]},
        {**message, "content": [*message["content"], {"type": "refusal", "refusal": "No"}]},
        {"type": "function_call", "name": "f", "arguments": '{"a": 1}'},
        {"type": "web_search_call", "status": "completed"},
    ]
    assert text({"object": "response", "output": output}) == (
        "[reasoning]\nIn short\nAt length\n\n[text]\nHi\n\n[refusal]\nNo\n\n"
        '[tool call f]\n{"a": 1}\n\n[web_search_call]'
    )


def test_the_text_of_a_message_is_that_of_its_blocks() -> None:
    content = [
        {"type": "thinking", "thinking": "Hm", "signature": "x"},
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1]}},
    ]
    assert text({"type": "message", "content": content}) == (
        '[reasoning]\nHm\n\n[text]\nHi\n\n[tool call f]\n{"a":[1]}'
    )


def test_the_text_of_embeddings_is_their_number_and_dimensions() -> None:
    assert text({"data": [{"embedding": [0.5] * 384}]}) == "1 vector of 384 dimensions"
    base64_of_two_floats = "AAAAAAAAgD8="
    assert text({"data": [{"embedding": base64_of_two_floats}, {"embedding": [1, 2]}, {"embedding": [1]}]}) == (
        "2 vectors of 2 dimensions, 1 vector of 1 dimension"
    )


def test_a_stream_without_a_json_form_has_the_text_stored_with_it() -> None:
    assert text({"text": "For people"}) == "For people"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{}", b"nonsense", b"\xff", b'{"text": "\xff"}', b"[" * 100_000,
        b'{"choices":' * 100_000, b'{"choices": []}', b'{"choices": [{"message": {"content": ""}}]}', b'{"data": []}',
        b'{"error": {"message": "It failed."}}',
    ],
    ids=range(13),
)  # fmt: skip
def test_a_response_without_content_has_no_text(body: bytes) -> None:
    assert answer_text(body) is None


def test_half_a_pair_of_surrogates_does_not_hide_a_text() -> None:
    assert answer_text(b'{"text": "The \\ud800 sea"}') == "The \ufffd sea"


# -- the first words, and a search ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (chat({"content": " The\n\n sea.  "}), "The sea."),
        (chat({"content": "42", "reasoning": "6 by 7"}), "42"),
        (chat({"tool_calls": [{"function": {"name": "now", "arguments": "{}"}}]}), "[tool call now] {}"),
        (chat({"tool_calls": [{"function": {"name": "now"}}]}), "[tool call now]"),
        (chat({"content": ""}, {"content": "Two"}), "[choice 1] Two"),
        (chat({"content": "One"}, {"content": "Two"}), "One"),
        ({"choices": [{"text": "return 1"}]}, "return 1"),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]}, "Hi"),
        ({"content": [{"type": "text", "text": "Hi"}]}, "Hi"),
        ({"data": [{"embedding": [1, 2]}, {"embedding": [3, 4]}]}, "2 vectors of 2 dimensions"),
        ({"results": [{"index": 1, "relevance_score": 0.5, "document": {"text": "Sea"}}]}, "0.5000 document 1: Sea"),
        ({"tokens": [1, 2, 3]}, "3 tokens"),
        ({"unknown": 1}, None),
    ],
    ids=str,
)  # fmt: skip
def test_the_first_words_are_those_of_the_plain_text_or_say_what_it_is(answer: Any, words: str | None) -> None:
    assert answer_preview(json.dumps(answer).encode()) == words


def test_the_first_words_have_a_limit() -> None:
    assert answer_preview(json.dumps(chat({"content": "x" * 80})).encode()) == "x" * 80
    assert answer_preview(json.dumps(chat({"content": "x" * 81})).encode()) == "x" * 79 + "…"


@given(st.text(min_size=100), st.integers(0, 200), st.booleans())
def test_the_first_words_of_the_beginning_of_a_body_are_those_of_its_text(text_: str, cut: int, ascii_: bool) -> None:
    body = json.dumps(chat({"role": "assistant", "content": text_}), ensure_ascii=ascii_).encode()
    words = preview_of_beginning(body[:cut])
    if words:
        whole = answer_preview(body) or ""
        kept = words.removesuffix("…").rstrip("\ufffd")
        assert whole.startswith(kept[:79])


@pytest.mark.parametrize(
    ("answer", "found", "absent"),
    [
        (chat({"content": "The Sea", "reasoning": "It is WIDE"}), ["the sea", "is wide"], ["reasoning", "content"]),
        (
            chat({"tool_calls": [{"function": {"name": "get_sea", "arguments": '{"a":"Tide"}'}}]}),
            ["get_sea", "tide"], ["tool call"],
        ),
        (chat({"content": "One"}, {"content": "Two"}), ["one", "two"], ["choice", "assistant"]),
        ({"data": [{"embedding": [1, 2]}]}, [], ["vector", "1", "embedding"]),
        (
            {"results": [{"index": 1, "relevance_score": 0.5, "document": {"text": "The sea " * 40}}]},
            ["sea the"], ["0.5"],
        ),
        ({"data": [{"index": 0, "label": "Good", "probs": [0.5]}]}, ["good"], ["input"]),
        ({"prompt": "The sea"}, ["the sea"], ["prompt"]),
        ({"tokens": [1, 2, 3]}, [], ["tokens", "3"]),
        ({"text": "The sea"}, ["sea"], ["text"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_search_finds_what_the_model_wrote_and_no_label(answer: Any, found: list[str], absent: list[str]) -> None:
    body = json.dumps(answer).encode()
    assert [answer_contains(body, word) for word in found] == [True] * len(found)
    assert [answer_contains(body, word) for word in absent] == [False] * len(absent)


@pytest.mark.parametrize("body", [b"", b"nonsense", b"\xff", b"[" * 100_000])
def test_a_body_that_cannot_be_read_has_neither_words_nor_a_match(body: bytes) -> None:
    assert (answer_preview(body), preview_of_beginning(body), answer_contains(body, "a")) == (None, None, False)


NAMES = st.sampled_from((
    "choices", "message", "content", "text", "type", "output", "data", "embedding", "reasoning", "tool_calls",
    "function", "name", "arguments", "custom", "input", "summary", "audio", "transcript", "refusal", "function_call",
))  # fmt: skip
ODD = st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from(("text", "message", "reasoning", "tool_use", "thinking")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
"""JSON that resembles a response but is not one."""


@given(answer=st.dictionaries(st.sampled_from(("choices", "output", "content", "data", "text")), ODD))
def test_any_json_is_accepted(answer: dict[str, Any]) -> None:
    text(answer)


@given(body=st.binary())
def test_any_bytes_are_accepted(body: bytes) -> None:
    answer_text(body)
