"""A response in one form gives the other form without loss, or not at all."""

import json
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.endpoints.chat import CHAT
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.core.endpoints.recording.replay import replay
from router.core.endpoints.recording.sse import DONE
from tests.support.endpoints import record_body
from tests.support.examples import EXAMPLES
from tests.support.factories import (
    HELLO_EVENTS,
    JSON_VALUES,
    ODD_EVENT,
    ROLE_EVENT,
    TEXTS,
    USAGE_EVENT,
    chat,
    chat_event,
    choice_delta,
    completion,
    encode_event,
    entry_from,
    load_capture,
    record_stream,
    recorded_response,
    sse_stream,
)
from tests.support.replay_helpers import (
    CHAT_REQUEST,
    LIMIT,
    STREAM,
    STREAM_USAGE,
    TOOL_CALLS,
    chat_response,
    entry_of_body,
    record_and_replay_json,
    replay_json,
    response_choice,
    round_trip,
    stream_events,
    tool_call_event,
    without_nulls,
)

# Captures of a real vLLM server

STREAMED: Final = [
    "chat-stream", "chat-stream-usage", "chat-stream-continuous-usage", "chat-n2-stream", "chat-logprobs-stream",
    "chat-tool-required-stream", "chat-tool-named-stream", "spec-chat-stream",
    "completion-stream", "completion-stream-usage", "completion-stream-echo-logprobs",
]  # fmt: skip
PLAIN: Final = [
    "chat", "chat-n2", "chat-logprobs", "chat-tool-required", "chat-tool-named", "completion",
    "completion-echo-logprobs", "completion-max0-echo", "completion-token-ids", "completion-two-prompts",
]  # fmt: skip


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_of_vllm_is_replayed_byte_for_byte(name: str) -> None:
    request, sent = load_capture(name)
    entry = entry_from(recorded_response(record_stream(sent, endpoint=request.endpoint), request))
    assert replay(entry, request) == sent


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_of_vllm_has_its_text_in_the_json_response(name: str) -> None:
    request, sent = load_capture(name)
    body = replay_json(recorded_response(record_stream(sent, endpoint=request.endpoint), request), request)
    joined: dict[int, str] = {}
    for event in stream_events(sent):
        for part in event["choices"]:
            text = part["text"] if "text" in part else part["delta"].get("content") or ""
            joined[part["index"]] = joined.get(part["index"], "") + text
    texts = [part["text"] if "text" in part else part["message"]["content"] or "" for part in body["choices"]]
    assert texts == [joined[index] for index in sorted(joined)]
    assert body["object"] == ("chat.completion" if request.endpoint is CHAT else "text_completion")


@pytest.mark.parametrize("name", PLAIN)
def test_a_json_response_of_vllm_survives_the_conversion_to_a_stream(name: str) -> None:
    request, body = load_capture(name)
    recording = record_body(request, body, LIMIT)
    assert isinstance(recording, RecordedResponse)
    assert replay(entry_from(recording), request) == body
    fields = {**request.fields, "stream": True, "stream_options": {"include_usage": True}}
    streaming = chat(**fields) if request.endpoint is CHAT else completion(**fields)
    sent = replay(entry_from(recording), streaming)
    assert sent is not None
    again = recorded_response(record_stream(sent, endpoint=request.endpoint), streaming)
    assert without_nulls(replay_json(again, streaming)) == without_nulls(json.loads(body))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("chat-logprobs", "chat-logprobs-stream"),
        ("chat-tool-required", "chat-tool-required-stream"),
        ("chat-tool-named", "chat-tool-named-stream"),
        ("chat", "chat-stream-usage"),
    ],
)
def test_a_stream_of_vllm_as_json_equals_vllms_json(name: str, other: str) -> None:
    _, body = load_capture(name)
    request, sent = load_capture(other)
    expected, actual = (
        without_nulls(json.loads(body)),
        without_nulls(replay_json(recorded_response(record_stream(sent, endpoint=request.endpoint), request), request)),
    )
    for response in (expected, actual):
        del response["id"], response["created"]
        response.pop("usage", None)
        for call in response["choices"][0]["message"].get("tool_calls", ()):
            del call["id"]
        # For responses with only tool calls, vLLM sends "" in one form and null in the other.
        if not response["choices"][0]["message"].get("content"):
            response["choices"][0]["message"].pop("content", None)
    assert actual == expected


# Text


@pytest.mark.parametrize(
    "deltas",
    [
        ["def f():\n", "    return", "\t1\r\n"],
        ["a  b", "   ", "c"],
        ["👩", "\u200d", "👩‍👧", "e", "\u0301"],
        [" ", "x", " "],
        ["\ufeff", "\u2028", "\x00", "\x7f"],
        ["x", "", "y"],
        ['"', "\\", "\\n", "data: [DONE]\n\n"],
    ],
)
def test_deltas_joined_equal_the_text_byte_for_byte(deltas: list[str]) -> None:
    events = [
        ROLE_EVENT,
        *(chat_event(choice_delta(content=delta)) for delta in deltas),
        chat_event(choice_delta(finish="stop")),
    ]
    assert record_and_replay_json(*events)["choices"][0]["message"]["content"] == "".join(deltas)


@given(TEXTS, st.data())
def test_text_is_the_same_from_either_form(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    deltas = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    field = data.draw(st.sampled_from(["content", "reasoning", "reasoning_content", "refusal"]))
    events = [
        ROLE_EVENT,
        *(chat_event({**choice_delta(), "delta": {field: delta}}) for delta in deltas),
        chat_event(choice_delta(finish="stop")),
    ]
    assert record_and_replay_json(*events)["choices"][0]["message"][field] == text

    replayed_events = stream_events(replay(entry_of_body(chat_response(response_choice(content=text))), STREAM))
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in replayed_events) == text

    texts = [{"choices": [{"index": 0, "text": delta, "finish_reason": None}]} for delta in deltas]
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    assert record_and_replay_json(*texts, end, inference_request=completion(stream=True))["choices"][0]["text"] == text


# Usage


@pytest.mark.parametrize("streamed", [True, False])
def test_a_hit_has_usage_if_the_client_requests_it(streamed: bool) -> None:
    usage = USAGE_EVENT["usage"]
    entry = (
        entry_from(recorded_response(record_stream(sse_stream(*HELLO_EVENTS, USAGE_EVENT)), STREAM))
        if streamed
        else entry_of_body(chat_response(response_choice(content="Hello"), usage=usage))
    )
    events = stream_events(replay(entry, STREAM_USAGE))
    assert (events[-1]["choices"], events[-1]["usage"]) == ([], usage)
    assert not any(event.get("usage") for event in events[:-1])
    assert not any("usage" in event for event in stream_events(replay(entry, STREAM)))
    body = replay(entry, CHAT_REQUEST)
    assert body is not None
    assert json.loads(body)["usage"] == usage


def test_usage_that_was_never_sent_is_not_invented() -> None:
    assert record_and_replay_json(*HELLO_EVENTS)["usage"] is None
    assert len(stream_events(replay(entry_of_body(chat_response(response_choice(content="x"))), STREAM_USAGE))) == 2


# Responses without another form


@pytest.mark.parametrize(
    "events",
    [
        [chat_event(choice_delta(content="x", mood="glad")), chat_event(choice_delta(mood="sad"))],
        [chat_event(choice_delta(content="x"), seen=[1]), chat_event(seen=[2])],
        [chat_event({**choice_delta(content="x"), "score": 1}), chat_event({**choice_delta(), "score": 2})],
        [chat_event({**choice_delta(content="x"), "score": 1}), chat_event({**choice_delta(), "score": "1"})],
        [chat_event(choice_delta(content="x", audio={"data": "a"})), chat_event(choice_delta(audio={"data": "b"}))],
        [chat_event(choice_delta(content="x")), {**chat_event(choice_delta(content="y")), "id": "c2"}],
        [tool_call_event(0, id="a"), tool_call_event(0, id="b")],
        [chat_event(choice_delta(content="x")), chat_event(choice_delta(content=["y"]))],
    ],
)
def test_contradictory_fields_leave_a_stream_without_json(events: list[Any]) -> None:
    events = [ROLE_EVENT, *events, chat_event(choice_delta(finish="stop"))]
    recording = recorded_response(record_stream(sse_stream(*events)), STREAM)
    assert replay(entry_from(recording), CHAT_REQUEST) is None
    assert replay(entry_from(recording), STREAM) == sse_stream(*events)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff", b"[]", b"{}", b'{"choices":null}', b'{"choices":[{}]}', b'{"choices":[1]}',
        b'{"choices":{"a":1}}', b'{"choices":[{"index":0,"message":"x"}]}',
        b'{"choices":[{"message":{"content":"x"}}]}',
        b'{"choices":[{"index":0,"message":{"tool_calls":[1]}}]}', b'{"choices":' + b"[" * 10**5,
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_parsed_is_a_miss_for_a_stream(body: bytes) -> None:
    entry = entry_from(RecordedResponse(body=body, stream=None, prompt_tokens=0, completion_tokens=0))
    assert replay(entry, STREAM) is None
    assert replay(entry, CHAT_REQUEST) == body


@settings(max_examples=3 * EXAMPLES)
@given(ODD_EVENT | JSON_VALUES, st.sampled_from([STREAM, STREAM_USAGE, completion(stream=True)]))
def test_no_body_raises_anything_when_it_is_replayed(body: Any, inference_request: InferenceRequest) -> None:
    stored = json.dumps(body).encode()
    entry = entry_from(RecordedResponse(body=stored, stream=None, prompt_tokens=0, completion_tokens=0))
    sent = replay(entry, inference_request)
    assert sent is None or sent.endswith(DONE)


MESSAGE: Final = st.fixed_dictionaries(
    {"content": TEXTS},
    optional={
        "reasoning": TEXTS,
        "refusal": TEXTS,
        "vendor": JSON_VALUES,
        "tool_calls": st.just(TOOL_CALLS),
        "annotations": st.lists(JSON_VALUES),
    },
)


@given(st.lists(MESSAGE, min_size=1, max_size=3), JSON_VALUES, JSON_VALUES)
def test_any_json_response_survives_the_conversion_to_a_stream(messages: list[Any], beside: Any, usage: Any) -> None:
    choices = [response_choice(index, **message, beside={"score": beside}) for index, message in enumerate(messages)]
    body = chat_response(*choices, vendor=beside)
    assert without_nulls(round_trip(body, chat(n=len(messages)))) == without_nulls(body)


@given(st.lists(st.sampled_from([0, 1]), max_size=12), st.data())
def test_any_mixture_of_choices_survives_the_conversion(order: list[int], data: st.DataObject) -> None:
    texts = ["", ""]
    events = [chat_event(choice_delta(0, content="-"), choice_delta(1, content="-"))]
    for index in order:
        delta = data.draw(TEXTS)
        texts[index] += delta
        events.append(chat_event(choice_delta(index, content=delta)))
    events.append(chat_event(choice_delta(0, "stop"), choice_delta(1, "stop")))
    request = chat(stream=True, n=2)
    recording = recorded_response(record_stream(sse_stream(*events), endpoint=request.endpoint), request)
    assert replay(entry_from(recording), request) == b"".join(map(encode_event, events)) + DONE
    replayed = replay_json(recording)["choices"]
    assert [choice["message"]["content"] for choice in replayed] == [f"-{text}" for text in texts]
