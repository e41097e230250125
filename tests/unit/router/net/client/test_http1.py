"""HTTP/1.1 without sockets: the meaning of a response, which does not depend on how it is cut."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.net.client.http1 import ResponseReader

MAX_HEAD = 512


@dataclass(frozen=True)
class Read:
    """Everything that a parser reports of a response."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes
    done: bool
    reusable: bool
    malformed: bool


def read(pieces: list[bytes], *, end: bool = False) -> Read:
    reader = ResponseReader(max_head=MAX_HEAD)
    reader.begin()
    body = b""
    for piece in pieces:
        body += reader.feed(piece)
    if end:
        reader.feed_eof()
    return Read(
        reader.status,
        reader.headers,
        body,
        reader.done,
        reader.reusable,
        reader.malformed is not None,
    )


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges) if stop > start]


RESPONSES = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-A: b\r\n\r\nabc",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\n\r\n",
    "chunks in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
    b"14\r\n5\r\nhello\r\n5\r\nworld\r\n\r\n0\r\n\r\n",
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\nX-U: 2\r\n\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\n\r\nabc",
    "old": b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "close": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "no content": b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n",
    "garbage after": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
    "odd garbage after": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc\0\0\0",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nx\r\n",
    "switch": b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc",
    "large head": b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * MAX_HEAD + b"\r\nContent-Length: 3\r\n\r\nabc",
    "large body": b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + bytes(2000),
    "endless hints": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100,
    "cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc",
    "nothing": b"",
}


@pytest.mark.parametrize("data", RESPONSES.values(), ids=RESPONSES.keys())
@given(places=st.lists(st.integers(0, 4000), max_size=30), end=st.booleans())
def test_a_response_is_the_same_wherever_it_is_cut(data: bytes, places: list[int], end: bool) -> None:
    complete = read([data] if data else [], end=end)
    assert read(cut(data, places), end=end) == complete


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(body: bytes, size: bytes = b"%x") -> bytes:
    return b"%b\r\n%b\r\n" % (size % len(body), body)


@pytest.mark.parametrize("size", [1, 9, 10, 15, 16, 17, 255, 256, 257, 4000, 4086, 4087, 4095, 4096, 4097, 70000])
def test_a_chunk_in_its_own_read_is_its_body(size: int) -> None:
    body = b"a" * size
    reader = ResponseReader(max_head=MAX_HEAD)
    assert [reader.feed(piece) for piece in (CHUNKED, *[chunk(body)] * 3, LAST)] == [b"", body, body, body, b""]
    assert reader.reusable


@pytest.mark.parametrize("size", [b"%X", b"0%x", b"%x;name=value", b'%x;name="value"'], ids=lambda size: size.decode())
def test_a_size_can_be_written_in_other_ways(size: bytes) -> None:
    pieces = [chunk(b"a"), chunk(b"b" * 30, size), chunk(b"c")]
    assert read([CHUNKED, *pieces, LAST]) == read([b"".join([CHUNKED, *pieces, LAST])])


@pytest.mark.parametrize("size", [b"+1", b"-1", b"1 1", b"1_1", b"0x1", b"g", b"", b"10000000000000001"])
def test_an_invalid_size_is_malformed(size: bytes) -> None:
    result = read([CHUNKED, chunk(b"a"), size + b"\r\nb\r\n"])
    assert (result.body, result.malformed) == (b"a", True)


@pytest.mark.parametrize("end", [b"xx", b"\nx", b"x\n", b"\r\r"])
def test_a_chunk_with_an_invalid_end_is_malformed(end: bytes) -> None:
    assert read([CHUNKED, chunk(b"a"), b"5\r\nhello" + end]).malformed


def test_data_that_looks_like_a_chunk_is_part_of_the_chunk_that_contains_it() -> None:
    within = [chunk(b"hello"), b"1\r\n", chunk(b"world"), LAST]
    outer = chunk(b"".join(within))
    start, end = outer[:4], outer[-2:]
    result = read([CHUNKED, chunk(b"a"), start, *within, end, chunk(b"z"), LAST])
    assert result.body == b"".join([b"a", *within, b"z"])
    assert result.done


@pytest.mark.parametrize("started_chunk", [b"5", b"5\r", b"5\r\n", b"5\r\nhello", b"5\r\nhello\r"])
def test_a_chunk_that_was_started_is_read_to_its_end(started_chunk: bytes) -> None:
    rest = chunk(b"hello")[len(started_chunk) :]
    result = read([CHUNKED, chunk(b"a"), started_chunk, rest, chunk(b"z"), LAST])
    assert result == read([CHUNKED + chunk(b"a") + chunk(b"hello") + chunk(b"z") + LAST])


def test_the_end_of_a_size_line_is_not_a_size_line() -> None:
    body = b"hello\r\n" + b"x" * 14
    outer = chunk(body)
    assert outer.startswith(b"15\r\nhello\r\n")
    result = read([CHUNKED, chunk(b"a"), outer[:1], outer[1:11], outer[11:], LAST])
    assert (result.body, result.done) == (b"a" + body, True)


def test_nothing_is_parsed_as_a_chunk_after_the_end_or_after_malformed_data() -> None:
    assert not read([CHUNKED, chunk(b"a"), LAST, chunk(b"b")]).reusable
    result = read([CHUNKED, chunk(b"a"), b"x\r\n", chunk(b"b")])
    assert (result.body, result.malformed) == (b"a", True)


@pytest.mark.parametrize("data", RESPONSES.values(), ids=RESPONSES.keys())
def test_a_response_is_the_same_byte_by_byte(data: bytes) -> None:
    assert read([data[i : i + 1] for i in range(len(data))], end=True) == read([data] if data else [], end=True)


TOKENS = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=8).map(lambda name: b"x-" + name.encode())
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=12).map(str.encode)


@given(
    status=st.integers(200, 599).filter(lambda status: status not in (204, 304)),
    headers=st.lists(st.tuples(TOKENS, VALUES), max_size=4),
    parts=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    chunked=st.booleans(),
    places=st.lists(st.integers(0, 1000), max_size=20),
)
def test_the_parser_reads_what_a_server_wrote(
    status: int, headers: list[tuple[bytes, bytes]], parts: list[bytes], chunked: bool, places: list[int]
) -> None:
    body = b"".join(parts)
    if chunked:
        framing = (b"Transfer-Encoding", b"chunked")
        payload = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    else:
        framing = (b"Content-Length", b"%d" % len(body))
        payload = body
    fields = [*headers, framing]
    data = b"HTTP/1.1 %d \r\n" % status + b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n" + payload
    expected = Read(status, dict(fields), body, done=True, reusable=True, malformed=False)
    assert read(cut(data, places)) == expected


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_no_bytes_break_the_parser(pieces: list[bytes]) -> None:
    outcome = read(pieces, end=True)
    assert not (outcome.malformed and outcome.reusable)


def test_interim_responses_are_skipped() -> None:
    outcome = read([RESPONSES["interim"]])
    assert (outcome.status, outcome.headers, outcome.body) == (200, {b"Content-Length": b"3"}, b"abc")
    assert outcome.reusable


@pytest.mark.parametrize("name", ["no content", "not modified"])
def test_some_statuses_have_no_body_whatever_their_headers(name: str) -> None:
    outcome = read([RESPONSES[name]])
    assert (outcome.body, outcome.done, outcome.reusable) == (b"", True, True)


def test_trailers_are_tolerated_and_are_not_headers() -> None:
    outcome = read([RESPONSES["trailers"]])
    assert (outcome.headers, outcome.body, outcome.reusable) == ({b"Transfer-Encoding": b"chunked"}, b"abc", True)


@pytest.mark.parametrize("name", ["garbage after", "odd garbage after", "close", "old"])
def test_a_response_can_be_complete_and_its_connection_not_reusable(name: str) -> None:
    outcome = read([RESPONSES[name]])
    assert (outcome.body, outcome.done, outcome.reusable, outcome.malformed) == (b"abc", True, False, False)


def test_a_body_without_a_length_is_complete_only_when_the_connection_ends() -> None:
    assert not read([RESPONSES["until the end"]]).done
    assert read([RESPONSES["until the end"]], end=True).done
    assert not read([RESPONSES["cut short"]], end=True).done
    assert not read([b"HTTP/1.1 200 OK\r\n"], end=True).done
    # A trailer does not define the length.
    trailer = RESPONSES["trailers"].removesuffix(b"\r\n").replace(b"X-T: 1", b"transfer-encoding: x")
    assert not read([trailer], end=True).done


@pytest.mark.parametrize("name", ["two lengths", "bad chunk", "switch", "large head", "endless hints"])
def test_ambiguous_responses_are_malformed(name: str) -> None:
    outcome = read([RESPONSES[name]], end=True)
    assert (outcome.malformed, outcome.done) == (True, False)


def test_a_head_is_accepted_up_to_exactly_the_limit() -> None:
    empty = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: \r\n\r\n"
    for size, fits in ((MAX_HEAD, True), (MAX_HEAD + 1, False)):
        head = empty.replace(b"X: ", b"X: " + b"a" * (size - len(empty)))
        assert len(head) == size
        assert read([head]).done is fits


def test_endless_trailers_are_refused() -> None:
    reader = ResponseReader(max_head=MAX_HEAD)
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")
    for _ in range(100):
        reader.feed(b"X-Trailer: aaaaaaaa\r\n")
    assert reader.malformed is not None


def test_any_number_of_chunk_heads_in_their_own_reads_is_within_the_limit() -> None:
    reader = ResponseReader(max_head=MAX_HEAD)
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(MAX_HEAD):
        assert reader.feed(b"1\r\n") == b""
        assert reader.feed(b"a\r\n") == b"a"
    assert reader.malformed is None


def test_one_parser_reads_consecutive_responses() -> None:
    reader = ResponseReader(max_head=MAX_HEAD)
    for body in (b"abc", b"defg", b""):
        reader.begin()
        assert reader.nothing_received
        read = reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert (read, reader.reusable, reader.nothing_received) == (body, True, False)
