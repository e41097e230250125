"""Events that some clients or decoders cannot read are no failure of the engine."""

import json
from itertools import product

import pytest

from router.core.endpoints.audio import TRANSCRIPTIONS
from router.core.endpoints.chat import CHAT
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.sse import DONE
from router.core.endpoints.recording.stream_encoding import decode_stream
from router.core.endpoints.responses import RESPONSES
from tests.support.endpoints import choices_recorder, make_recorder
from tests.support.factories import chat

WITHOUT_DATA = [
    b"data:\n\n", b"data: \n\n", b"data:\r\n\r\n", b"event: chunk\ndata:\n\n", b"id: 7\ndata: \n\n", b"retry: 3000\n\n",
    b"event: ping\n\n", b": a comment\nid: 7\nevent: ping\n\n", b"event: ping\r\n\r\n",
    b"data\n\n", b"data\r\n\r\n", b"event: ping\ndata\n\n",
]  # fmt: skip


def delta(text: str) -> bytes:
    """An event of a chat; `text` is the content of a JSON string."""
    return b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text.encode()


END = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize("empty", WITHOUT_DATA)
def test_an_event_without_data_is_dropped_wherever_it_stands(empty: bytes) -> None:
    events = [delta("a"), delta("b"), delta("c"), END]
    for place, together in product(range(len(events) + 1), (False, True)):
        case = f"place {place}, {together=}"
        sent = [*events[:place], empty, *events[place:], DONE]
        recorder = choices_recorder(10_000)
        chunks = [b"".join(sent)] if together else sent
        assert b"".join(map(recorder.feed, chunks)) == b"".join(events), case
        assert (recorder.started, recorder.failure, recorder.is_complete) == (True, None, True), case
        assert isinstance(recorder.recorded_response(chat()), RecordedResponse), case


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, MESSAGES, TRANSCRIPTIONS])
def test_before_the_first_token_every_event_without_data_is_dropped(endpoint: Endpoint) -> None:
    for empty in WITHOUT_DATA:
        recorder = make_recorder(endpoint, 1000)
        assert recorder.feed(empty) == b"", empty
        assert (recorder.started, recorder.failure) == (False, None), empty


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, MESSAGES, TRANSCRIPTIONS])
def test_a_comment_is_passed_on(endpoint: Endpoint) -> None:
    assert make_recorder(endpoint, 1000).feed(b": ping\n\n") == b": ping\n\n"


@pytest.mark.parametrize("before", [0, 3])
def test_halves_of_a_pair_of_surrogates_reach_the_client_as_they_came_and_are_stored_as_one(before: int) -> None:
    events = [*[delta("x")] * before, delta("\\ud83d"), delta("\\ude00"), END]
    recorder = choices_recorder(10_000)
    forwarded = b"".join([recorder.feed(event) for event in [*events, DONE]])
    assert forwarded == b"".join(events)
    assert (recorder.failure, recorder.is_complete) == (None, True)
    texts = [json.loads(event[6:])["choices"][0]["delta"].get("content", "") for event in events]  # as clients do
    assert "".join(texts).encode("utf-16", "surrogatepass").decode("utf-16").endswith("\U0001f600")
    recorded = recorder.recorded_response(chat())
    if before:  # the two events became a run, whose text is whole
        assert isinstance(recorded, RecordedResponse)
        assert recorded.stream is not None
        assert json.loads(recorded.body)["choices"][0]["message"]["content"] == "xxx\U0001f600"
        assert decode_stream(recorded.stream, recorded.body, include_usage=False, end=DONE) == forwarded + DONE
    else:
        assert recorded is NotStoredReason.ERROR


@pytest.mark.parametrize("before", [0, 3])
def test_a_text_that_ends_in_half_a_pair_reaches_the_client_and_is_not_stored(before: int) -> None:
    events = [*[delta("x")] * before, delta("\\ud83d"), END]
    recorder = choices_recorder(10_000)
    assert b"".join([recorder.feed(event) for event in [*events, DONE]]) == b"".join(events)
    assert (recorder.failure, recorder.is_complete) == (None, True)
    assert recorder.recorded_response(chat()) is NotStoredReason.ERROR


def test_half_a_pair_in_a_transcript_is_no_failure() -> None:
    recorder = make_recorder(TRANSCRIPTIONS, 1000)
    half = b'data: {"type":"transcript.text.delta","delta":"\\ud83d"}\n\n'
    assert recorder.feed(half) == half
    assert (recorder.started, recorder.failure) == (True, None)


@pytest.mark.parametrize("empty", WITHOUT_DATA)
def test_a_typed_stream_loses_only_its_events_without_data(empty: bytes) -> None:
    text = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":%b}\n\n'
    events = [text % b'{"type":"text_delta","text":"%b"}' % piece for piece in (b"a", b"b")]
    for place, together in product(range(len(events) + 1), (False, True)):
        case = f"place {place}, {together=}"
        sent = [*events[:place], empty, *events[place:]]
        recorder = make_recorder(MESSAGES, 1000)
        chunks = [b"".join(sent)] if together else sent
        assert b"".join(map(recorder.feed, chunks)) == b"".join(events), case
        assert (recorder.started, recorder.failure) == (True, None), case


def test_an_event_that_is_an_error_object_is_a_failure() -> None:
    error = b'{"object":"error","message":"Too long.","type":"BadRequestError","code":400}'  # vLLM 0.9, SGLang
    for before in (b"", delta("a")):
        recorder = choices_recorder(1000)
        assert recorder.feed(before + b"data: %b\n\n" % error) == before
        assert recorder.failure == error


def test_half_a_pair_in_a_typed_event_is_no_failure() -> None:
    recorder = make_recorder(MESSAGES, 1000)
    half = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ud83d"}}\n\n'
    assert recorder.feed(half) == half
    assert (recorder.started, recorder.failure) == (True, None)


def test_a_probability_that_is_not_a_number_is_no_failure() -> None:
    recorder = choices_recorder(10_000)
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"logprob":NaN}]}}]}\n\n'
    assert recorder.feed(event) == event
    assert (recorder.started, recorder.failure) == (True, None)
