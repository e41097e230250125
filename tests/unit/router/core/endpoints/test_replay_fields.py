"""Every field of an answer survives in the other form: reasoning, refusals, calls, log probabilities, vendors' own."""

from typing import Any

from router.core.endpoints.replay import replay
from tests.support.factories import HELLO, ROLE, USAGE, chat, chunk, completion, piece
from tests.support.replay_helpers import (
    CALLS,
    STREAM,
    answer,
    as_json,
    bare,
    call,
    choice,
    events_of,
    kept,
    there_and_back,
)


def test_a_stream_gives_the_json_answer_of_openai() -> None:
    assert as_json(*HELLO, USAGE) == {
        "id": "c1", "object": "chat.completion", "created": 7, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }  # fmt: skip


def test_a_json_answer_gives_the_stream_of_openai() -> None:
    told = events_of(replay(kept(answer(choice(content="Hello"))), STREAM))
    assert [event["choices"][0]["delta"] for event in told] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
    ]
    assert [event["choices"][0]["finish_reason"] for event in told] == [None, "stop"]
    assert all(event["object"] == "chat.completion.chunk" and event["id"] == "c1" for event in told)


def test_reasoning_and_a_refusal_survive() -> None:
    events = [
        ROLE,
        chunk(piece(reasoning="Let ")),
        chunk(piece(reasoning="me.")),
        chunk(piece(refusal="I ")),
        chunk(piece(refusal="can't.")),
        chunk(piece(finish="stop")),
    ]
    message = as_json(*events)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "", "reasoning": "Let me.", "refusal": "I can't."}
    body = answer(choice(**message))
    assert bare(there_and_back(body)) == bare(body)


def test_tool_calls_in_pieces_keep_their_order_and_ids() -> None:
    events = [
        ROLE,
        call(0, id="a", type="function", function={"name": "f", "arguments": ""}),
        call(0, function={"arguments": '{"x": '}),
        call(1, id="b", type="function", function={"name": "g", "arguments": "{"}),
        call(0, function={"arguments": '"é \\n"}'}),
        call(1, function={"arguments": "}"}, id=None, type=None),
        chunk(piece(finish="tool_calls")),
    ]
    assert as_json(*events)["choices"][0]["message"]["tool_calls"] == CALLS


def test_tool_calls_of_a_json_answer_are_streamed_with_their_index() -> None:
    body = answer(choice(finish="tool_calls", content=None, tool_calls=CALLS))
    told = events_of(replay(kept(body), STREAM))
    assert told[-1]["choices"][0]["delta"] == {"tool_calls": [{"index": i, **one} for i, one in enumerate(CALLS)]}
    assert bare(there_and_back(body)["choices"][0]["message"]["tool_calls"]) == CALLS


def test_fields_of_a_call_may_be_null_before_they_are_told() -> None:
    events = [
        chunk(piece(role="assistant", tool_calls=None, function_call=None)),
        call(0, id="a", type="function", function=None),
        call(0, function={"name": "f", "arguments": "{}"}),
        chunk(piece(finish="tool_calls", tool_calls=None)),
    ]
    message = as_json(*events)["choices"][0]["message"]
    assert message["tool_calls"] == [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_the_older_function_call_survives() -> None:
    events = [
        ROLE,
        chunk(piece(function_call={"name": "f", "arguments": "{"})),
        chunk(piece(function_call={"arguments": "}"})),
        chunk(piece(finish="function_call")),
    ]
    assert as_json(*events)["choices"][0]["message"]["function_call"] == {"name": "f", "arguments": "{}"}


def test_log_probabilities_of_a_chat_are_joined_in_order() -> None:
    tokens: list[Any] = [{"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in "abc"]
    pieces: list[Any] = [
        {**piece(content="ab"), "logprobs": {"content": tokens[:2], "refusal": None}},
        {**piece(content="c"), "logprobs": {"content": tokens[2:], "refusal": None}},
        {**piece(finish="stop"), "logprobs": None},
    ]
    got = as_json(ROLE, *map(chunk, pieces))["choices"][0]
    assert got["logprobs"] == {"content": tokens, "refusal": None}
    body = answer(choice(content="abc", beside={"logprobs": got["logprobs"]}))
    assert bare(there_and_back(body)) == bare(body)


def test_log_probabilities_of_a_completion_are_joined_in_order() -> None:
    asked = completion(stream=True)
    one = {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0]}
    two = {"tokens": ["b"], "token_logprobs": [-1.5], "top_logprobs": [{"b": -1.5}], "text_offset": [1]}
    events = [
        {"choices": [{"index": 0, "text": "a", "logprobs": one, "finish_reason": None}]},
        {"choices": [{"index": 0, "text": "b", "logprobs": two, "finish_reason": "stop"}]},
    ]
    got = as_json(*events, asked=asked)["choices"][0]
    assert got["logprobs"] == {name: one[name] + two[name] for name in one}  # type: ignore[operator]
    body = {"id": "x", "choices": [got], "usage": None}
    assert bare(there_and_back(body, completion())["choices"]) == bare(body["choices"])


def test_choices_that_come_mixed_are_told_apart() -> None:
    events = [
        chunk(piece(1, role="assistant", content="")),
        chunk(piece(0, role="assistant", content="")),
        chunk(piece(1, content="B")),
        chunk(piece(0, content="A")),
        chunk(piece(0, content="a"), piece(1, content="b")),
        chunk(piece(0, finish="stop")),
        chunk(piece(1, finish="length")),
    ]
    asked = chat(stream=True, n=2)
    got = as_json(*events, asked=asked)["choices"]
    assert [(one["index"], one["message"]["content"], one["finish_reason"]) for one in got] == [
        (0, "Aa", "stop"),
        (1, "Bb", "length"),
    ]
    body = answer(choice(0, content="Aa"), choice(1, "length", content="Bb"))
    assert bare(there_and_back(body, chat(n=2))) == bare(body)


def test_vendor_fields_survive_at_every_level() -> None:
    events = [
        {**ROLE, "citations": ["u"], "nothing": None},
        chunk({**piece(content="x", mood="glad"), "stop_reason": None, "score": 1.5}),
        chunk({**piece(finish="stop"), "stop_reason": 7, "token_ids": None}, citations=["u"], system_fingerprint="f"),
    ]
    got = as_json(*events)
    assert (got["citations"], got["system_fingerprint"]) == (["u"], "f")
    assert (got["choices"][0]["score"], got["choices"][0]["stop_reason"]) == (1.5, 7)
    assert got["choices"][0]["message"]["mood"] == "glad"
    assert bare(there_and_back(got)) == bare(got)


def test_token_ids_are_joined_in_order() -> None:
    pieces = [{**piece(content="x"), "token_ids": [1, 2]}, {**piece(finish="stop"), "token_ids": [3]}]
    assert as_json(ROLE, *map(chunk, pieces))["choices"][0]["token_ids"] == [1, 2, 3]
