"""Recorded chunks pass unchanged and at once, and only a complete, successful response is stored."""

import json
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.recording import MAX_EVENT_SIZE
from router.core.endpoints.recording.sse import DONE
from tests.support.endpoints import choices_recorder, record_body
from tests.support.examples import EXAMPLES
from tests.support.factories import (
    HELLO_EVENTS,
    JSON_VALUES,
    ODD_EVENT,
    ROLE_EVENT,
    USAGE_EVENT,
    chat,
    chat_event,
    choice_delta,
    client_view,
    completion,
    encode_event,
    entry_from,
    load_capture,
    record_stream,
    recorded_response,
    replayed_frames,
    replayed_usage_frame,
    sse_stream,
)
from tests.support.replay_helpers import replay_json

LIMIT: Final = 1 << 20
CHAT_REQUEST: Final = chat(stream=True)


def cut(sent: bytes, cuts: list[int]) -> tuple[ChoicesRecorder, bytes]:
    """A recorder that was fed in pieces, and everything that it passed on."""
    recorder = choices_recorder(LIMIT)
    passed = b"".join(recorder.feed(sent[a:b]) for a, b in pairwise([0, *cuts, len(sent)]))
    return recorder, passed


def observed(recorder: ChoicesRecorder, inference_request: InferenceRequest = CHAT_REQUEST) -> tuple[Any, ...]:
    """Everything that a recorder reports at the end."""
    return (
        recorder.started,
        recorder.ended,
        recorder.failure,
        recorder.is_complete,
        client_view(recorder.recorded_response(inference_request)),
    )


# Cuts

STREAMS: Final = {
    "plain": sse_stream(*HELLO_EVENTS),
    "with usage": sse_stream(*HELLO_EVENTS, USAGE_EVENT),
    "with comments": b": hi\n\n" + sse_stream(*HELLO_EVENTS).replace(b"\n\ndata", b"\n\n: ping\n\ndata") + b": bye\n\n",
    "crlf": sse_stream(*HELLO_EVENTS, USAGE_EVENT).replace(b"\n", b"\r\n"),
    "mixed line ends": sse_stream(*HELLO_EVENTS[:2]).removesuffix(DONE)
    + sse_stream(*HELLO_EVENTS[2:], USAGE_EVENT).replace(b"\n", b"\r\n"),
    "several data lines": sse_stream(*HELLO_EVENTS).replace(b'"choices"', b'\ndata: "choices"'),
    "error": sse_stream(*HELLO_EVENTS[:2], {"error": {"message": "x"}}),
    "without done": sse_stream(*HELLO_EVENTS).removesuffix(DONE),
    "broken off": sse_stream(*HELLO_EVENTS)[:-9],
    "not finished": sse_stream(*HELLO_EVENTS[:-1], USAGE_EVENT),
    "empty": sse_stream(ROLE_EVENT, chat_event(choice_delta(finish="stop")), USAGE_EVENT),
    "after the end": sse_stream(*HELLO_EVENTS) + sse_stream(*HELLO_EVENTS) + b"data: x",
    "unicode": sse_stream(
        ROLE_EVENT,
        chat_event(choice_delta(content="é\u0301 🚂\r\n\t")),
        chat_event(choice_delta(finish="stop")),
        USAGE_EVENT,
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_every_single_cut_of_a_stream_makes_no_difference(name: str) -> None:
    sent = STREAMS[name]
    recorder, passed = cut(sent, [])
    for at in range(1, len(sent)):
        again, also_passed = cut(sent, [at])
        assert also_passed == passed
        assert observed(again) == observed(recorder)


@given(st.sampled_from(sorted(STREAMS)), st.data())
def test_a_stream_is_recorded_the_same_wherever_it_is_cut(name: str, data: st.DataObject) -> None:
    sent = STREAMS[name]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)), max_size=12)))
    recorder, passed = cut(sent, [])
    again, also_passed = cut(sent, cuts)
    assert also_passed == passed
    assert observed(again) == observed(recorder)


@pytest.mark.parametrize("name", ["chat-stream-usage", "chat-n2-stream", "chat-tool-required-stream"])
def test_a_stream_of_vllm_is_recorded_the_same_byte_by_byte(name: str) -> None:
    request, sent = load_capture(name)
    again, passed = cut(sent, list(range(1, len(sent))))
    assert observed(again, request) == observed(record_stream(sent, endpoint=request.endpoint), request)
    assert passed == choices_recorder(LIMIT).feed(sent)


# Passing on


def test_a_stream_is_forwarded_unchanged_except_for_the_usage_and_the_end() -> None:
    sent = b"".join(map(encode_event, HELLO_EVENTS))
    for usage in ((), (USAGE_EVENT,)):
        assert choices_recorder(LIMIT).feed(sse_stream(*HELLO_EVENTS, *usage)) == sent


def test_the_first_complete_event_is_forwarded_at_once() -> None:
    recorder = choices_recorder(LIMIT)
    first, second = map(encode_event, HELLO_EVENTS[:2])
    assert recorder.feed(first) == first
    assert recorder.feed(second + b"data: {") == second
    assert recorder.started


@pytest.mark.parametrize(
    "silent",
    [
        b": ping\n\n",
        encode_event(ROLE_EVENT),
        encode_event(chat_event(choice_delta(content=None))),
        encode_event(chat_event(choice_delta(tool_calls=[]))),
    ],
)
def test_a_role_or_a_comment_is_not_a_first_token(silent: bytes) -> None:
    recorder = choices_recorder(LIMIT)
    assert recorder.feed(silent) == silent
    assert not recorder.started


@pytest.mark.parametrize(
    "event",
    [
        chat_event(choice_delta(content="x")),
        chat_event(choice_delta(content=" ")),
        chat_event(choice_delta(reasoning="x")),
        chat_event(choice_delta(reasoning_content="x")),
        chat_event(choice_delta(refusal="x")),
        chat_event(choice_delta(role="assistant", content="x")),
        chat_event(choice_delta(tool_calls=[{"index": 0}])),
        chat_event({"index": 0, "text": "x"}),
    ],
)
def test_any_content_is_a_first_token(event: Any) -> None:
    recorder = choices_recorder(LIMIT)
    recorder.feed(encode_event(ROLE_EVENT))
    recorder.feed(encode_event(event))
    assert recorder.started


@pytest.mark.parametrize("text", ['"usage"', '"error"', "[DONE]", "data: [DONE]\n\n", '{"error": {}}', 'usage": null'])
def test_text_that_looks_like_an_end_is_forwarded_unchanged(text: str) -> None:
    events = [
        ROLE_EVENT,
        chat_event(choice_delta(content=text)),
        chat_event(choice_delta(content="b")),
        chat_event(choice_delta(content=text, finish="stop")),
    ]
    sent = b"".join(map(encode_event, events))
    recorder, passed = cut(sent + DONE, [len(encode_event(ROLE_EVENT)), len(sent) - 5])
    assert passed == sent
    body = replay_json(recorded_response(recorder, CHAT_REQUEST))
    assert body["choices"][0]["message"]["content"] == f"{text}b{text}"


def test_a_client_that_requests_the_usage_gets_the_engines_own_event() -> None:
    recorder = record_stream(sse_stream(*HELLO_EVENTS, USAGE_EVENT))
    assert recorder.final_frames(include_usage=True) == encode_event(USAGE_EVENT) + DONE
    assert recorder.final_frames(include_usage=False) == DONE
    assert recorder.usage is not None
    assert (recorder.usage.prompt_tokens, recorder.usage.completion_tokens) == (3, 2)


def test_without_usage_from_the_engine_the_client_gets_none_and_tokens_are_estimated() -> None:
    recorder = record_stream(sse_stream(*HELLO_EVENTS))
    assert recorder.final_frames(include_usage=True) == DONE
    assert recorder.usage is None
    assert replayed_usage_frame(recorded_response(recorder, CHAT_REQUEST)) == b""
    recorded = recorded_response(recorder, CHAT_REQUEST)
    assert recorded.prompt_tokens == len(CHAT_REQUEST.body) // 4
    assert recorded.completion_tokens > 0


def test_usage_beside_choices_is_part_of_the_stream() -> None:
    usage_so_far = {"prompt_tokens": 3, "completion_tokens": 1}
    events = [
        ROLE_EVENT,
        chat_event(choice_delta(content="x"), usage=usage_so_far),
        chat_event(choice_delta(finish="stop"), usage=usage_so_far),
    ]
    assert choices_recorder(LIMIT).feed(sse_stream(*events, USAGE_EVENT)) == b"".join(map(encode_event, events))


def test_a_negative_usage_is_ignored() -> None:
    recorder, _ = cut(b'data: {"choices":[],"usage":{"prompt_tokens":-3,"completion_tokens":-1}}\n\n', [])
    assert recorder.usage is not None
    assert (recorder.usage.prompt_tokens, recorder.usage.completion_tokens) == (0, 0)


def test_a_usage_of_null_is_none() -> None:
    events = [{**event, "usage": None, "error": None} for event in HELLO_EVENTS]
    recorder = record_stream(sse_stream(*events, USAGE_EVENT))
    assert replayed_frames(recorded_response(recorder, CHAT_REQUEST)) == b"".join(map(encode_event, events))


def test_an_error_and_everything_after_it_is_held_back() -> None:
    recorder = choices_recorder(LIMIT)
    error = encode_event({"error": {"message": "EngineCore died", "code": 500}})
    assert recorder.feed(encode_event(HELLO_EVENTS[0]) + encode_event(HELLO_EVENTS[1])) == encode_event(
        HELLO_EVENTS[0]
    ) + encode_event(HELLO_EVENTS[1])
    assert recorder.feed(error + DONE) == b""
    assert recorder.failure == error[6:-2]
    assert not recorder.is_complete
    assert recorder.feed(encode_event(HELLO_EVENTS[1])) == b""


def test_nothing_is_forwarded_after_the_end() -> None:
    recorder = record_stream(sse_stream(*HELLO_EVENTS))
    assert recorder.feed(encode_event(HELLO_EVENTS[1])) == b""
    assert recorder.is_complete
    assert replayed_frames(recorded_response(recorder, CHAT_REQUEST)) == b"".join(map(encode_event, HELLO_EVENTS))


@pytest.mark.parametrize(
    "event",
    [
        b"data: {\n\n",
        b"data: \xff\n\n",
        b"data: [1]\n\n",
        b'data: {"choices":[1]}\n\n',
        b"data: " + b"[" * 10**5 + b"\n\n",
    ],
)
def test_an_invalid_event_is_a_failure_before_the_first_token(event: bytes) -> None:
    recorder = record_stream(event)
    assert recorder.failure is not None
    assert recorder.recorded_response(CHAT_REQUEST) is NotStoredReason.ERROR


def test_an_event_without_end_is_a_failure() -> None:
    recorder = choices_recorder(LIMIT)
    assert recorder.feed(b"data: " + b"x" * (MAX_EVENT_SIZE - 10)) == b""
    assert recorder.failure is None
    assert recorder.feed(b"x" * 10) == b""
    assert recorder.failure is not None


# What is stored


def test_a_complete_stream_is_stored_as_received_and_as_json() -> None:
    recording = recorded_response(record_stream(sse_stream(*HELLO_EVENTS, USAGE_EVENT)), CHAT_REQUEST)
    assert replayed_frames(recording) == b"".join(map(encode_event, HELLO_EVENTS))
    assert replayed_usage_frame(recording) == encode_event(USAGE_EVENT)
    assert (recording.prompt_tokens, recording.completion_tokens) == (3, 2)
    assert replay_json(recording)["choices"][0]["message"]["content"] == "Hello"


FINISH: Final = chat_event(choice_delta(finish="stop"))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", NotStoredReason.INCOMPLETE),
        (sse_stream(*HELLO_EVENTS).removesuffix(DONE), NotStoredReason.INCOMPLETE),
        (sse_stream(*HELLO_EVENTS)[:-1], NotStoredReason.INCOMPLETE),
        (sse_stream(*HELLO_EVENTS[:-1]), NotStoredReason.INCOMPLETE),
        (sse_stream(*HELLO_EVENTS[:-1], chat_event(choice_delta(finish=""))), NotStoredReason.INCOMPLETE),
        (sse_stream(*HELLO_EVENTS[:-1], chat_event(choice_delta(finish="abort"))), NotStoredReason.INCOMPLETE),
        (sse_stream(*HELLO_EVENTS[:-1], chat_event(choice_delta(finish="error"))), NotStoredReason.INCOMPLETE),
        (sse_stream(*HELLO_EVENTS, chat_event(choice_delta(1, content="x"))), NotStoredReason.INCOMPLETE),
        (DONE, NotStoredReason.INCOMPLETE),
        (sse_stream(USAGE_EVENT), NotStoredReason.INCOMPLETE),
        (sse_stream(ROLE_EVENT, FINISH), NotStoredReason.EMPTY),
        (sse_stream(ROLE_EVENT, chat_event(choice_delta(content="")), FINISH, USAGE_EVENT), NotStoredReason.EMPTY),
        (sse_stream(ROLE_EVENT, chat_event(choice_delta(content=None, tool_calls=[])), FINISH), NotStoredReason.EMPTY),
        (sse_stream(*HELLO_EVENTS, {"error": {"message": "x"}}), NotStoredReason.ERROR),
        (sse_stream({"error": "x"}), NotStoredReason.ERROR),
        (sse_stream(*HELLO_EVENTS[:2], {"choices": [{"delta": {"content": "x"}}]}, FINISH), NotStoredReason.ERROR),
        (sse_stream(*HELLO_EVENTS[:2]).removesuffix(DONE) + b"data: {\n\n" + sse_stream(FINISH), NotStoredReason.ERROR),
    ],
)
def test_only_a_complete_and_successful_response_is_stored(sent: bytes, reason: NotStoredReason) -> None:
    assert record_stream(sent).recorded_response(CHAT_REQUEST) is reason
    again, _ = cut(sent, list(range(1, len(sent))))
    assert again.recorded_response(CHAT_REQUEST) is reason


def test_every_requested_choice_must_end() -> None:
    both = chat_event(choice_delta(0, "stop", content="a"), choice_delta(1, "length", content="b"))
    one = chat_event(choice_delta(0, "stop", content="a"), choice_delta(1, content="b"))
    assert isinstance(record_stream(sse_stream(both)).recorded_response(chat(n=2, stream=True)), RecordedResponse)
    for sent in (
        sse_stream(one),
        sse_stream(chat_event(choice_delta(0, "stop", content="a"))),
        sse_stream(*[chat_event(choice_delta(0, "stop"))] * 2),
    ):
        assert record_stream(sent).recorded_response(chat(n=2, stream=True)) is NotStoredReason.INCOMPLETE


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 1),
        ({"n": 2}, 2),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": ["a", "b"], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
    ],
)
def test_each_prompt_of_a_completion_has_its_choices(fields: dict[str, Any], expected: int) -> None:
    request = completion(**fields)
    for count in (expected - 1, expected):
        choices = [{"index": index, "text": "x", "finish_reason": "stop"} for index in range(count)]
        kept = isinstance(
            record_stream(sse_stream({"choices": choices}), endpoint=COMPLETIONS).recorded_response(request),
            RecordedResponse,
        )
        assert kept == (count == expected)
        body = json.dumps({"choices": choices}).encode()
        assert isinstance(record_body(request, body, LIMIT), RecordedResponse) == (count == expected)


def test_a_stream_over_the_limit_is_forwarded_and_not_stored() -> None:
    frames = b"".join(map(encode_event, HELLO_EVENTS))

    def fed_recorder(limit: int) -> ChoicesRecorder:
        recorder = choices_recorder(limit)
        assert b"".join(recorder.feed(encode_event(event)) for event in HELLO_EVENTS) == frames
        recorder.feed(encode_event(USAGE_EVENT) + DONE)
        assert recorder.is_complete
        assert recorder.usage is not None
        return recorder

    size = entry_from(recorded_response(fed_recorder(LIMIT), CHAT_REQUEST)).size
    assert isinstance(fed_recorder(size).recorded_response(CHAT_REQUEST), RecordedResponse)
    assert fed_recorder(size - 1).recorded_response(CHAT_REQUEST) is NotStoredReason.TOO_LARGE
    assert fed_recorder(0).recorded_response(CHAT_REQUEST) is NotStoredReason.TOO_LARGE


def test_a_message_beside_the_deltas_leaves_the_stream_without_a_json_form() -> None:
    events = [
        chat_event(choice_delta(content="Hel")),
        chat_event({**choice_delta(content="lo", finish="stop"), "message": {"content": "x"}}),
    ]
    assert replay_json(recorded_response(record_stream(sse_stream(*events)), CHAT_REQUEST)) is None


def test_events_that_are_json_only_together_are_an_error() -> None:
    broken = b'data: {"v":[1\n\ndata: 2]}\n\n'
    assert (
        record_stream(
            sse_stream(*HELLO_EVENTS[:2]).removesuffix(DONE) + broken + sse_stream(*HELLO_EVENTS[2:])
        ).recorded_response(CHAT_REQUEST)
        is NotStoredReason.ERROR
    )


# Arbitrary input


@settings(max_examples=3 * EXAMPLES)
@given(st.lists(ODD_EVENT | JSON_VALUES, max_size=3), st.booleans())
def test_no_events_of_an_engine_raise_anything(events: list[Any], has_started: bool) -> None:
    for request in (CHAT_REQUEST, completion(stream=True)):
        beginning = [ROLE_EVENT, HELLO_EVENTS[1]] if has_started else []
        recorder = record_stream(sse_stream(*beginning, *events), endpoint=request.endpoint)
        assert isinstance(recorder.recorded_response(request), RecordedResponse | NotStoredReason)


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"data: ", b"\n\n", b"\r\n", b"[DONE]", b'{"choices":[]}'])))
def test_no_bytes_of_an_engine_raise_anything(pieces: list[bytes]) -> None:
    recorder = choices_recorder(LIMIT)
    for received in pieces:
        recorder.feed(received)
    assert isinstance(recorder.recorded_response(CHAT_REQUEST), NotStoredReason)
