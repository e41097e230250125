"""Events come out complete and unchanged, wherever the network cuts them, with any line ending."""

from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.recording.sse import (
    DONE,
    EventBuffer,
    error_payload,
    is_data_event,
    lacks_data,
    payload,
    split_comments,
    split_events,
)

LINES: Final = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data: ",
        b"data",
        b": comment",
        b":",
        b"event: e",
        b"event: error",
        b"event:error",
        b"id: \r",
    ]
)
ENDS: Final = st.sampled_from([b"\n", b"\r\n"])
EVENT: Final = st.builds(
    lambda lines, end: b"".join(lines) + end,
    st.lists(st.builds(lambda line, end: line.rstrip(b"\r") + end, LINES, ENDS), min_size=1, max_size=3),
    ENDS,
)


def fed_parser(pieces: list[bytes]) -> tuple[list[bytes], int]:
    """What a buffer returns for each piece, and the number of bytes that it still holds."""
    reader = EventBuffer()
    return [reader.feed(piece) for piece in pieces], reader.pending


@given(st.lists(EVENT, max_size=5), st.binary(max_size=3), st.data())
def test_events_are_the_same_wherever_they_are_cut(events: list[bytes], rest: bytes, data: st.DataObject) -> None:
    rest = b"data: " + rest.replace(b"\n", b"")  # the start of another event
    sent = b"".join(events) + rest
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)), max_size=8)))
    given_back, pending = fed_parser([sent[a:b] for a, b in pairwise([0, *cuts, len(sent)])])
    assert b"".join(given_back) == b"".join(events)
    assert pending == len(rest)
    assert [event for piece in given_back for event in split_events(piece)] == events


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_every_single_cut_of_a_stream_makes_no_difference(end: bytes) -> None:
    sent = (b": hi\n\n" + b"data: {}\n\n" * 2 + b"event: x\ndata: a\ndata: b\n\n" + DONE).replace(b"\n", end)
    for at in range(len(sent) + 1):
        given_back, pending = fed_parser([sent[:at], sent[at:]])
        assert b"".join(given_back) == sent
        assert pending == 0
        assert not given_back[0] or given_back[0].endswith(end * 2)


def test_an_event_is_returned_exactly_with_its_last_byte() -> None:
    reader = EventBuffer()
    assert reader.feed(b"data: a\n") == b""
    assert reader.pending == 8
    assert reader.feed(b"\nda") == b"data: a\n\n"
    assert reader.pending == 2
    assert reader.feed(b"ta: b\r\n\r") == b""
    assert reader.feed(b"\n") == b"data: b\r\n\r\n"
    assert reader.pending == 0


def test_line_ends_may_be_mixed() -> None:
    for sent in (b"data: a\r\n\n", b"data: a\n\r\n"):
        for at in range(len(sent)):
            assert fed_parser([sent[:at], sent[at:]]) == ([b"", sent], 0)
    assert split_events(b"data: a\r\n\ndata: b\n\r\ndata: c\n\n") == [
        b"data: a\r\n\n",
        b"data: b\n\r\n",
        b"data: c\n\n",
    ]


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"data: x", b"\n\n", b"\r\n\r\n"])).map(b"".join))
def test_nothing_is_lost_when_events_are_separated(frames: bytes) -> None:
    assert b"".join(split_events(frames)) == frames


def test_empty_lines_between_events_have_no_meaning() -> None:
    frames = split_events(b"data: a\n\n\n\ndata: b\n\n\n")
    assert [data for data in map(payload, frames) if data is not None] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x \n\n", b" x "),
        (b"data: x\r\n\r\n", b"x"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\r\ndata:\r\ndata: b\r\n\r\n", b"a\n\nb"),
        (b"event: e\ndata: x\nid: 1\n\n", b"x"),
        (b"event: e\ndata:  x \n\n", b" x "),
        (b": comment\ndata: x\n\n", b"x"),
        (b"data\n\n", b""),
        (b"data: \n\n", b""),
        (b"data: a: b\n\n", b"a: b"),
        (b": comment\n\n", None),
        (b": data: x\n\n", None),
        (b"event: e\n\n", None),
        (b"database: x\n\n", None),
        (b" data: x\n\n", None),
        (b"\n", None),
    ],
)
def test_the_payload_of_an_event_is_that_of_its_data_lines(frame: bytes, expected: bytes | None) -> None:
    assert payload(frame) == expected


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_comments_are_split_from_events_and_a_comment_within_an_event_belongs_to_it(line_end: bytes) -> None:
    events = [b"data: 1\n\n", b"event: e\n: 2\ndata: {}\n\n", b": 3\ndata: {}\n\n", b"data: 4\n\n"]
    comments = [b": ping\n\n", b": a\n: b\n\n", b": data: {}\n\n", b":\n\n"]
    sent = [frame.replace(b"\n", line_end) for pair in zip(events, comments, strict=True) for frame in pair]
    assert split_comments(b"".join(sent)) == (b"".join(sent[::2]), b"".join(sent[1::2]))
    assert split_comments(sent[0]) == (sent[0], b"")
    assert split_comments(sent[1]) == (b"", sent[1])


def test_the_end_of_a_stream_is_an_event() -> None:
    assert payload(DONE) == b"[DONE]"
    assert split_events(DONE) == [DONE]


@given(st.lists(EVENT, min_size=1, max_size=3))
def test_what_looks_like_one_event_with_data_is_one(events: list[bytes]) -> None:
    if is_data_event(b"".join(events)):
        (event,) = events
        assert error_payload(event) is None
        assert (payload(event) or b"").strip() == b"{}"


@pytest.mark.parametrize(
    ("frame", "lacks"),
    [
        (b"data: {}\n\n", False),
        (b"data:{}\n\n", False),
        (b"event: e\ndata: {}\n\n", False),
        (b": comment\n\n", False),
        (b"data:\n\n", True),
        (b"data: \r\n\r\n", True),
        (b"data\n\n", True),
        (b"event: e\n\n", True),
        (b": comment\nid: 1\n\n", True),
        (b"error: {}\n\n", True),
    ],
)
def test_an_event_lacks_data_if_it_has_fields_and_none_of_them_is_data(frame: bytes, lacks: bool) -> None:
    assert lacks_data(frame) is lacks


@pytest.mark.parametrize(
    ("frame", "reported"),
    [
        (b"event: error\ndata: {}\n\n", b"{}"),
        (b"event:error\r\ndata: {}\r\n\r\n", b"{}"),
        (b"data: {}\nevent: error\n\n", b"{}"),
        (b"data: {}\r\nevent: error\n\r\n", b"{}"),
        (b"error: {}\n\n", b"{}"),
        (b"data: 1\nerror: {}\n\n", b"{}"),
        (b'event: e\ndata: {"error": 1}\n\n', None),
        (b"data: {}\nevent: errors\n\n", None),
    ],
)
def test_an_event_is_an_error_by_its_name_or_by_a_field_wherever_it_stands(
    frame: bytes, reported: bytes | None
) -> None:
    assert error_payload(frame) == reported


def test_an_event_named_error_is_not_taken_for_one_with_data() -> None:
    assert is_data_event(b"event: delta\ndata: {}\n\n")
    assert not is_data_event(b"event: error\ndata: {}\n\n")
    assert not is_data_event(b"data: {}\n\ndata: {}\n\n")
    assert not is_data_event(b"data: {}\r\n\r\nevent: e\r\n\r\ndata: {}\n\n")
