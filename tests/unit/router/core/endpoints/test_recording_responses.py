"""Streams and bodies of /v1/responses: what is stored, and that both forms are equivalent."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.endpoint import Recorder
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.replay import replay
from router.core.endpoints.recording.sse import DONE, payload, split_events
from router.core.endpoints.responses import RESPONSES
from tests.support.endpoints import make_recorder, record_body
from tests.support.factories import (
    JSON_VALUES,
    TEXTS,
    client_view,
    entry_from,
    event_payloads,
    load_capture,
    recorded_response,
    replayed_frames,
    replayed_usage_frame,
    responses,
    typed_stream,
)

JSON_FORM: Final = responses()
STREAM_FORM: Final = responses(stream=True)
LIMIT: Final = 1 << 20
USAGE: Final = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


def text_part(text: str, **beside: Any) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None, **beside}


def message(*texts: str) -> dict[str, Any]:
    content = [text_part(text) for text in texts]
    return {"id": "msg_1", "content": content, "role": "assistant", "status": "completed", "type": "message"}


def reasoning(text: str) -> dict[str, Any]:
    content = [{"text": text, "type": "reasoning_text"}]
    return {"id": "rs_1", "summary": [], "type": "reasoning", "content": content, "encrypted_content": None}


CALL: Final = {"arguments": '{"x": "é"}', "call_id": "c", "name": "f", "type": "function_call", "id": "fc_1"}


def response(*output: Any, status: str = "completed", **beside: Any) -> dict[str, Any]:
    return {"id": "resp_1", "created_at": 7, "object": "response", "output": [*output], "status": status,
            "usage": USAGE, "metadata": {"a": "b"}, "incomplete_details": None, **beside}  # fmt: skip


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {**fields, "sequence_number": 0, "type": f"response.{kind}"}


BEGUN: Final = response(status="in_progress", usage=None)
OPENING: Final = (
    event("created", response=BEGUN),
    event("in_progress", response=BEGUN),
    event("output_item.added", item={**message(), "status": "in_progress"}, output_index=0),
    event("content_part.added", part=text_part(""), content_index=0),
)
HELLO: Final = (
    *OPENING,
    event("output_text.delta", delta="Hel", logprobs=[]),
    event("output_text.delta", delta="lo", logprobs=[]),
    event("output_text.done", text="Hello"),
)


def completed(answer: dict[str, Any], kind: str = "completed") -> dict[str, Any]:
    return event(kind, response=answer)


def recorded(sent: bytes, limit: int = LIMIT) -> Recorder:
    recorder = make_recorder(RESPONSES, limit)
    recorder.feed(sent)
    return recorder


def kept(*events: dict[str, Any]) -> RecordedResponse | NotStoredReason:
    return recorded(typed_stream(*events)).recorded_response(STREAM_FORM)


# A stream


def test_a_stream_is_forwarded_unchanged_except_for_its_end_which_is_sent_later() -> None:
    last = typed_stream(completed(response(message("Hello"))))
    recorder = make_recorder(RESPONSES, LIMIT)
    assert recorder.feed(typed_stream(*HELLO)) == typed_stream(*HELLO)
    assert not recorder.is_complete
    assert recorder.feed(last) == b""
    assert recorder.ended
    assert recorder.final_frames(include_usage=False) == recorder.final_frames(include_usage=True) == last


def test_the_json_form_of_a_stream_is_the_response_of_its_last_event_byte_for_byte() -> None:
    answer = json.dumps(response(message("Hello")), ensure_ascii=False, separators=(", ", ":")).encode()
    last = b'event: response.completed\ndata: {"response":%b,"type":"response.completed"}\n\n' % answer
    recording = recorded_response(recorded(typed_stream(*HELLO) + last), STREAM_FORM)
    assert recording.body == answer
    assert replayed_frames(recording) == typed_stream(*HELLO) + last
    assert replayed_usage_frame(recording) == b""
    assert (recording.prompt_tokens, recording.completion_tokens) == (3, 2)
    assert replay(entry_from(recording), JSON_FORM) == answer
    assert replay(entry_from(recording), STREAM_FORM) == typed_stream(*HELLO) + last


@given(st.data())
def test_where_the_network_cuts_a_stream_does_not_matter(data: Any) -> None:
    sent = typed_stream(*HELLO, completed(response(message("Hello"))))
    recorder = make_recorder(RESPONSES, LIMIT)
    received, rest = b"", sent
    while rest:
        size = data.draw(st.integers(1, 200))
        received += recorder.feed(rest[:size])
        rest = rest[size:]
    assert received + recorder.final_frames(include_usage=False) == sent
    assert client_view(recorder.recorded_response(STREAM_FORM)) == client_view(
        recorded(sent).recorded_response(STREAM_FORM)
    )


def test_events_without_content_do_not_start_a_stream() -> None:
    recorder = make_recorder(RESPONSES, LIMIT)
    for one in (*OPENING, event("output_text.delta", delta=""), event("web_search_call.in_progress")):
        recorder.feed(typed_stream(one))
        recorder.feed(b": a comment\n\n")
        assert not recorder.started
    recorder.feed(typed_stream(HELLO[4]))
    assert recorder.started


@pytest.mark.parametrize(
    "one",
    [
        event("reasoning_text.delta", delta="x"),
        event("function_call_arguments.delta", delta="{"),
        event("output_item.added", item={**CALL, "arguments": ""}),
        event("custom_tool_call_input.delta", delta="x"),
        event("refusal.delta", delta="x"),
    ],
)
def test_any_piece_of_content_or_the_name_of_a_function_starts_a_stream(one: dict[str, Any]) -> None:
    assert recorded(typed_stream(*OPENING, one)).started


@pytest.mark.parametrize(
    "failed",
    [
        {"type": "error", "code": "x", "message": "y", "param": None},
        {"type": "error", "error": {"message": "y"}},
        completed(response(status="failed", error={"code": "server_error"}), "failed"),
    ],
)
def test_an_error_is_held_back_and_nothing_is_stored(failed: dict[str, Any]) -> None:
    recorder = make_recorder(RESPONSES, LIMIT)
    assert recorder.feed(typed_stream(*HELLO, failed)) == typed_stream(*HELLO)
    assert json.loads(recorder.failure or b"") == failed
    assert not recorder.is_complete
    assert recorder.feed(typed_stream(completed(response(message("Hello"))))) == b""
    assert recorder.recorded_response(STREAM_FORM) is NotStoredReason.ERROR


def test_an_error_in_the_format_of_openais_other_streams_is_one_here() -> None:
    recorder = recorded(typed_stream(*HELLO) + b'data: {"error": {"message": "x"}}\n\n')
    assert recorder.failure is not None


@pytest.mark.parametrize("broken", [b"data: {\n\n", b"event: x\ndata: []\n\n", b'data: {"type": 1}\n\n'])
def test_an_invalid_event_fails_a_stream_that_has_not_started(broken: bytes) -> None:
    recorder = recorded(typed_stream(HELLO[0]) + broken)
    assert recorder.failure is not None
    assert recorder.recorded_response(STREAM_FORM) is NotStoredReason.ERROR


def test_a_broken_event_in_the_middle_is_not_stored() -> None:
    recorder = make_recorder(RESPONSES, LIMIT)
    recorder.feed(typed_stream(*HELLO))
    recorder.feed(b'event: response.output_text.delta\ndata: {"delta\n\n')
    recorder.feed(typed_stream(completed(response(message("Hello")))))
    assert recorder.recorded_response(STREAM_FORM) is NotStoredReason.ERROR


def test_a_stream_without_its_last_event_is_not_stored_whatever_else_it_ends_with() -> None:
    for end in (b"", DONE):
        recorder = recorded(typed_stream(*HELLO) + end)
        assert not recorder.ended
        assert recorder.recorded_response(STREAM_FORM) is NotStoredReason.INCOMPLETE


def test_a_done_after_the_last_event_is_not_forwarded() -> None:
    sent = typed_stream(*HELLO, completed(response(message("Hello"))))
    recorder = recorded(sent + DONE)
    assert replayed_frames(recorded_response(recorder, STREAM_FORM)) == sent


TOKENS: Final = {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("answer", "kind", "verdict"),
    [
        (response(message("x")), "completed", None),
        (response(message("x"), status="incomplete", incomplete_details=TOKENS), "completed", None),
        (response(message("x"), status="incomplete", incomplete_details=TOKENS), "incomplete", None),
        (response(CALL), "completed", None),
        (response(reasoning("x")), "completed", None),
        (response(message("x"), status="incomplete", incomplete_details={"reason": "content_filter"}), "incomplete",
         NotStoredReason.INCOMPLETE),
        (response(message("x"), status="incomplete"), "completed", NotStoredReason.INCOMPLETE),
        (response(message("x"), status="cancelled"), "completed", NotStoredReason.INCOMPLETE),
        (response(message("x"), status="in_progress"), "completed", NotStoredReason.INCOMPLETE),
        (response(), "completed", NotStoredReason.EMPTY),
        (response(message()), "completed", NotStoredReason.EMPTY),
        (response(message("")), "completed", NotStoredReason.EMPTY),
        (response(status="incomplete", incomplete_details=TOKENS), "completed", NotStoredReason.EMPTY),
        (response(message("x"), error={"code": "x"}), "completed", NotStoredReason.ERROR),
    ],
)  # fmt: skip
def test_only_a_complete_response_is_stored_in_either_form(
    answer: dict[str, Any], kind: str, verdict: NotStoredReason | None
) -> None:
    recorder = recorded(typed_stream(*HELLO, completed(answer, kind)))
    assert recorder.is_complete  # for the client it has ended as the engine intended
    body = json.dumps(answer).encode()
    for recording in (recorder.recorded_response(STREAM_FORM), record_body(JSON_FORM, body, LIMIT)):
        assert (recording if verdict is not None else isinstance(recording, RecordedResponse)) == (verdict or True)


def test_a_response_over_the_limit_including_its_last_event_is_not_stored() -> None:
    sent = typed_stream(*HELLO, completed(response(message("Hello"))))
    size = entry_from(recorded_response(recorded(sent), STREAM_FORM)).size
    assert isinstance(recorded(sent, size).recorded_response(STREAM_FORM), RecordedResponse)
    assert recorded(sent, size - 1).recorded_response(STREAM_FORM) is NotStoredReason.TOO_LARGE
    recorder = make_recorder(RESPONSES, 10)
    assert recorder.feed(sent) + recorder.final_frames(include_usage=False) == sent


# A body


def body_of(answer: Any) -> bytes:
    return json.dumps(answer).encode()


def test_a_body_is_stored_byte_for_byte() -> None:
    body = json.dumps(response(message("x")), indent=2).encode()
    recording = record_body(JSON_FORM, body, LIMIT)
    assert recording == RecordedResponse(body=body, stream=None, prompt_tokens=3, completion_tokens=2)
    assert record_body(JSON_FORM, body, len(body) - 1) is NotStoredReason.TOO_LARGE


@given(JSON_VALUES | st.fixed_dictionaries({"status": JSON_VALUES, "output": JSON_VALUES | st.lists(JSON_VALUES)}))
def test_no_body_makes_a_recorder_or_a_replay_fail(body: Any) -> None:
    recording = record_body(JSON_FORM, body_of(body), LIMIT)
    assert isinstance(recording, NotStoredReason | RecordedResponse)
    if isinstance(recording, RecordedResponse):
        replay(entry_from(recording), STREAM_FORM)


def streamed(answer: dict[str, Any]) -> list[Any] | None:
    """The events of a JSON response's stream."""
    recording = record_body(JSON_FORM, body_of(answer), LIMIT)
    assert isinstance(recording, RecordedResponse)
    frames = replay(entry_from(recording), STREAM_FORM)
    return None if frames is None else event_payloads(frames)


@given(TEXTS, TEXTS)
def test_a_body_as_a_stream_has_the_same_content_and_is_recorded_as_the_same(thought: str, content: str) -> None:
    answer = response(reasoning(thought), message(content, "more"), CALL)
    events = streamed(answer)
    assert events is not None
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    deltas = {one["type"]: one["delta"] for one in reversed(events) if "delta" in one}
    assert deltas == {
        "response.reasoning_text.delta": thought,
        "response.output_text.delta": content,
        "response.function_call_arguments.delta": CALL["arguments"],
    }
    assert [one["item"] for one in events if one["type"] == "response.output_item.done"] == answer["output"]
    assert events[0]["response"] == {**answer, "output": [], "status": "in_progress", "usage": None}
    again = recorded(typed_stream(*events))
    assert again.started
    assert json.loads(recorded_response(again, STREAM_FORM).body or b"") == answer


@pytest.mark.parametrize(
    "item",
    [
        {**message(), "content": [text_part("x", annotations=[{"type": "url_citation"}])]},
        {**message(), "content": [text_part("x", logprobs=[{"token": "x"}])]},
        {**message(), "content": [{"type": "refusal", "refusal": "No."}]},
        {**reasoning("x"), "summary": [{"type": "summary_text", "text": "x"}]},
        {**reasoning("x"), "encrypted_content": "x"},
        {"type": "mcp_call", "id": "m"},
        {"type": "custom_tool_call", "input": "x"},
    ],
)
def test_a_response_with_unknown_content_is_replayed_only_as_json(item: dict[str, Any]) -> None:
    assert streamed(response(item, message("x"))) is None


# Captures of a real vLLM server


@pytest.mark.parametrize("name", ["responses-stream", "responses-tool-stream"])
def test_a_stream_of_vllm_is_stored_in_both_forms(name: str) -> None:
    request, sent = load_capture(name)
    recorder = make_recorder(request.endpoint, LIMIT)
    assert recorder.feed(sent) + recorder.final_frames(include_usage=False) == sent
    recording = recorded_response(recorder, request)
    assert replayed_frames(recording) == sent
    assert recording.completion_tokens > 0
    last = payload(split_events(sent)[-1]) or b""
    assert json.loads(last)["response"] == json.loads(recording.body or b"")
    assert (recording.body or b"-") in last


@pytest.mark.parametrize("name", ["responses", "responses-items", "responses-tool"])
def test_a_body_of_vllm_is_stored_and_can_be_streamed(name: str) -> None:
    request, body = load_capture(name)
    recording = record_body(request, body, LIMIT)
    assert isinstance(recording, RecordedResponse)
    assert recording.body == body
    frames = replay(entry_from(recording), STREAM_FORM)
    assert frames is not None
    assert json.loads(recorded_response(recorded(frames), STREAM_FORM).body or b"") == json.loads(body)


def test_events_from_a_body_have_the_fields_of_vllms_own() -> None:
    """Compared by type: one converted event replaces several of vLLM's."""
    own: dict[str, Any] = {}
    for name in ("responses-stream", "responses-tool-stream"):
        own |= {one["type"]: one for one in event_payloads(load_capture(name)[1])}
    converted: dict[str, Any] = {}
    for name in ("responses", "responses-tool"):
        converted |= {one["type"]: one for one in streamed(json.loads(load_capture(name)[1])) or ()}
    assert {kind: event.keys() for kind, event in converted.items()} == {
        kind: event.keys() for kind, event in own.items()
    }
