"""A stream of messages or responses that breaks off while its model reasons begins anew at another engine."""

import json
from typing import Any

import msgspec
import pytest

from router.core.endpoints.continuation.anew_messages import begin_message_anew
from router.core.endpoints.continuation.anew_responses import begin_response_anew
from router.core.endpoints.continuation.anew_typed import AnewRecorder
from router.core.endpoints.endpoint import Endpoint, Recorder
from router.core.endpoints.messages import MESSAGES, MessagesReader
from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.core.endpoints.recording.sse import payload, split_events
from router.core.endpoints.recording.typed_events import encode_event
from router.core.endpoints.requests.request import parse_request
from router.core.endpoints.responses import RESPONSES, ResponsesReader

Json = dict[str, Any]
LIMIT = 1 << 20


def new_recorder(endpoint: Endpoint) -> Recorder:
    assert endpoint.streaming is not None
    return endpoint.streaming.make_recorder(LIMIT, None)


def events_of(data: bytes) -> list[Json]:
    return [json.loads(payload(frame) or b"") for frame in split_events(data)]


def frames_of(endpoint: Endpoint, body: Json) -> list[bytes]:
    """As an engine streams it, with each text in two pieces."""
    assert endpoint.streaming is not None
    whole = endpoint.streaming.frames_from_body(json.dumps(body).encode(), True)
    assert whole is not None
    frames = []
    number = 0
    for event in events_of(whole):
        for piece in _pieces(event):
            if "sequence_number" in piece:
                piece["sequence_number"] = number
            frames.append(encode_event(piece))
            number += 1
    return frames


def _pieces(event: Json) -> list[Json]:
    delta = event.get("delta")
    holder, name = (event, "delta") if isinstance(delta, str) else (delta or {}, (delta or {}).get("type", "")[:-6])
    text = holder.get(name)
    if not isinstance(text, str) or len(text) < 2:
        return [event]
    first, second = msgspec.json.decode(msgspec.json.encode(event)), event
    (first if holder is event else first["delta"])[name] = text[: len(text) // 2]
    holder[name] = text[len(text) // 2 :]
    return [first, second]


def recorded(recorder: Recorder, endpoint: Endpoint) -> Json:
    asked: Json = {"model": "m", "stream": True, "max_tokens": 9}
    asked |= {"messages": [{"role": "user", "content": "x"}]} if endpoint is MESSAGES else {"input": "x"}
    found = recorder.recorded_response(parse_request(endpoint, json.dumps(asked).encode()))
    assert isinstance(found, RecordedResponse)
    body: Json = json.loads(found.body)
    return body


def fed(recorder: Recorder, frames: list[bytes]) -> bytes:
    return b"".join(map(recorder.feed, frames))


# -- /v1/messages -----------------------------------------------------------------------------------------------------


def message(id_: str, *content: Json) -> Json:
    head = {"id": id_, "type": "message", "role": "assistant", "model": "m", "content": list(content)}
    return {**head, "stop_reason": "tool_use", "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": 5}}


def thinking(text: str) -> Json:
    return {"type": "thinking", "thinking": text, "signature": "s"}


TEXT: Json = {"type": "text", "text": "Hello"}
CALL: Json = {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}}

BROKEN_MESSAGE = frames_of(MESSAGES, message("first", thinking("abcd"), TEXT))
"""message_start, the start of the thinking, two pieces of it, its signature, its stop, ..."""


def begin_message(frames: list[bytes]) -> tuple[Recorder, Recorder | str]:
    first = new_recorder(MESSAGES)
    fed(first, frames)
    return first, begin_message_anew(first, MessagesReader())


def test_thinking_goes_on_in_its_open_block() -> None:
    first, second = begin_message(BROKEN_MESSAGE[:3])
    assert isinstance(second, AnewRecorder)
    data = fed(second, frames_of(MESSAGES, message("second", thinking("wxyz"), TEXT, CALL)))
    assert second.is_complete
    kinds = [event["type"] for event in events_of(data)]
    assert kinds.count("content_block_start") == 2
    assert "message_start" not in kinds
    body = recorded(first, MESSAGES)
    assert body["id"] == "first"
    assert body["content"] == [thinking("ab\n\nwxyz"), TEXT, CALL]
    assert body["usage"] == {"input_tokens": 7, "output_tokens": 5}


@pytest.mark.parametrize(
    ("repeated", "whole"), [("abcd", "abcd"), ("ab", "ab"), ("a", "ab\n\na"), ("ax", "ab\n\nax"), ("abcdef", "abcdef")]
)
def test_thinking_that_the_second_engine_repeats_is_left_out(repeated: str, whole: str) -> None:
    first, second = begin_message(BROKEN_MESSAGE[:3])
    assert isinstance(second, AnewRecorder)
    fed(second, frames_of(MESSAGES, message("second", thinking(repeated), CALL)))
    assert recorded(first, MESSAGES)["content"] == [thinking(whole), CALL]


@pytest.mark.parametrize("end", [5, 6], ids=["signed", "stopped"])
def test_thinking_that_has_ended_is_followed_by_a_block_of_its_own(end: int) -> None:
    first, second = begin_message(BROKEN_MESSAGE[:end])
    assert isinstance(second, AnewRecorder)
    fed(second, frames_of(MESSAGES, message("second", thinking("wxyz"), CALL)))
    assert recorded(first, MESSAGES)["content"] == [thinking("abcd"), thinking("wxyz"), CALL]


def test_an_answer_without_thinking_ends_the_open_block_first() -> None:
    first, second = begin_message(BROKEN_MESSAGE[:4])
    assert isinstance(second, AnewRecorder)
    data = fed(second, frames_of(MESSAGES, message("second", TEXT)))
    order = [(event["type"], event["index"]) for event in events_of(data) if "index" in event]
    assert order.index(("content_block_stop", 0)) < order.index(("content_block_start", 1))
    assert recorded(first, MESSAGES)["content"] == [{**thinking("abcd"), "signature": ""}, TEXT]


def test_an_answer_without_anything_ends_the_open_block() -> None:
    _, second = begin_message(BROKEN_MESSAGE[:4])
    assert isinstance(second, AnewRecorder)
    data = fed(second, frames_of(MESSAGES, message("second")))
    kinds = [event["type"] for event in events_of(data)]
    assert kinds == ["content_block_delta", "content_block_stop", "message_delta"]


def test_a_message_that_has_begun_its_answer_does_not_begin_anew() -> None:
    called = frames_of(MESSAGES, message("first", thinking("abcd"), CALL))
    assert [begin_message(frames[:7])[1] for frames in (BROKEN_MESSAGE, called)] == ["text", "tools"]


# -- /v1/responses ----------------------------------------------------------------------------------------------------


def response(id_: str, *output: Json) -> Json:
    head = {"id": id_, "object": "response", "created_at": 1 if id_ == "first" else 2, "model": "m"}
    usage = {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
    return {**head, "status": "completed", "output": list(output), "usage": usage}


def reasoning(id_: str, text: str, status: str = "completed") -> Json:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": id_, "summary": [], "content": content, "status": status}


def answer(id_: str) -> Json:
    part = {"type": "output_text", "text": "Hello", "annotations": []}
    return {"type": "message", "id": id_, "role": "assistant", "content": [part], "status": "completed"}


FUNCTION_CALL: Json = {
    "type": "function_call", "id": "f", "call_id": "c", "name": "read", "arguments": "{}", "status": "completed",
}  # fmt: skip

BROKEN_RESPONSE = frames_of(RESPONSES, response("first", reasoning("r1", "abcd"), answer("m1")))
"""created, in_progress, the item, its part, two pieces, the end of the text, of the part, of the item, ..."""


def begin_response(frames: list[bytes]) -> tuple[Recorder, Recorder | str]:
    first = new_recorder(RESPONSES)
    fed(first, frames)
    return first, begin_response_anew(first, ResponsesReader())


@pytest.mark.parametrize(
    ("end", "text", "status"),
    [(3, "wxyz", "completed"), (5, "ab\n\nwxyz", "completed"), (6, "abcd\n\nwxyz", "completed"),
     (7, "abcd", "incomplete"), (8, "abcd", "incomplete"), (9, "abcd", "completed")],
)  # fmt: skip
def test_a_response_has_one_item_of_reasoning_before_the_second_engines_answer(
    end: int, text: str, status: str
) -> None:
    first, second = begin_response(BROKEN_RESPONSE[:end])
    assert isinstance(second, AnewRecorder)
    data = fed(second, frames_of(RESPONSES, response("second", reasoning("r2", "wxyz"), answer("m2"), FUNCTION_CALL)))
    data += second.final_frames(include_usage=True)
    assert second.is_complete
    body = recorded(first, RESPONSES) if end > 3 else events_of(data)[-1]["response"]
    assert (body["id"], body["created_at"]) == ("first", 1)
    assert body["output"] == [reasoning("r1", text, status), answer("m2"), FUNCTION_CALL]
    events = events_of(b"".join(BROKEN_RESPONSE[:end]) + data)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [(event["output_index"], event["item"]) for event in done] == list(enumerate(body["output"]))
    assert {event["item_id"] for event in events if "item_id" in event} == {"r1", "m2", "f"}
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta")
    ended = [event["text"] for event in events if event["type"] == "response.reasoning_text.done"]
    assert [deltas] == ended == [text]
    kinds = [event["type"] for event in events]
    assert (kinds.count("response.created"), kinds.count("response.content_part.added")) == (1, 2)
    assert kinds.count("response.content_part.done") == 2


def test_reasoning_that_the_second_engine_repeats_is_left_out() -> None:
    for repeated, whole in (("abcd", "abcd"), ("ab", "ab"), ("a", "ab\n\na"), ("abcdef", "abcdef")):
        first, second = begin_response(BROKEN_RESPONSE[:5])
        assert isinstance(second, AnewRecorder)
        fed(second, frames_of(RESPONSES, response("second", reasoning("r2", repeated), answer("m2"))))
        assert recorded(first, RESPONSES)["output"] == [reasoning("r1", whole), answer("m2")]


def test_an_answer_without_reasoning_ends_the_open_item_first() -> None:
    first, second = begin_response(BROKEN_RESPONSE[:5])
    assert isinstance(second, AnewRecorder)
    data = fed(second, frames_of(RESPONSES, response("second", answer("m2"))))
    assert recorded(first, RESPONSES)["output"] == [reasoning("r1", "ab", "incomplete"), answer("m2")]
    kinds = [event["type"] for event in events_of(data)]
    assert kinds[:4] == [
        "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
        "response.output_item.added",
    ]  # fmt: skip


def test_a_response_that_has_begun_its_answer_does_not_begin_anew() -> None:
    called = frames_of(RESPONSES, response("first", reasoning("r1", "abcd"), FUNCTION_CALL))
    assert [begin_response(frames[:10])[1] for frames in (BROKEN_RESPONSE, called)] == ["text", "tools"]


def test_a_response_without_sequence_numbers_gets_none() -> None:
    frames = []
    for event in events_of(b"".join(BROKEN_RESPONSE)):
        del event["sequence_number"]
        frames.append(encode_event(event))
    _, second = begin_response(frames[:5])
    assert isinstance(second, AnewRecorder)
    assert not any("sequence_number" in event for event in events_of(fed(second, frames)))


# -- both -------------------------------------------------------------------------------------------------------------

STREAMS = {
    "messages": (begin_message, BROKEN_MESSAGE[:3], frames_of(MESSAGES, message("second", thinking("wxyz"), TEXT))),
    "responses": (
        begin_response, BROKEN_RESPONSE[:5], frames_of(RESPONSES, response("second", reasoning("r2", "wxyz"))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
def test_nothing_is_published_before_the_second_engines_first_token(name: str) -> None:
    begin, broken, rest = STREAMS[name]
    _, second = begin(broken)
    assert isinstance(second, AnewRecorder)
    published = [second.feed(frame) for frame in rest]
    begun = next(number for number, data in enumerate(published) if data)
    assert begun > 1
    assert second.started
    assert not any(published[:begun])


@pytest.mark.parametrize("name", STREAMS)
def test_the_stream_is_the_same_wherever_the_network_cuts_it(name: str) -> None:
    begin, broken, rest = STREAMS[name]
    whole, data = [], b"".join(rest)
    for size in (1, 7, len(data)):
        _, second = begin(broken)
        assert isinstance(second, AnewRecorder)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        whole.append(fed(second, pieces) + second.final_frames(include_usage=True))
    assert whole[0] == whole[1] == whole[2]


@pytest.mark.parametrize("name", STREAMS)
def test_a_second_engine_that_breaks_off_in_the_reasoning_too_is_followed_by_a_third(name: str) -> None:
    begin, broken, rest = STREAMS[name]
    first, second = begin(broken)
    assert isinstance(second, AnewRecorder)
    fed(second, rest[:5])
    endpoint, begin_anew, reader = (
        (MESSAGES, begin_message_anew, MessagesReader()) if name == "messages"
        else (RESPONSES, begin_response_anew, ResponsesReader())
    )  # fmt: skip
    third = begin_anew(first, reader)
    assert isinstance(third, AnewRecorder)
    fed(third, rest)
    assert third.is_complete
    assert "wx" in json.dumps(recorded(first, endpoint))


@pytest.mark.parametrize("name", STREAMS)
def test_an_error_event_of_the_second_engine_is_its_failure(name: str) -> None:
    begin, broken, rest = STREAMS[name]
    first, second = begin(broken)
    assert isinstance(second, AnewRecorder)
    fed(second, rest[:2])
    assert second.feed(b'event: error\ndata: {"type":"error","error":{"message":"x"}}\n\n') == b""
    assert second.failure is not None
    assert first.failure is None
