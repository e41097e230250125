"""What passes goes on unchanged and at once, and only a whole, well-ended answer is kept."""

import json
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.endpoints.recorded_response import NotKept, Recording
from router.core.endpoints.recorders import record_body
from router.core.endpoints.recording import MAX_FRAME, StreamRecorder
from router.core.endpoints.request import Request
from router.core.endpoints.sse import DONE
from tests.support.factories import (
    HELLO,
    JSON,
    ODD_EVENT,
    ROLE,
    USAGE,
    captured,
    chat,
    chunk,
    completion,
    entry,
    frame,
    frames_of,
    given_by,
    piece,
    recorded,
    stream,
    usage_frame_of,
    whole,
)
from tests.support.replay_helpers import in_json

LIMIT: Final = 1 << 20
CHAT: Final = chat(stream=True)


def cut(sent: bytes, cuts: list[int]) -> tuple[StreamRecorder, bytes]:
    """A recorder that was fed in pieces, and all that it let go on."""
    recorder = StreamRecorder(LIMIT)
    passed = b"".join(recorder.feed(sent[a:b]) for a, b in pairwise([0, *cuts, len(sent)]))
    return recorder, passed


def seen(recorder: StreamRecorder, asked: Request = CHAT) -> tuple[Any, ...]:
    """All that a recorder can tell at the end."""
    return recorder.started, recorder.ended, recorder.failure, recorder.whole, given_by(recorder.recording(asked))


# Cuts

STREAMS: Final = {
    "plain": stream(*HELLO),
    "with usage": stream(*HELLO, USAGE),
    "with comments": b": hi\n\n" + stream(*HELLO).replace(b"\n\ndata", b"\n\n: ping\n\ndata") + b": bye\n\n",
    "crlf": stream(*HELLO, USAGE).replace(b"\n", b"\r\n"),
    "mixed line ends": stream(*HELLO[:2]).removesuffix(DONE) + stream(*HELLO[2:], USAGE).replace(b"\n", b"\r\n"),
    "several data lines": stream(*HELLO).replace(b'"choices"', b'\ndata: "choices"'),
    "error": stream(*HELLO[:2], {"error": {"message": "x"}}),
    "without done": stream(*HELLO).removesuffix(DONE),
    "broken off": stream(*HELLO)[:-9],
    "not finished": stream(*HELLO[:-1], USAGE),
    "empty": stream(ROLE, chunk(piece(finish="stop")), USAGE),
    "after the end": stream(*HELLO) + stream(*HELLO) + b"data: x",
    "unicode": stream(ROLE, chunk(piece(content="é\u0301 🚂\r\n\t")), chunk(piece(finish="stop")), USAGE),
}


@pytest.mark.parametrize("name", STREAMS)
def test_every_single_cut_of_a_stream_is_no_cut(name: str) -> None:
    sent = STREAMS[name]
    recorder, passed = cut(sent, [])
    for at in range(1, len(sent)):
        again, also_passed = cut(sent, [at])
        assert also_passed == passed
        assert seen(again) == seen(recorder)


@given(st.sampled_from(sorted(STREAMS)), st.data())
def test_a_stream_is_recorded_the_same_wherever_it_is_cut(name: str, data: st.DataObject) -> None:
    sent = STREAMS[name]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)), max_size=12)))
    recorder, passed = cut(sent, [])
    again, also_passed = cut(sent, cuts)
    assert also_passed == passed
    assert seen(again) == seen(recorder)


@pytest.mark.parametrize("name", ["chat-stream-usage", "chat-n2-stream", "chat-tool-required-stream"])
def test_a_stream_of_vllm_is_recorded_the_same_byte_by_byte(name: str) -> None:
    asked, sent = captured(name)
    again, passed = cut(sent, list(range(1, len(sent))))
    assert seen(again, asked) == seen(recorded(sent), asked)
    assert passed == StreamRecorder(LIMIT).feed(sent)


# Passing on


def test_what_passes_is_unchanged_but_for_the_usage_and_the_end() -> None:
    sent = b"".join(map(frame, HELLO))
    for usage in ((), (USAGE,)):
        assert StreamRecorder(LIMIT).feed(stream(*HELLO, *usage)) == sent


def test_the_first_complete_event_passes_at_once() -> None:
    recorder = StreamRecorder(LIMIT)
    first, second = map(frame, HELLO[:2])
    assert recorder.feed(first) == first
    assert recorder.feed(second + b"data: {") == second
    assert recorder.started


@pytest.mark.parametrize(
    "silent",
    [
        b": ping\n\n",
        b"event: x\n\n",
        frame(ROLE),
        frame(chunk(piece(content=None))),
        frame(chunk(piece(tool_calls=[]))),
    ],
)
def test_a_role_or_a_comment_is_no_first_token(silent: bytes) -> None:
    recorder = StreamRecorder(LIMIT)
    assert recorder.feed(silent) == silent
    assert not recorder.started


@pytest.mark.parametrize(
    "event",
    [
        chunk(piece(content="x")),
        chunk(piece(content=" ")),
        chunk(piece(reasoning="x")),
        chunk(piece(reasoning_content="x")),
        chunk(piece(refusal="x")),
        chunk(piece(role="assistant", content="x")),
        chunk(piece(tool_calls=[{"index": 0}])),
        chunk({"index": 0, "text": "x"}),
    ],
)
def test_any_content_is_a_first_token(event: Any) -> None:
    recorder = StreamRecorder(LIMIT)
    recorder.feed(frame(ROLE))
    recorder.feed(frame(event))
    assert recorder.started


@pytest.mark.parametrize("text", ['"usage"', '"error"', "[DONE]", "data: [DONE]\n\n", '{"error": {}}', 'usage": null'])
def test_text_that_looks_like_an_end_passes_unchanged(text: str) -> None:
    events = [ROLE, chunk(piece(content=text)), chunk(piece(content="b")), chunk(piece(content=text, finish="stop"))]
    sent = b"".join(map(frame, events))
    recorder, passed = cut(sent + DONE, [len(frame(ROLE)), len(sent) - 5])
    assert passed == sent
    body = in_json(whole(recorder, CHAT))
    assert body["choices"][0]["message"]["content"] == f"{text}b{text}"


def test_a_client_that_asked_for_the_usage_gets_the_engines_own_event() -> None:
    recorder = recorded(stream(*HELLO, USAGE))
    assert recorder.ending(include_usage=True) == frame(USAGE) + DONE
    assert recorder.ending(include_usage=False) == DONE
    assert recorder.usage is not None
    assert (recorder.usage.prompt_tokens, recorder.usage.completion_tokens) == (3, 2)


def test_without_usage_from_the_engine_there_is_none() -> None:
    recorder = recorded(stream(*HELLO))
    assert recorder.ending(include_usage=True) == DONE
    assert recorder.usage is None
    assert usage_frame_of(whole(recorder, CHAT)) == b""
    assert whole(recorder, CHAT).prompt_tokens == 0


def test_usage_beside_choices_is_part_of_the_stream() -> None:
    told = {"prompt_tokens": 3, "completion_tokens": 1}
    events = [ROLE, chunk(piece(content="x"), usage=told), chunk(piece(finish="stop"), usage=told)]
    assert StreamRecorder(LIMIT).feed(stream(*events, USAGE)) == b"".join(map(frame, events))


def test_a_usage_below_nothing_is_nothing() -> None:
    recorder, _ = cut(b'data: {"choices":[],"usage":{"prompt_tokens":-3,"completion_tokens":-1}}\n\n', [])
    assert recorder.usage is not None
    assert (recorder.usage.prompt_tokens, recorder.usage.completion_tokens) == (0, 0)


def test_a_usage_of_null_is_none() -> None:
    events = [{**event, "usage": None, "error": None} for event in HELLO]
    recorder = recorded(stream(*events, USAGE))
    assert frames_of(whole(recorder, CHAT)) == b"".join(map(frame, events))


def test_an_error_and_what_comes_after_it_is_held_back() -> None:
    recorder = StreamRecorder(LIMIT)
    error = frame({"error": {"message": "EngineCore died", "code": 500}})
    assert recorder.feed(frame(HELLO[0]) + frame(HELLO[1])) == frame(HELLO[0]) + frame(HELLO[1])
    assert recorder.feed(error + DONE) == b""
    assert recorder.failure == error[6:-2]
    assert not recorder.whole
    assert recorder.feed(frame(HELLO[1])) == b""


def test_nothing_passes_after_the_end() -> None:
    recorder = recorded(stream(*HELLO))
    assert recorder.feed(frame(HELLO[1])) == b""
    assert recorder.whole
    assert frames_of(whole(recorder, CHAT)) == b"".join(map(frame, HELLO))


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
def test_an_event_that_is_no_answer_is_a_failure_before_the_first_token(event: bytes) -> None:
    recorder = recorded(event)
    assert recorder.failure is not None
    assert recorder.recording(CHAT) is NotKept.ERROR


def test_an_event_without_end_is_a_failure() -> None:
    recorder = StreamRecorder(LIMIT)
    assert recorder.feed(b"data: " + b"x" * (MAX_FRAME - 10)) == b""
    assert recorder.failure is None
    assert recorder.feed(b"x" * 10) == b""
    assert recorder.failure is not None


# What is kept


def test_a_whole_stream_is_kept_as_it_came_and_as_json() -> None:
    recording = whole(recorded(stream(*HELLO, USAGE)), CHAT)
    assert frames_of(recording) == b"".join(map(frame, HELLO))
    assert usage_frame_of(recording) == frame(USAGE)
    assert (recording.prompt_tokens, recording.completion_tokens) == (3, 2)
    assert in_json(recording)["choices"][0]["message"]["content"] == "Hello"


FINISH: Final = chunk(piece(finish="stop"))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", NotKept.INCOMPLETE),
        (stream(*HELLO).removesuffix(DONE), NotKept.INCOMPLETE),
        (stream(*HELLO)[:-1], NotKept.INCOMPLETE),
        (stream(*HELLO[:-1]), NotKept.INCOMPLETE),
        (stream(*HELLO[:-1], chunk(piece(finish=""))), NotKept.INCOMPLETE),
        (stream(*HELLO[:-1], chunk(piece(finish="abort"))), NotKept.INCOMPLETE),
        (stream(*HELLO[:-1], chunk(piece(finish="error"))), NotKept.INCOMPLETE),
        (stream(*HELLO, chunk(piece(1, content="x"))), NotKept.INCOMPLETE),
        (DONE, NotKept.INCOMPLETE),
        (stream(USAGE), NotKept.INCOMPLETE),
        (stream(ROLE, FINISH), NotKept.EMPTY),
        (stream(ROLE, chunk(piece(content="")), FINISH, USAGE), NotKept.EMPTY),
        (stream(ROLE, chunk(piece(content=None, tool_calls=[])), FINISH), NotKept.EMPTY),
        (stream(*HELLO, {"error": {"message": "x"}}), NotKept.ERROR),
        (stream({"error": "x"}), NotKept.ERROR),
        (stream(*HELLO[:2], {"choices": [{"delta": {"content": "x"}}]}, FINISH), NotKept.ERROR),
        (stream(*HELLO[:2]).removesuffix(DONE) + b"data: {\n\n" + stream(FINISH), NotKept.ERROR),
    ],
)
def test_nothing_but_a_whole_well_ended_answer_is_kept(sent: bytes, reason: NotKept) -> None:
    assert recorded(sent).recording(CHAT) is reason
    again, _ = cut(sent, list(range(1, len(sent))))
    assert again.recording(CHAT) is reason


def test_every_choice_that_was_asked_for_must_end() -> None:
    both = chunk(piece(0, "stop", content="a"), piece(1, "length", content="b"))
    one = chunk(piece(0, "stop", content="a"), piece(1, content="b"))
    assert isinstance(recorded(stream(both)).recording(chat(n=2, stream=True)), Recording)
    for sent in (stream(one), stream(chunk(piece(0, "stop", content="a"))), stream(*[chunk(piece(0, "stop"))] * 2)):
        assert recorded(sent).recording(chat(n=2, stream=True)) is NotKept.INCOMPLETE


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
    asked = completion(**fields)
    for count in (expected - 1, expected):
        choices = [{"index": index, "text": "x", "finish_reason": "stop"} for index in range(count)]
        kept = isinstance(recorded(stream({"choices": choices})).recording(asked), Recording)
        assert kept == (count == expected)
        body = json.dumps({"choices": choices}).encode()
        assert isinstance(record_body(asked, body, LIMIT), Recording) == (count == expected)


def test_a_stream_over_the_limit_passes_on_and_is_not_kept() -> None:
    frames = b"".join(map(frame, HELLO))

    def fed(limit: int) -> StreamRecorder:
        recorder = StreamRecorder(limit)
        assert b"".join(recorder.feed(frame(event)) for event in HELLO) == frames
        recorder.feed(frame(USAGE) + DONE)
        assert recorder.whole
        assert recorder.usage is not None
        return recorder

    size = entry(whole(fed(LIMIT), CHAT)).size
    assert isinstance(fed(size).recording(CHAT), Recording)
    assert fed(size - 1).recording(CHAT) is NotKept.TOO_LARGE
    assert fed(0).recording(CHAT) is NotKept.TOO_LARGE


def test_a_message_beside_the_deltas_leaves_the_stream_without_a_json_form() -> None:
    events = [chunk(piece(content="Hel")), chunk({**piece(content="lo", finish="stop"), "message": {"content": "x"}})]
    assert in_json(whole(recorded(stream(*events)), CHAT)) is None


def test_events_that_are_json_only_together_are_an_error() -> None:
    broken = b'data: {"v":[1\n\ndata: 2]}\n\n'
    assert (
        recorded(stream(*HELLO[:2]).removesuffix(DONE) + broken + stream(*HELLO[2:])).recording(CHAT) is NotKept.ERROR
    )


# Anything at all


@settings(max_examples=300)
@given(st.lists(ODD_EVENT | JSON, max_size=3), st.booleans())
def test_no_events_of_an_engine_raise_anything(events: list[Any], begun: bool) -> None:
    recorder = recorded(stream(*([ROLE, HELLO[1]] if begun else []), *events))
    for asked in (CHAT, completion(stream=True)):
        assert isinstance(recorder.recording(asked), Recording | NotKept)


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"data: ", b"\n\n", b"\r\n", b"[DONE]", b'{"choices":[]}'])))
def test_no_bytes_of_an_engine_raise_anything(pieces: list[bytes]) -> None:
    recorder = StreamRecorder(LIMIT)
    for received in pieces:
        recorder.feed(received)
    assert isinstance(recorder.recording(CHAT), NotKept)
