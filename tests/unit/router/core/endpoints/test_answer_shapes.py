"""A response built from the shape of another stream equals the one that parsing the stream gives."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.chat import CHAT, CHAT_CHOICES
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.answer_shapes import MAX_SHAPES, AnswerShapes
from router.core.endpoints.recording.delta_template import StreamParts
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.sse import DONE
from tests.support.endpoints import choices_recorder
from tests.support.factories import (
    TEXTS,
    chat,
    choice_delta,
    client_view,
    completion,
    encode_event,
    load_capture,
    recorded_response,
)

LIMIT: Final = 1 << 20
CHAT_REQUEST: Final = chat(stream=True)


def events(
    id_: str, created: int, texts: list[str], usage: dict[str, Any] | None, *, model: str = "m", finish: str = "stop"
) -> list[bytes]:
    """The events of a chat in vLLM's encoding."""
    head = {"id": id_, "object": "chat.completion.chunk", "created": created, "model": model}
    payloads = [{**head, "choices": [choice_delta(role="assistant", content="")]}]
    payloads += [{**head, "choices": [choice_delta(content=text)]} for text in texts]
    payloads.append({**head, "choices": [choice_delta(finish=finish)]})
    if usage is not None:
        payloads.append({**head, "choices": [], "usage": usage})
    return [*map(encode_event, payloads), DONE]


def recording(
    sent: list[bytes], shapes: AnswerShapes | None, inference_request: InferenceRequest = CHAT_REQUEST
) -> RecordedResponse:
    recorder = choices_recorder(LIMIT, shapes, endpoint=inference_request.endpoint)
    for one in sent:
        recorder.feed(one)
    return recorded_response(recorder, inference_request)


def as_read(response: RecordedResponse) -> Any:
    """What clients receive, with parsed JSON, since the escapes in texts may differ."""
    body, *rest = client_view(response)
    return json.loads(body), list(json.loads(body)), rest


IDS: Final = st.one_of(
    st.uuids().map(lambda made: f"chatcmpl-{made.hex}"),
    st.sampled_from(
        ["chatcmpl-1795432012", "assistant-content", "12345678", "a" * 8, "short", "1795432012", "choices."]
    ),
)
CREATED: Final = st.one_of(st.integers(0, 2**40), st.sampled_from([0, 1, 123456, 1795432012]))
USAGE: Final = st.none() | st.fixed_dictionaries(
    {"prompt_tokens": CREATED, "completion_tokens": st.integers(0, 9)},
    optional={"details": st.none() | st.just({"cached": 1795432012})},
)
STREAM: Final = st.tuples(
    IDS, CREATED, st.lists(TEXTS | st.sampled_from(["12345678", '"', "\\", "assistant-content"]), min_size=1), USAGE
)


@given(st.lists(STREAM, min_size=1, max_size=4), st.sampled_from(["m", "12345678", "chatcmpl-1795432012"]))
def test_a_response_made_from_a_shape_equals_the_parsed_one(streams: list[Any], model: str) -> None:
    shapes = AnswerShapes()
    for id_, created, texts, usage in streams:
        sent = events(id_, created, texts, usage, model=model)
        recorded = recording(sent, shapes)
        assert as_read(recorded) == as_read(recording(sent, None))


USED: Final = {"prompt_tokens": 5, "completion_tokens": 2}


def test_streams_that_differ_only_in_the_four_values_are_parsed_once() -> None:
    shapes = AnswerShapes()
    for number in range(5):
        used = {**USED, "prompt_tokens": number}
        recording(events(f"chatcmpl-{number:09d}", 1795432012 + number, ["a", f"b {number}"], used), shapes)
    assert (len(shapes), shapes.usable_count) == (1, 1)


@pytest.mark.parametrize(
    "other", [{"model": "n"}, {"finish": "length"}, {"usage": None}], ids=["model", "finish", "usage"]
)
def test_a_stream_that_differs_in_anything_else_is_parsed(other: dict[str, Any]) -> None:
    shapes = AnswerShapes()
    same: dict[str, Any] = {"id_": "chatcmpl-1", "created": 1795432012, "texts": ["a", "b"], "usage": USED}
    for request in (same, {**same, **other}):
        recording(events(**request), shapes)
    assert (len(shapes), shapes.usable_count) == (2, 2)


def test_the_shapes_of_a_process_are_bounded() -> None:
    shapes = AnswerShapes()
    for number in range(MAX_SHAPES + 20):
        recording(events("chatcmpl-1", 1795432012, ["a", "b"], None, model=f"m{number}"), shapes)
    assert len(shapes) == MAX_SHAPES


def test_a_stream_that_contains_a_placeholder_byte_is_parsed() -> None:
    sent = events("chatcmpl-1", 1795432012, ["a"], None)
    sent.insert(2, b": \x00t\n\n")
    assert as_read(recording(sent, AnswerShapes())) == as_read(recording(sent, None))


def test_a_text_that_json_does_not_allow_gives_no_response() -> None:
    parts = StreamParts()
    for one in events("chatcmpl-1", 1795432012, ["a", "b"], None)[:-1]:
        if not parts.try_append(one.replace(b'"b"', b'"\x01"')) and not parts.learn_template(one):
            parts.append(one)
    assert AnswerShapes().fill(CHAT_CHOICES, parts, None, None) is None


@pytest.mark.parametrize(
    "name", ["chat-stream-usage", "chat-stream", "completion-stream-usage", "completion-stream", "spec-chat-stream"]
)
def test_a_stream_of_vllm_has_a_shape(name: str) -> None:
    request, sent = load_capture(name)
    assert request.endpoint in (CHAT, COMPLETIONS)
    shapes = AnswerShapes()
    recorded = recording([sent], shapes, request)
    assert as_read(recorded) == as_read(recording([sent], None, request))
    assert shapes.usable_count == 1


def test_a_completion_has_a_shape_of_its_own() -> None:
    shapes = AnswerShapes()
    sent = [
        encode_event({"id": "cmpl-12345", "created": 1795432012, "choices": [{"index": 0, "text": text, **ended}]})
        for text, ended in (("a", {}), ("b", {}), ("", {"finish_reason": "stop"}))
    ]
    request = completion(stream=True)
    recorded = recording([*sent, DONE], shapes, request)
    assert as_read(recorded) == as_read(recording([*sent, DONE], None, request))
    assert shapes.usable_count == 1


HEAD: Final = {"id": "chatcmpl-7d1c4be2", "object": "chat.completion.chunk", "created": 1795432012, "model": "m"}


def chunks_with(*extra: bytes, usage: Any = None, **beside: Any) -> list[bytes]:
    """A stream with other contents: events before the text, a usage, extra fields in each event."""
    head = {**HEAD, **beside}
    texts = [{**head, "choices": [choice_delta(content=text)]} for text in ("a", "b", "c")]
    sent = [*extra, *map(encode_event, texts), encode_event({**head, "choices": [choice_delta(finish="stop")]})]
    if usage is not None:
        sent.append(encode_event({**head, "choices": [], "usage": usage}))
    return [*sent, DONE]


@pytest.mark.parametrize(
    "sent",
    [
        chunks_with(created_at=1795432012.48),
        chunks_with(usage={"prompt_tokens": 1, "timings": {"start": 1795432012.5}}, started=17954320129),
        chunks_with(b': "id":"\n\n', usage=USED),
        chunks_with(b': "id":"realid12"\n\n', model="id-7d1c4be2f0a94c57"),
        chunks_with(model="text-5b0e9d3c7fa2468e"),
        chunks_with(vendor={"id": "another-one"}),
        chunks_with(vendor={"usage": USED}, usage=USED),
        *[chunks_with(usage=usage) for usage in ({}, 0, "", [], False, True, "x", [1], {"": 1})],
    ],
)
def test_values_that_occur_elsewhere_too_change_nothing(sent: list[bytes]) -> None:
    shapes = AnswerShapes()
    for before in (chunks_with(), chunks_with(usage=USED), sent, sent):
        assert as_read(recording(before, shapes)) == as_read(recording(before, None))


def test_an_id_that_is_not_utf_8_gives_no_response() -> None:
    shapes = AnswerShapes()
    recording(chunks_with(), shapes)
    broken = choices_recorder(LIMIT, shapes)
    for one in chunks_with():
        broken.feed(one.replace(b"7d1c4be2", b"7d1c4b\xff\xfe"))
    assert broken.recorded_response(CHAT_REQUEST) is NotStoredReason.ERROR
