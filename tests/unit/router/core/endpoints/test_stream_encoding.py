"""An encoded stream decodes to the original bytes, whatever they are, and is small."""

import zlib
from binascii import b2a_base64
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.recording.delta_template import StreamParts
from router.core.endpoints.recording.stream_encoding import (
    MAX_DECODED,
    STREAM_DECODE_ERRORS,
    decode_stream,
    encode_stream,
    is_lossless,
)
from tests.support.endpoints import make_recorder
from tests.support.factories import load_capture

HEAD: Final = b'data: {"id":"c","choices":[{"index":%d,"delta":{"content":"'
TAIL: Final = b'"},"finish_reason":null}]}\n\n'


def event(text: bytes, index: int = 0) -> bytes:
    return HEAD % index + text + TAIL


def parts_of(*frames: bytes) -> StreamParts:
    parts = StreamParts()
    for frame in frames:
        if not parts.try_append(frame) and not parts.learn_template(frame):
            parts.append(frame)
    return parts


def decoded(parts: StreamParts, body: bytes, usage: bytes | None = None, *, include_usage: bool = False) -> bytes:
    stream = encode_stream(parts, body, usage, lossless=True)
    return decode_stream(stream, body, include_usage=include_usage, end=b"")


TEXTS: Final = st.sampled_from([b"", b"a", b" the", b"\\n", b'\\"', b"\xc3\xa9", b"x" * 300, b"\\u0041", b"\\\\"])
EVENTS: Final = st.one_of(
    st.builds(event, TEXTS, st.integers(0, 2)),
    st.sampled_from(
        [b":\ndata: 1\n\n", b"data: {}\n\n", b"\n\n", b"event: x\r\ndata: 1\r\n\r\n", b"data: \xff\x00\n\n"]
    ),
    st.builds(lambda number: b'data: {"delta":"a","sequence_number":%d}\n\n' % number, st.integers(0, 12)),
)


@given(st.lists(EVENTS, max_size=30), st.sampled_from([b"{}", b"", b'{"a":"the the the"}', b"z" * 5000]))
def test_any_events_are_decoded_as_they_were_with_any_response(events: list[bytes], body: bytes) -> None:
    sent = b"".join(events)
    assert decoded(parts_of(*events), body) == sent
    assert decoded(parts_of(sent), body) == sent


def test_the_usage_is_decoded_only_on_request() -> None:
    parts = parts_of(event(b"a"))
    assert decoded(parts, b"{}", b"data: u\n\n") == event(b"a")
    assert decoded(parts, b"{}", b"data: u\n\n", include_usage=True) == event(b"a") + b"data: u\n\n"


@pytest.mark.parametrize("count", [1, 3, 3000])
def test_events_that_repeat_the_response_take_almost_no_space(count: int) -> None:
    text = b"".join(b"%d " % number for number in range(500))
    body = b'{"said":"%b"}' % text
    repeated = b"data: %b, %b\n\n" % (body, body)
    parts = parts_of(*[repeated] * count)
    assert decoded(parts, body) == repeated * count
    assert len(encode_stream(parts, body, None, lossless=True)) < 400 + 20 * count


def test_a_text_that_is_not_in_the_response_is_stored_beside_it() -> None:
    words = [b"w%d" % number for number in range(100)]
    parts = parts_of(*map(event, words))
    assert decoded(parts, b"{}") == b"".join(map(event, words))


def test_many_prefixes_of_the_text_in_the_response_do_not_mislead() -> None:
    text = b"a" * 200 + b"b"
    parts = parts_of(event(b"a" * 200), event(b"b"))
    assert decoded(parts, b"a" * 5000 + text + b"a" * 5000) == event(b"a" * 200) + event(b"b")


def test_the_flag_says_whether_the_response_is_complete() -> None:
    parts = parts_of(event(b"a"))
    for lossless in (True, False):
        assert is_lossless(encode_stream(parts, b"{}", None, lossless=lossless)) is lossless


def encoded(value: Any) -> bytes:
    compress = zlib.compressobj(1, zlib.DEFLATED, -15)
    return b"=" + b2a_base64(compress.compress(msgspec.msgpack.encode(value)) + compress.flush(), newline=False)


@pytest.mark.parametrize(
    "stream",
    [
        b"", b"=", b"=%%%", b"=AAAA", b"=" + b"A" * 100, encoded([]), encoded({}), encoded(None),
        encoded([[], [5], None]),
        encoded([[], [[0, 0, [1]]], None]), encoded([[[b"a", None]], [[0, 0, [1]]], None]),
        encoded([[[b"a", None, b"b", None, 0]], [[0, 0, ["x"]]], None]), encoded([[], [{"a": 1, "b": 2}], None]),
        encoded([[], [["a", "b"]], None]), encoded([[], [], 5]),
        encoded([[[b"a", None, b"b", None, 0]], [[0, 0, 7]], None]),
    ],
)  # fmt: skip
def test_an_invalid_stream_raises_the_documented_exception(stream: bytes) -> None:
    with pytest.raises(STREAM_DECODE_ERRORS):
        decode_stream(stream, b"{}", include_usage=True, end=b"")


def test_a_stream_that_decompresses_to_too_much_is_invalid() -> None:
    with pytest.raises(STREAM_DECODE_ERRORS):
        decode_stream(encoded([[], [b"\x00" * (MAX_DECODED + 1)], None]), b"{}", include_usage=False, end=b"")


@pytest.mark.parametrize(
    ("name", "most"),
    [("chat-stream-usage", 0.35), ("completion-stream", 0.4), ("responses-stream", 0.35), ("messages-stream", 0.5)],
)
def test_a_stream_of_vllm_takes_a_fraction_of_its_size(name: str, most: float) -> None:
    request, sent = load_capture(name)
    recorder = make_recorder(request.endpoint, 1 << 20)
    passed = recorder.feed(sent)
    recording: Any = recorder.recorded_response(request)
    given_back = decode_stream(recording.stream, recording.body, include_usage=False, end=b"")
    assert given_back.startswith(passed)
    assert len(recording.stream) < most * len(sent)


def test_a_stream_that_would_decompress_to_too_much_is_not_encoded() -> None:
    parts = parts_of(*[b"id: %b\n\n" % (b"x" * (MAX_DECODED // 4))] * 5)
    with pytest.raises(ValueError, match="exceeds its size limit"):
        encode_stream(parts, b"{}", None, lossless=True)
