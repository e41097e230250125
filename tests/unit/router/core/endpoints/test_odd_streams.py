"""Streams of engines other than vLLM: their usage, their choices, and deltas of unknown fields."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.core.endpoints.recording.sse import DONE
from router.core.endpoints.responses import RESPONSES
from tests.support.endpoints import choices_recorder, make_recorder, record_body
from tests.support.factories import (
    HELLO_EVENTS,
    ROLE_EVENT,
    chat,
    chat_event,
    choice_delta,
    completion,
    encode_event,
    record_stream,
    recorded_response,
    sse_stream,
)
from tests.support.replay_helpers import STREAM, record_and_replay_json, replay_json, tool_call_event

STOP = chat_event(choice_delta(finish="stop"))


# -- repeated deltas --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["ha", ["ha"]])
def test_repeated_pieces_of_an_unknown_field_have_no_json_form(value: Any) -> None:
    twice = [
        chat_event(choice_delta(content="x", thoughts=value)),
        chat_event(choice_delta(content="y", thoughts=value)),
    ]
    assert record_and_replay_json(ROLE_EVENT, *twice, STOP) is None
    apart = [
        chat_event(choice_delta(thoughts=value)),
        chat_event(choice_delta(content="y")),
        chat_event(choice_delta(thoughts=value)),
    ]
    assert record_and_replay_json(ROLE_EVENT, *apart, STOP) is None


def test_a_piece_beside_the_text_is_detected_where_text_is_merged() -> None:
    twice = (
        sse_stream(ROLE_EVENT, *[chat_event(choice_delta(content="x", thoughts="ha"))] * 2, STOP)
        .replace(b": ", b":")
        .replace(b", ", b",")
    )
    twice = twice.replace(b"data:", b"data: ")
    recorder = choices_recorder(1 << 20)
    recorder.feed(twice)
    assert in_json_of(recorder) is None


def test_repeated_pieces_of_an_unknown_field_of_a_choice_or_a_tool_call_have_no_json_form() -> None:
    again = {"index": 0, "text": "a", "notes": "ha", "finish_reason": None}
    last = {"index": 0, "text": "", "finish_reason": "stop"}
    events = [{"choices": [again]}, {"choices": [again]}, {"choices": [last]}]
    assert record_and_replay_json(*events, inference_request=completion(stream=True)) is None
    calls = [
        tool_call_event(0, id="a", type="function", function={"name": "f", "arguments": "{}"}, why="ha"),
        tool_call_event(0, why="ha"),
    ]
    assert record_and_replay_json(ROLE_EVENT, *calls, STOP) is None


def test_a_field_that_is_not_a_piece_may_be_repeated() -> None:
    repeated: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "score": 1,
        "safe": True,
        "filter": {"a": "no"},
        "none": None,
    }
    calls = [
        tool_call_event(0, id="a", type="function", function={"name": "f", "arguments": "{"}),
        tool_call_event(0, id="a", type="function", function={"name": "f", "arguments": "}"}),
    ]
    replayed = record_and_replay_json(
        *[chat_event(choice_delta(**repeated), system_fingerprint="f", citations=["u"])] * 2, *calls, STOP
    )
    assert (replayed["system_fingerprint"], replayed["citations"]) == ("f", ["u"])
    message = replayed["choices"][0]["message"]
    assert (message["role"], message["content"], message["score"], message["filter"]) == (
        "assistant", "xx", 1, {"a": "no"},
    )  # fmt: skip
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


@given(st.lists(st.tuples(st.sampled_from(["content", "thoughts"]), st.sampled_from(["", "a", "ha"])), max_size=6))
def test_a_json_form_has_every_piece(pieces: list[tuple[str, str]]) -> None:
    deltas: list[dict[str, Any]] = [{name: text} for name, text in pieces]
    replayed = record_and_replay_json(
        ROLE_EVENT,
        chat_event(choice_delta(content="!")),
        *[chat_event(choice_delta(**delta)) for delta in deltas],
        STOP,
    )
    thoughts = [text for name, text in pieces if name == "thoughts" and text]
    if replayed is None:
        assert sum(name == "thoughts" for name, _ in pieces) > 1
        return
    message = replayed["choices"][0]["message"]
    assert message["content"] == "!" + "".join(text for name, text in pieces if name == "content")
    assert (message.get("thoughts") or "") == "".join(thoughts)


# -- usage -------------------------------------------------------------------------------------------------------------


def in_json_of(recorder: ChoicesRecorder) -> Any:
    return replay_json(recorded_response(recorder, STREAM))


def test_usage_in_an_event_with_choices_is_the_responses() -> None:
    running = chat_event(choice_delta(content="x"), usage={"prompt_tokens": 3, "completion_tokens": 1})
    last = chat_event(choice_delta(finish="stop"), usage={"prompt_tokens": 3, "completion_tokens": 2})
    stored = recorded_response(record_stream(sse_stream(ROLE_EVENT, running, last)), STREAM)
    assert (stored.prompt_tokens, stored.completion_tokens) == (3, 2)
    assert record_and_replay_json(ROLE_EVENT, running, last)["usage"] == last["usage"]


def test_usage_of_a_separate_event_takes_precedence() -> None:
    running = chat_event(choice_delta(content="x"), usage={"prompt_tokens": 3, "completion_tokens": 1})
    total = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}
    assert record_and_replay_json(ROLE_EVENT, running, STOP, total)["usage"] == total["usage"]


ODD_USAGE: list[Any] = [
    None, 1.5, "many", [], {}, {"prompt_tokens": None, "completion_tokens": None},
    {"prompt_tokens": "3", "completion_tokens": True}, {"prompt_tokens": -1.0, "completion_tokens": 1e300},
]  # fmt: skip


@pytest.mark.parametrize("usage", ODD_USAGE, ids=str)
@pytest.mark.parametrize("choices", [[], None], ids=str)
def test_odd_usage_and_choices_fail_no_stream(usage: Any, choices: Any) -> None:
    recorder = choices_recorder(1 << 20)
    recorder.feed(
        sse_stream(*HELLO_EVENTS).removesuffix(DONE) + encode_event({"choices": choices, "usage": usage}) + DONE
    )
    assert (recorder.failure, recorder.is_complete) == (None, True)
    recording = recorder.recorded_response(STREAM)
    assert isinstance(recording, RecordedResponse)
    estimated = not isinstance(usage, dict)
    assert recording.prompt_tokens == (len(STREAM.body) // 4 if estimated else 0)
    assert estimated <= recording.completion_tokens <= 2**53
    assert in_json_of(recorder)["choices"][0]["message"]["content"]


def test_float_usage_is_counted() -> None:
    used = {"prompt_tokens": 3.0, "completion_tokens": 7.0}
    recording = recorded_response(record_stream(sse_stream(*HELLO_EVENTS, {"choices": None, "usage": used})), STREAM)
    assert (recording.prompt_tokens, recording.completion_tokens) == (3, 7)


@pytest.mark.parametrize("usage", ODD_USAGE, ids=str)
def test_odd_usage_fails_no_json_response(usage: Any) -> None:
    body = {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage}
    assert isinstance(record_body(chat(), json.dumps(body).encode(), 1 << 20), RecordedResponse)


@pytest.mark.parametrize("used", [{"input_tokens": None, "output_tokens": 2.0}, None, "x"], ids=str)
def test_odd_usage_fails_no_response_and_no_message(used: Any) -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "x"}]}
    response = {"status": "completed", "output": [item], "usage": used}
    recorder = make_recorder(RESPONSES, 1 << 20)
    recorder.feed(encode_event({"type": "response.output_text.delta", "delta": "x"}))
    recorder.feed(encode_event({"type": "response.completed", "response": response}))
    assert (recorder.failure, recorder.is_complete) == (None, True)
    recorder = make_recorder(MESSAGES, 1 << 20)
    for event in (
        {"type": "message_start", "message": {"type": "message", "content": [], "usage": used}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "x"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": used},
        {"type": "message_stop"},
    ):
        recorder.feed(encode_event(event))
    assert (recorder.failure, recorder.is_complete) == (None, True)
