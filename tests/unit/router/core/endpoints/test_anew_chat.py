"""A chat of which the client has only reasoning begins anew at another engine, in one stream."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.chat import CHAT
from router.core.endpoints.continuation.event_forms import MAX_LITERAL_EVENTS
from router.core.endpoints.endpoint import Recorder
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.core.endpoints.recording.sse import DONE
from router.core.endpoints.recording.token_ids import TokenIdCutter
from tests.support.endpoints import choices_recorder
from tests.support.factories import chat, chat_event, choice_delta, encode_event

ROLE = choice_delta(role="assistant", content="")
CALL = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "f", "arguments": ""}}
USAGE = {"prompt_tokens": 5, "total_tokens": 12, "completion_tokens": 7}


def broken_off(*deltas: dict[str, Any], ids: bool = False, limit: int = 1 << 20) -> ChoicesRecorder:
    """The recorder of the first engine's stream, after these choices."""
    recorder = choices_recorder(limit)
    recorder.token_ids = TokenIdCutter() if ids else None
    for choice in (ROLE, *deltas):
        recorder.feed(encode_event(chat_event(choice, system_fingerprint="first")))
    return recorder


def of_second(*choices: dict[str, Any]) -> bytes:
    """The events of the second engine."""
    head = {"id": "c2", "object": "chat.completion.chunk", "created": 9, "model": "n", "system_fingerprint": "second"}
    events = [{**head, "choices": [choice]} for choice in (ROLE, *choices)]
    return b"".join(map(encode_event, [*events, {**head, "choices": [], "usage": USAGE}])) + DONE


def anew(recorder: Recorder) -> Recorder:
    assert CHAT.streaming is not None
    assert CHAT.streaming.begin_anew is not None
    second = CHAT.streaming.begin_anew(recorder)
    assert not isinstance(second, str), second
    return second


def obstacle(recorder: Recorder) -> str:
    assert CHAT.streaming is not None
    assert CHAT.streaming.begin_anew is not None
    found = CHAT.streaming.begin_anew(recorder)
    assert isinstance(found, str)
    return found


def deltas_of(received: bytes) -> list[dict[str, Any]]:
    events = [json.loads(event.removeprefix(b"data: ")) for event in received.split(b"\n\n") if event]
    return [{name: value for name, value in event["choices"][0]["delta"].items() if value} for event in events]


SECOND = of_second(
    choice_delta(reasoning="Let me"),
    choice_delta(reasoning=" see."),
    choice_delta(content="I look."),
    choice_delta(tool_calls=[CALL]),
    choice_delta(finish="tool_calls"),
)


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=8))
def test_the_second_engine_is_appended_to_the_reasoning_of_the_first(sizes: list[int]) -> None:
    recorder = broken_off(choice_delta(reasoning="Hm"), choice_delta(reasoning=", well"))
    recorder.feed(b'data: {"id":"c1","cho')  # lost
    second = anew(recorder)
    received, rest, number = b"", SECOND, 0
    while rest:
        size = sizes[number % len(sizes)]
        received, rest, number = received + second.feed(rest[:size]), rest[size:], number + 1
    assert second.is_complete
    assert recorder.is_complete
    assert deltas_of(received) == [
        {"reasoning": "\n\nLet me"},
        {"reasoning": " see."},
        {"content": "I look."},
        {"tool_calls": [CALL]},
        {},
    ]
    head = b'"id":"c1","object":"chat.completion.chunk","created":7,"model":"m"'
    assert received.count(head) == received.count(b'"system_fingerprint":"first"') == 5
    usage = json.loads(second.final_frames(include_usage=True).split(b"\n\n")[0].removeprefix(b"data: "))
    assert (usage["usage"], usage["id"]) == (USAGE, "c1")
    recorded = recorder.recorded_response(chat(stream=True))
    assert isinstance(recorded, RecordedResponse)
    message = json.loads(recorded.body)["choices"][0]["message"]
    assert message["reasoning"] == "Hm, well\n\nLet me see."
    assert (message["content"], message["tool_calls"][0]["id"]) == ("I look.", "call-1")


def test_only_reasoning_is_separated() -> None:
    second = anew(broken_off(choice_delta(reasoning_content="Hm")))
    choices = [choice_delta(content="Yes."), choice_delta(reasoning="So"), choice_delta(reasoning="!")]
    assert deltas_of(second.feed(of_second(*choices))) == [
        {"content": "Yes."},
        {"reasoning": "\n\nSo"},
        {"reasoning": "!"},
    ]


def test_the_first_recorder_gets_nothing_before_a_token_or_after_a_failure() -> None:
    recorder = broken_off(choice_delta(reasoning="Hm"))
    parts = recorder.parts
    assert parts is not None
    size = parts.size
    for data, failure in (
        (b": hold on\n\n" + encode_event(chat_event(ROLE)), None),
        (encode_event(chat_event(ROLE)) + b'data: {"error":{"message":"x","code":500}}\n\n', b'"error"'),
        (encode_event(chat_event(choice_delta(finish="abort"))), b"abort"),
        (b"data: {\n\n", b"not JSON"),
        (encode_event(chat_event(choice_delta(1, content="x"))), b"one choice"),
    ):
        second = anew(recorder)
        assert second.feed(data) == b""
        assert not second.started
        assert (failure or b"") in (second.failure or b"")
        assert parts.size == size
    assert deltas_of(anew(recorder).feed(SECOND))[0] == {"reasoning": "\n\nLet me"}


def test_a_third_engine_begins_anew_after_a_second_that_only_reasoned() -> None:
    recorder = broken_off(choice_delta(reasoning="Hm"))
    anew(recorder).feed(SECOND[: SECOND.find(b"data: ", SECOND.find(b"Let me"))])
    assert deltas_of(anew(recorder).feed(SECOND))[0] == {"reasoning": "\n\nLet me"}
    recorded = recorder.recorded_response(chat(stream=True))
    assert isinstance(recorded, RecordedResponse)
    assert json.loads(recorded.body)["choices"][0]["message"]["reasoning"] == "Hm\n\nLet me\n\nLet me see."


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([choice_delta(reasoning="Hm"), choice_delta(content="I")], "text"),
        ([choice_delta(reasoning="Hm"), choice_delta(content="I"), choice_delta(content=" am")], "text"),
        ([choice_delta(reasoning="Hm", content="I")], "text"),
        ([choice_delta(reasoning="Hm"), choice_delta(tool_calls=[CALL])], "tools"),
        ([choice_delta(reasoning="Hm"), choice_delta(function_call={"name": "f"})], "tools"),
        ([choice_delta(reasoning="Hm"), choice_delta(audio={"id": "a"})], "malformed"),
        ([choice_delta(reasoning="Hm"), choice_delta(finish="length")], "finished"),
        ([choice_delta(reasoning="Hm"), choice_delta(1, reasoning="Hm")], "choices"),
    ],
)
def test_a_stream_with_more_than_reasoning_does_not_begin_anew(deltas: list[dict[str, Any]], expected: str) -> None:
    assert obstacle(broken_off(*deltas)) == expected


def test_a_stream_that_is_not_recorded_does_not_begin_anew() -> None:
    assert obstacle(broken_off(choice_delta(reasoning="a" * 100), limit=50)) == "too-large"
    numbered = [{**choice_delta(reasoning="a"), "number": number} for number in range(MAX_LITERAL_EVENTS + 9)]
    assert obstacle(broken_off(*numbered)) == "no-template"


def test_the_ids_of_the_first_engine_are_no_part_of_the_response_any_more() -> None:
    def with_ids(choice: dict[str, Any], *ids: int) -> dict[str, Any]:
        return {**choice, "token_ids": ids}

    deltas = [with_ids(choice_delta(reasoning="Hm"), 1, 2), with_ids(choice_delta(reasoning="?"), 3)]
    recorder = broken_off(*deltas, ids=True)
    assert recorder.token_ids is not None
    second = anew(recorder)
    events = of_second(
        with_ids(choice_delta(), 4),  # such as the one of <think>
        with_ids(choice_delta(reasoning="So"), 5),
        with_ids(choice_delta(content="Yes"), 6, 7),
    )
    received = second.feed(events)
    assert recorder.token_ids.pieces == [b"", b"", b"4,5", b"6,7"]
    assert recorder.token_ids.exact
    assert received.count(b'"token_ids":null') == 2
    assert b'"token_ids":[' not in received
