"""The recorder of transcripts: what starts, ends and fails a stream, wherever it is cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.audio import TRANSCRIPTIONS
from router.core.endpoints.recording.recording import EVENT_TOO_LONG, MAX_EVENT_SIZE
from router.core.endpoints.recording.transcript_recorder import TranscriptRecorder
from router.core.endpoints.requests.upload import longest_answer, media_type, parse_upload

HEAD = b'data: {"id":"t","object":"transcription.chunk","created":7,"model":"m","choices":['
SILENCE = HEAD + b'{"delta":{"content":""}}]}\n\n'
TEXT = HEAD + b'{"delta":{"content":" Hi"}}]}\n\n'
LAST = HEAD + b'{"delta":{"content":"!"},"finish_reason":"stop","stop_reason":null}]}\n\n'
USAGE = HEAD + b'],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"no","type":"InternalServerError","param":null,"code":500}}\n\n'
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n--b--'
)
REQUEST = parse_upload(TRANSCRIPTIONS, FORM % (b"x" * 4000), b"multipart/form-data; boundary=b")


def test_a_stream_is_passed_on_as_it_comes_and_its_end_is_held_back() -> None:
    recorder = TranscriptRecorder()
    forwarded = [recorder.feed(SILENCE)]
    started = [recorder.started]
    forwarded.append(recorder.feed(TEXT + LAST))
    started.append(recorder.started)
    assert (forwarded, started) == ([SILENCE, TEXT + LAST], [False, True])
    assert recorder.feed(USAGE + DONE) == USAGE
    assert recorder.is_complete
    assert recorder.final_frames(include_usage=False) == DONE
    recorded = recorder.recorded_response(REQUEST)
    assert (recorded.prompt_tokens, recorded.completion_tokens) == (9, 3)


@given(st.lists(st.integers(0, len(SILENCE + TEXT + LAST + USAGE + DONE)), max_size=6))
def test_it_does_not_matter_where_the_stream_is_cut(cuts: list[int]) -> None:
    stream, recorder, sent = SILENCE + TEXT + LAST + USAGE + DONE, TranscriptRecorder(), b""
    edges = [0, *sorted(cuts), len(stream)]
    for begin, end in itertools.pairwise(edges):
        sent += recorder.feed(stream[begin:end])
    assert sent + recorder.final_frames(include_usage=False) == stream
    assert recorder.is_complete


def test_a_finish_reason_is_not_the_end_since_each_piece_of_a_file_has_one() -> None:
    recorder = TranscriptRecorder()
    recorder.feed(TEXT + LAST)
    assert not recorder.end_without_marker()


def test_openais_last_event_is_the_end_of_a_body_without_done() -> None:
    recorder = TranscriptRecorder()
    recorder.feed(b'data: {"type":"transcript.text.delta","delta":"Hi"}\n\n')
    assert not recorder.end_without_marker()
    recorder.feed(b'data: {"type":"transcript.text.done","text":"Hi"}\n\n')
    assert recorder.end_without_marker()
    assert recorder.final_frames(include_usage=False) == b""


def test_errors_and_what_is_no_event_fail_the_stream() -> None:
    for bad in (ERROR, b"data: {\n\n", b"data: []\n\n", b'data: {"choices":7}\n\n'):
        recorder = TranscriptRecorder()
        assert recorder.feed(TEXT + bad + LAST) == TEXT
        assert recorder.failure is not None
        assert not recorder.is_complete
    recorder = TranscriptRecorder()
    recorder.feed(b"data: " + b"x" * MAX_EVENT_SIZE)
    assert recorder.failure == EVENT_TOO_LONG


def test_the_file_is_not_counted_as_text() -> None:
    assert REQUEST.prompt_size == len("whisper")
    recorder = TranscriptRecorder()
    recorder.feed(TEXT + LAST + DONE)
    assert recorder.recorded_response(REQUEST).prompt_tokens < 5


def test_a_longer_file_may_take_longer() -> None:
    short = REQUEST.form
    hour = parse_upload(TRANSCRIPTIONS, FORM % (b"x" * 25_000_000), b"multipart/form-data; boundary=b").form
    assert short is not None
    assert hour is not None
    assert longest_answer(short) == 8192
    assert longest_answer(hour) >= 50_000


def test_a_content_type_of_an_engine_is_passed_on_if_it_is_plain() -> None:
    assert media_type(b"text/vtt; charset=utf-8") == "text/vtt; charset=utf-8"
    for other in (None, b"application/json", b"", b"text/plain\r\nx: y", b"text/plain; a=%s", b"x" * 300):
        assert media_type(other) is None
