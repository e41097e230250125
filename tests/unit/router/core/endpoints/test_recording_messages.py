"""Streams and bodies of /v1/messages: what is stored, and that both forms are equivalent."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.endpoint import Recorder
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.replay import replay
from tests.support.endpoints import make_recorder, record_body
from tests.support.factories import (
    JSON_VALUES,
    TEXTS,
    client_view,
    entry_from,
    event_payloads,
    load_capture,
    messages,
    recorded_response,
    replayed_frames,
    typed_stream,
)

JSON_FORM: Final = messages()
STREAM_FORM: Final = messages(stream=True)
LIMIT: Final = 1 << 20

HEAD: Final = {"id": "m1", "type": "message", "role": "assistant", "content": [], "model": "m"}
START: Final = {
    "type": "message_start",
    "message": {**HEAD, "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 0}},
}
STOP: Final = {"type": "message_stop"}
PING: Final = {"type": "ping"}


def start(index: int = 0, kind: str = "text", **block: Any) -> dict[str, Any]:
    block = block or {"text": ""}
    return {"type": "content_block_start", "content_block": {"type": kind, **block}, "index": index}


def delta(kind: str, index: int = 0, **piece: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "delta": {"type": kind, **piece}, "index": index}


def text(content: str, index: int = 0) -> dict[str, Any]:
    return delta("text_delta", index, text=content)


def arguments(content: str, index: int = 0) -> dict[str, Any]:
    return delta("input_json_delta", index, partial_json=content)


def stop(index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: Any = "end_turn", **usage: Any) -> dict[str, Any]:
    used = usage or {"input_tokens": 3, "output_tokens": 2}
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": used}


HELLO: Final = (START, PING, start(), text("Hel"), text("lo"), stop(), ended())
TOOL: Final = {"id": "t", "name": "f", "input": {}}


def recorded(sent: bytes, limit: int = LIMIT) -> Recorder:
    recorder = make_recorder(MESSAGES, limit)
    recorder.feed(sent)
    return recorder


def joined(*events: dict[str, Any]) -> Any:
    """The JSON form of a stream; None if it has none."""
    body = replay(
        entry_from(recorded_response(recorded(typed_stream(START, *events, ended(), STOP)), STREAM_FORM)), JSON_FORM
    )
    return None if body is None else json.loads(body)


def message(*content: dict[str, Any], reason: Any = "end_turn", **beside: Any) -> dict[str, Any]:
    used = {"input_tokens": 3, "output_tokens": 2}
    return {**HEAD, "content": [*content], "stop_reason": reason, "stop_sequence": None, "usage": used, **beside}


# A stream


def test_a_stream_is_forwarded_unchanged_except_for_its_end_which_is_sent_later() -> None:
    recorder = make_recorder(MESSAGES, LIMIT)
    assert recorder.feed(typed_stream(*HELLO)) == typed_stream(*HELLO)
    assert not recorder.is_complete
    assert recorder.feed(typed_stream(STOP)) == b""
    assert recorder.ended
    assert recorder.final_frames(include_usage=False) == recorder.final_frames(include_usage=True) == typed_stream(STOP)


def test_a_stream_is_stored_completely_and_as_json() -> None:
    recording = recorded_response(recorded(typed_stream(*HELLO, STOP)), STREAM_FORM)
    assert replayed_frames(recording) == typed_stream(*HELLO, STOP)
    assert json.loads(recording.body or b"") == message({"type": "text", "text": "Hello"})
    assert (recording.prompt_tokens, recording.completion_tokens) == (3, 2)
    assert replay(entry_from(recording), STREAM_FORM) == replayed_frames(recording)
    assert replay(entry_from(recording), JSON_FORM) == recording.body


@given(st.data())
def test_where_the_network_cuts_a_stream_does_not_matter(data: Any) -> None:
    sent = typed_stream(*HELLO, STOP)
    recorder = make_recorder(MESSAGES, LIMIT)
    received, rest = b"", sent
    while rest:
        size = data.draw(st.integers(1, 120))
        received += recorder.feed(rest[:size])
        rest = rest[size:]
    assert received + recorder.final_frames(include_usage=False) == sent
    assert client_view(recorder.recorded_response(STREAM_FORM)) == client_view(
        recorded(sent).recorded_response(STREAM_FORM)
    )


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_the_pieces_joined_are_the_text_byte_for_byte(pieces: list[str]) -> None:
    assert joined(start(), *map(text, pieces), stop())["content"] == [{"type": "text", "text": "".join(pieces)}]
    spaced = b"".join(
        b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode())
        for one in (START, start(), *map(text, pieces), stop(), ended(), STOP)
    )
    body = recorded_response(recorded(spaced), STREAM_FORM).body
    assert json.loads(body or b"")["content"] == [{"type": "text", "text": "".join(pieces)}]


def test_thinking_tool_calls_and_texts_stay_in_their_order() -> None:
    content = joined(
        start(0, "thinking", thinking=""), delta("thinking_delta", thinking="Hm"),
        delta("thinking_delta", thinking="."), delta("signature_delta", signature="s"), stop(),
        start(1), text("So", 1), stop(1),
        start(2, "tool_use", **TOOL), arguments("", 2), arguments('{"a": "b', 2), arguments('\\n"}', 2), stop(2),
        start(3, "tool_use", **{**TOOL, "id": "u"}), stop(3),
    )["content"]  # fmt: skip
    assert content == [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "So"},
        {"type": "tool_use", **TOOL, "input": {"a": "b\n"}},
        {"type": "tool_use", **TOOL, "id": "u"},
    ]


@pytest.mark.parametrize(
    "events",
    [
        (start(0, "tool_use", **TOOL), arguments('{"a": "b'), stop()),
        (start(), text("x"), delta("citations_delta", citation="x"), stop()),
        (start(), {**text("x"), "logprobs": []}, stop()),
        (start(), delta("text_delta", text="x", also="y"), stop()),
        (start(), text("x"), start(), text("y"), stop()),
        (start(), text("x"), stop(), {"type": "vendor_event"}),
    ],
    ids=["cut-off", "citation", "field", "piece", "twice", "event"],
)
def test_a_stream_that_cannot_be_joined_without_loss_is_stored_only_as_a_stream(events: Any) -> None:
    sent = typed_stream(START, *events, ended(), STOP)
    recording = recorded_response(recorded(sent), STREAM_FORM)
    assert json.loads(recording.body).keys() == {"text"}  # the text for people
    assert replay(entry_from(recording), JSON_FORM) is None
    assert replay(entry_from(recording), STREAM_FORM) == sent


def test_events_without_content_do_not_start_a_stream() -> None:
    recorder = make_recorder(MESSAGES, LIMIT)
    for one in (START, PING, start(), text(""), start(1, "thinking", thinking="", signature="")):
        recorder.feed(typed_stream(one))
        assert not recorder.started
    recorder.feed(typed_stream(text("x")))
    assert recorder.started


@pytest.mark.parametrize(
    "one", [delta("thinking_delta", thinking="x"), arguments("{"), start(0, "tool_use", **TOOL), start(text="x")]
)
def test_any_piece_of_content_or_the_name_of_a_tool_starts_a_stream(one: dict[str, Any]) -> None:
    assert recorded(typed_stream(START, one)).started


@pytest.mark.parametrize("at", [0, 1, 4])
def test_an_error_is_held_back_and_nothing_is_stored(at: int) -> None:
    failed = {"type": "error", "error": {"type": "internal_error", "message": "x"}}
    recorder = make_recorder(MESSAGES, LIMIT)
    assert recorder.feed(typed_stream(*HELLO[:at], failed)) == typed_stream(*HELLO[:at])
    assert json.loads(recorder.failure or b"") == failed
    assert recorder.feed(typed_stream(*HELLO[at:], STOP)) == b""
    assert not recorder.is_complete
    assert recorder.recorded_response(STREAM_FORM) is NotStoredReason.ERROR


def test_a_stream_without_its_last_event_is_not_stored() -> None:
    assert recorded(typed_stream(*HELLO)).recorded_response(STREAM_FORM) is NotStoredReason.INCOMPLETE


def test_a_stream_without_a_stop_reason_is_not_stored() -> None:
    for events in ((*HELLO[:-1], STOP), (*HELLO[:-1], ended(None), STOP)):
        recorder = recorded(typed_stream(*events))
        assert recorder.is_complete
        assert recorder.recorded_response(STREAM_FORM) is NotStoredReason.INCOMPLETE


def test_an_empty_response_is_not_stored() -> None:
    assert recorded(typed_stream(START, ended(), STOP)).recorded_response(STREAM_FORM) is NotStoredReason.EMPTY
    assert (
        recorded(typed_stream(START, start(), text(""), stop(), ended(), STOP)).recorded_response(STREAM_FORM)
        is NotStoredReason.EMPTY
    )


def test_a_broken_event_in_the_middle_is_not_stored() -> None:
    recorder = make_recorder(MESSAGES, LIMIT)
    for sent in (
        typed_stream(*HELLO[:4]),
        b'event: content_block_delta\ndata: {"type\n\n',
        typed_stream(*HELLO[4:], STOP),
    ):
        recorder.feed(sent)
    assert recorder.recorded_response(STREAM_FORM) is NotStoredReason.ERROR


def test_a_response_over_the_limit_is_not_stored() -> None:
    sent = typed_stream(*HELLO, STOP)
    size = entry_from(recorded_response(recorded(sent), STREAM_FORM)).size
    assert isinstance(recorded(sent, size).recorded_response(STREAM_FORM), RecordedResponse)
    assert recorded(sent, size - 1).recorded_response(STREAM_FORM) is NotStoredReason.TOO_LARGE


def test_tokens_from_a_prefix_cache_count_as_prompt() -> None:
    used = {"input_tokens": 1, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2, "output_tokens": 4}
    recording = recorded_response(recorded(typed_stream(*HELLO[:-1], ended(**used), STOP)), STREAM_FORM)
    assert (recording.prompt_tokens, recording.completion_tokens) == (8, 4)
    recording = recorded_response(recorded(typed_stream(*HELLO[:-1], ended(output_tokens=4), STOP)), STREAM_FORM)
    assert (recording.prompt_tokens, recording.completion_tokens) == (3, 4)
    assert json.loads(recording.body or b"")["usage"] == {"input_tokens": 3, "output_tokens": 4}


# A body


def test_a_body_is_stored_byte_for_byte() -> None:
    body = json.dumps(message({"type": "text", "text": "x"}), indent=2).encode()
    recording = record_body(JSON_FORM, body, LIMIT)
    assert recording == RecordedResponse(body=body, stream=None, prompt_tokens=3, completion_tokens=2)
    assert record_body(JSON_FORM, body, len(body) - 1) is NotStoredReason.TOO_LARGE


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (message({"type": "text", "text": "x"}, reason="max_tokens"), None),
        (message({"type": "text", "text": "x"}, reason="tool_use"), None),
        (message({"type": "tool_use", **TOOL}), None),
        (message({"type": "text", "text": "x"}, reason=None), NotStoredReason.INCOMPLETE),
        (message({"type": "text", "text": ""}), NotStoredReason.EMPTY),
        (message(), NotStoredReason.EMPTY),
        ({"type": "error", "error": {"type": "x", "message": "y"}}, NotStoredReason.ERROR),
        ({"error": {"message": "y"}}, NotStoredReason.ERROR),
        ({**message({"type": "text", "text": "x"}), "type": "completion"}, NotStoredReason.ERROR),
        ([], NotStoredReason.ERROR),
    ],
)
def test_only_a_complete_body_is_stored(answer: Any, verdict: NotStoredReason | None) -> None:
    recording = record_body(JSON_FORM, json.dumps(answer).encode(), LIMIT)
    assert (recording if verdict is not None else isinstance(recording, RecordedResponse)) == (verdict or True)


BLOCKS: Final = st.one_of(
    st.builds(lambda content: {"type": "text", "text": content}, TEXTS),
    st.builds(lambda content, name: {"type": "thinking", "thinking": content, "signature": name}, TEXTS, TEXTS),
    st.builds(
        lambda input_: {"type": "tool_use", **TOOL, "input": input_},
        st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3),
    ),
    st.builds(lambda data: {"type": "redacted_thinking", "data": data}, TEXTS),
)


@given(st.lists(BLOCKS, min_size=1, max_size=4))
def test_a_body_as_a_stream_has_the_same_content_and_is_recorded_as_the_same(content: list[dict[str, Any]]) -> None:
    answer = message(*content, kv_transfer_params={"x": 1})
    recording = record_body(JSON_FORM, json.dumps(answer).encode(), LIMIT)
    assert isinstance(recording, RecordedResponse)
    frames = replay(entry_from(recording), STREAM_FORM)
    assert frames is not None
    kinds = [event["type"] for event in event_payloads(frames)]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    again = recorded(frames)
    assert again.started
    assert json.loads(recorded_response(again, STREAM_FORM).body or b"") == answer


def test_an_unknown_block_is_replayed_only_as_json() -> None:
    answer = message({"type": "web_search_tool_result", "content": []}, {"type": "text", "text": "x"})
    recording = record_body(JSON_FORM, json.dumps(answer).encode(), LIMIT)
    assert isinstance(recording, RecordedResponse)
    assert replay(entry_from(recording), STREAM_FORM) is None


@given(
    JSON_VALUES
    | st.fixed_dictionaries(
        {"type": st.just("message"), "content": JSON_VALUES, "stop_reason": JSON_VALUES, "usage": JSON_VALUES}
    )
)
def test_no_body_makes_a_recorder_or_a_replay_fail(body: Any) -> None:
    recording = record_body(JSON_FORM, json.dumps(body).encode(), LIMIT)
    assert isinstance(recording, NotStoredReason | RecordedResponse)
    if isinstance(recording, RecordedResponse):
        replay(entry_from(recording), STREAM_FORM)


@given(
    st.lists(
        st.sampled_from([*HELLO, STOP, text("x", 5), start(1), {"type": "content_block_delta"}])
        | st.fixed_dictionaries(
            {
                "type": st.sampled_from(["message_delta", "content_block_start", "x"]),
                "delta": JSON_VALUES,
                "index": JSON_VALUES,
            }
        ),
        max_size=8,
    )
)
def test_no_stream_makes_a_recorder_fail(events: list[dict[str, Any]]) -> None:
    recording = recorded(typed_stream(*events, STOP)).recorded_response(STREAM_FORM)
    assert isinstance(recording, NotStoredReason | RecordedResponse)


# Captures of a real vLLM server


@pytest.mark.parametrize("name", ["messages-stream", "messages-tool-stream"])
def test_a_stream_of_vllm_is_stored_in_both_forms(name: str) -> None:
    request, sent = load_capture(name)
    recorder = make_recorder(request.endpoint, LIMIT)
    assert recorder.feed(sent) + recorder.final_frames(include_usage=False) == sent
    recording = recorded_response(recorder, request)
    assert replayed_frames(recording) == sent
    body = json.loads(recording.body or b"")
    assert body["usage"] == {"input_tokens": recording.prompt_tokens, "output_tokens": recording.completion_tokens}
    deltas = [event.get("delta", {}) for event in event_payloads(sent)]
    (block,) = body["content"]
    if block["type"] == "text":
        assert block["text"] == "".join(piece.get("text", "") for piece in deltas)
    else:
        assert block["input"] == json.loads("".join(piece.get("partial_json", "") for piece in deltas))
    assert body["stop_reason"] == deltas[-2]["stop_reason"]


@pytest.mark.parametrize("name", ["messages", "messages-tool"])
def test_a_body_of_vllm_is_stored_and_can_be_streamed(name: str) -> None:
    request, body = load_capture(name)
    recording = record_body(request, body, LIMIT)
    assert isinstance(recording, RecordedResponse)
    assert recording.body == body
    frames = replay(entry_from(recording), STREAM_FORM)
    assert frames is not None
    # vLLM omits a null from its JSON that its events contain.
    again = json.loads(recorded_response(recorded(frames), STREAM_FORM).body or b"")
    assert again == {**json.loads(body), "stop_sequence": None}


def test_a_dying_engine_fails_its_stream() -> None:
    request, sent = load_capture("messages-core-killed-stream")
    recorder = make_recorder(request.endpoint, LIMIT)
    assert recorder.feed(sent) == sent[: sent.index(b"event: error")]
    assert recorder.recorded_response(request) is NotStoredReason.ERROR
