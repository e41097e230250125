"""The end of a body without the event that ends a stream: which last event counts, and which response is complete."""

import pytest

from router.core.endpoints.chat import CHAT, CHAT_CHOICES
from router.core.endpoints.continuation.continued_stream import ContinuedRecorder
from router.core.endpoints.continuation.stream_so_far import read_so_far
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.recording.transcript_recorder import TranscriptRecorder
from router.core.endpoints.responses import RESPONSES
from tests.support.endpoints import choices_recorder, make_recorder
from tests.support.factories import chat_event, choice_delta, encode_event

TEXT = encode_event(chat_event(choice_delta(content="Sea")))
STOP = encode_event(chat_event(choice_delta(finish="stop")))
GULL = encode_event(chat_event(choice_delta(content="Möwe")))
TYPED = b'event: %b\ndata: {"type":"%b","index":0,"delta":%b}\n\n'
STARTED = {
    CHAT: TEXT,
    MESSAGES: TYPED % (b"content_block_delta", b"content_block_delta", b'{"type":"text_delta","text":"Sea"}'),
    RESPONSES: TYPED % (b"response.output_text.delta", b"response.output_text.delta", b'"Sea"'),
}


@pytest.mark.parametrize("missing", [b"\n", b"\n\n", b"\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("started", [False, True])
def test_a_last_event_without_its_empty_line_counts_if_it_is_whole(started: bool, missing: bytes) -> None:
    recorder = choices_recorder(10_000)
    recorder.feed(TEXT * started)
    last = GULL.replace(b"\n\n", b"\r\n\r\n") if b"\r" in missing else GULL
    assert recorder.feed(last.removesuffix(missing)) == b""
    assert recorder.feed_end() in (last, GULL)
    assert (recorder.started, recorder.failure) == (True, None)


@pytest.mark.parametrize("size", [len(GULL) - 3, len(GULL) - 20, GULL.index(b"\xb6"), GULL.index(b"\xb6") - 8, 6, 1, 0])
@pytest.mark.parametrize("started", [False, True])
def test_a_last_event_that_is_cut_off_is_neither_passed_on_nor_an_error(started: bool, size: int) -> None:
    recorder = choices_recorder(10_000)
    recorder.feed(TEXT * started + GULL[:size])
    assert recorder.feed_end() == b""
    assert (recorder.started, recorder.failure, recorder.ended) == (started, None, False)


def test_the_last_event_of_an_engine_that_goes_on_counts_too() -> None:
    recorder = choices_recorder(10_000)
    recorder.feed(TEXT)
    so_far = read_so_far(recorder.parts, None)
    assert not isinstance(so_far, str)
    stream = ContinuedRecorder(recorder, CHAT_CHOICES, so_far, by_ids=False)
    assert stream.feed(GULL + STOP.removesuffix(b"\n\n")) == GULL
    assert not stream.ended
    assert b'"finish_reason":"stop"' in stream.feed_end()
    assert stream.end_without_marker()
    assert stream.is_complete


def test_a_done_without_its_empty_line_ends_a_transcript() -> None:
    recorder = TranscriptRecorder()
    assert recorder.feed(TEXT + b"data: [DONE]") == TEXT
    assert recorder.feed_end() == b""
    assert recorder.is_complete


@pytest.mark.parametrize(
    ("sent", "complete"),
    [
        (TEXT + STOP, True),
        (STOP, True),
        (TEXT, False),
        (b"", False),
        (TEXT + STOP + encode_event(chat_event(choice_delta(1, content="Sun"))), False),
        (TEXT + STOP + GULL[:20], False),
        (encode_event(chat_event(choice_delta(content="Sea" * 4000))) + STOP, False),
    ],
    ids=["finished", "no text", "no finish", "nothing", "one of two choices", "cut off", "too large"],
)
def test_a_stream_without_done_is_complete_if_each_choice_has_its_finish_reason(sent: bytes, complete: bool) -> None:
    recorder = choices_recorder(10_000)
    recorder.feed(sent)
    assert recorder.end_without_marker() is complete
    assert recorder.is_complete is complete


@pytest.mark.parametrize("endpoint", STARTED)
@pytest.mark.parametrize("started", [False, True])
def test_no_stream_is_complete_that_breaks_off_in_its_text(endpoint: Endpoint, started: bool) -> None:
    recorder = make_recorder(endpoint, 10_000)
    recorder.feed(STARTED[endpoint] * started)
    assert recorder.started is started
    assert not recorder.end_without_marker()
    assert not recorder.is_complete
