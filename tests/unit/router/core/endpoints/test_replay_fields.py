"""Every field of a response survives in the other form: reasoning, refusals, tool calls, logprobs, vendor fields."""

from typing import Any

from router.core.endpoints.recording.replay import replay
from tests.support.factories import HELLO_EVENTS, ROLE_EVENT, USAGE_EVENT, chat, chat_event, choice_delta, completion
from tests.support.replay_helpers import (
    STREAM,
    TOOL_CALLS,
    chat_response,
    entry_of_body,
    record_and_replay_json,
    response_choice,
    round_trip,
    stream_events,
    tool_call_event,
    without_nulls,
)


def test_a_stream_gives_the_json_response_of_openai() -> None:
    assert record_and_replay_json(*HELLO_EVENTS, USAGE_EVENT) == {
        "id": "c1", "object": "chat.completion", "created": 7, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }  # fmt: skip


def test_a_json_response_gives_the_stream_of_openai() -> None:
    events = stream_events(replay(entry_of_body(chat_response(response_choice(content="Hello"))), STREAM))
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, "stop"]
    assert all(event["object"] == "chat.completion.chunk" and event["id"] == "c1" for event in events)


def test_reasoning_and_a_refusal_survive() -> None:
    events = [
        ROLE_EVENT,
        chat_event(choice_delta(reasoning="Let ")),
        chat_event(choice_delta(reasoning="me.")),
        chat_event(choice_delta(refusal="I ")),
        chat_event(choice_delta(refusal="can't.")),
        chat_event(choice_delta(finish="stop")),
    ]
    message = record_and_replay_json(*events)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "", "reasoning": "Let me.", "refusal": "I can't."}
    body = chat_response(response_choice(**message))
    assert without_nulls(round_trip(body)) == without_nulls(body)


def test_tool_calls_in_pieces_keep_their_order_and_ids() -> None:
    events = [
        ROLE_EVENT,
        tool_call_event(0, id="a", type="function", function={"name": "f", "arguments": ""}),
        tool_call_event(0, function={"arguments": '{"x": '}),
        tool_call_event(1, id="b", type="function", function={"name": "g", "arguments": "{"}),
        tool_call_event(0, function={"arguments": '"é \\n"}'}),
        tool_call_event(1, function={"arguments": "}"}, id=None, type=None),
        chat_event(choice_delta(finish="tool_calls")),
    ]
    assert record_and_replay_json(*events)["choices"][0]["message"]["tool_calls"] == TOOL_CALLS


def test_tool_calls_of_a_json_response_are_streamed_with_their_index() -> None:
    body = chat_response(response_choice(finish="tool_calls", content=None, tool_calls=TOOL_CALLS))
    events = stream_events(replay(entry_of_body(body), STREAM))
    assert events[-1]["choices"][0]["delta"] == {
        "tool_calls": [{"index": i, **one} for i, one in enumerate(TOOL_CALLS)]
    }
    assert without_nulls(round_trip(body)["choices"][0]["message"]["tool_calls"]) == TOOL_CALLS


def test_fields_of_a_call_may_be_null_before_they_have_a_value() -> None:
    events = [
        chat_event(choice_delta(role="assistant", tool_calls=None, function_call=None)),
        tool_call_event(0, id="a", type="function", function=None),
        tool_call_event(0, function={"name": "f", "arguments": "{}"}),
        chat_event(choice_delta(finish="tool_calls", tool_calls=None)),
    ]
    message = record_and_replay_json(*events)["choices"][0]["message"]
    assert message["tool_calls"] == [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_the_older_function_call_survives() -> None:
    events = [
        ROLE_EVENT,
        chat_event(choice_delta(function_call={"name": "f", "arguments": "{"})),
        chat_event(choice_delta(function_call={"arguments": "}"})),
        chat_event(choice_delta(finish="function_call")),
    ]
    assert record_and_replay_json(*events)["choices"][0]["message"]["function_call"] == {"name": "f", "arguments": "{}"}


def test_log_probabilities_of_a_chat_are_joined_in_order() -> None:
    tokens: list[Any] = [{"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in "abc"]
    pieces: list[Any] = [
        {**choice_delta(content="ab"), "logprobs": {"content": tokens[:2], "refusal": None}},
        {**choice_delta(content="c"), "logprobs": {"content": tokens[2:], "refusal": None}},
        {**choice_delta(finish="stop"), "logprobs": None},
    ]
    replayed = record_and_replay_json(ROLE_EVENT, *map(chat_event, pieces))["choices"][0]
    assert replayed["logprobs"] == {"content": tokens, "refusal": None}
    body = chat_response(response_choice(content="abc", beside={"logprobs": replayed["logprobs"]}))
    assert without_nulls(round_trip(body)) == without_nulls(body)


def test_log_probabilities_of_a_completion_are_joined_in_order() -> None:
    inference_request = completion(stream=True)
    one = {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0]}
    two = {"tokens": ["b"], "token_logprobs": [-1.5], "top_logprobs": [{"b": -1.5}], "text_offset": [1]}
    events = [
        {"choices": [{"index": 0, "text": "a", "logprobs": one, "finish_reason": None}]},
        {"choices": [{"index": 0, "text": "b", "logprobs": two, "finish_reason": "stop"}]},
    ]
    replayed = record_and_replay_json(*events, inference_request=inference_request)["choices"][0]
    assert replayed["logprobs"] == {name: one[name] + two[name] for name in one}  # type: ignore[operator]
    body = {"id": "x", "choices": [replayed], "usage": None}
    assert without_nulls(round_trip(body, completion())["choices"]) == without_nulls(body["choices"])


def test_interleaved_choices_are_separated() -> None:
    events = [
        chat_event(choice_delta(1, role="assistant", content="")),
        chat_event(choice_delta(0, role="assistant", content="")),
        chat_event(choice_delta(1, content="B")),
        chat_event(choice_delta(0, content="A")),
        chat_event(choice_delta(0, content="a"), choice_delta(1, content="b")),
        chat_event(choice_delta(0, finish="stop")),
        chat_event(choice_delta(1, finish="length")),
    ]
    inference_request = chat(stream=True, n=2)
    replayed = record_and_replay_json(*events, inference_request=inference_request)["choices"]
    assert [(choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in replayed] == [
        (0, "Aa", "stop"),
        (1, "Bb", "length"),
    ]
    body = chat_response(response_choice(0, content="Aa"), response_choice(1, "length", content="Bb"))
    assert without_nulls(round_trip(body, chat(n=2))) == without_nulls(body)


def test_vendor_fields_survive_at_every_level() -> None:
    events = [
        {**ROLE_EVENT, "citations": ["u"], "nothing": None},
        chat_event({**choice_delta(content="x", mood="glad"), "stop_reason": None, "score": 1.5}),
        chat_event(
            {**choice_delta(finish="stop"), "stop_reason": 7, "token_ids": None},
            citations=["u"],
            system_fingerprint="f",
        ),
    ]
    replayed = record_and_replay_json(*events)
    assert (replayed["citations"], replayed["system_fingerprint"]) == (["u"], "f")
    assert (replayed["choices"][0]["score"], replayed["choices"][0]["stop_reason"]) == (1.5, 7)
    assert replayed["choices"][0]["message"]["mood"] == "glad"
    assert without_nulls(round_trip(replayed)) == without_nulls(replayed)


def test_token_ids_are_joined_in_order() -> None:
    pieces = [{**choice_delta(content="x"), "token_ids": [1, 2]}, {**choice_delta(finish="stop"), "token_ids": [3]}]
    assert record_and_replay_json(ROLE_EVENT, *map(chat_event, pieces))["choices"][0]["token_ids"] == [1, 2, 3]
