"""The same requests are parsed however a client's bytes are cut."""

import asyncio
import tracemalloc
from collections import deque
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.net.server.errors import ProtocolError
from router.net.server.request_parser import MAX_PIPELINED_REQUESTS, RequestParser, RequestQueue
from router.net.server.write_batcher import BufferedWriter, WriteBatcher
from tests.support.raw_http import CHAT_HEAD, VERSION_REQUEST, chunked_body, http_request

H2C = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAoAAAAAIAAAAA")
SENT = b"".join([
    http_request({"a": 1}, b"X-Mixed: Case"),
    VERSION_REQUEST,
    b"\r\n" + VERSION_REQUEST,
    VERSION_REQUEST.replace(b"/version", b"/version?"),
    VERSION_REQUEST.replace(b"GET", b"PUT"),
    http_request({"b": 2}, *H2C),
    CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked_body(b"abc", b"def", trailers=b"x-trailer: y\r\n"),
    http_request(method=b"GET", path=b"/a%20b?c=d"),
])  # fmt: skip


class NullTransport:
    """A connection that does nothing, and is never written to."""

    writer = BufferedWriter(cast("asyncio.Transport", None), WriteBatcher(), cast("asyncio.AbstractEventLoop", None))

    def pause_reading(self, _: Any) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def parse_pieces(*pieces: bytes) -> list[tuple[Any, ...]]:
    queue: RequestQueue = deque()
    arriving = RequestParser(NullTransport(), {"type": "http"}, queue)  # type: ignore[arg-type]
    for piece in pieces:
        arriving.feed(piece)
    arriving.close()
    requests = []
    for cycle, scope in queue:
        message = await cycle.receive()
        assert not message["more_body"]
        requests.append((scope["method"], scope["path"], scope["query_string"], scope["headers"], message["body"]))
    return requests


@given(cuts=st.lists(st.integers(0, len(SENT)), max_size=8).map(sorted))
async def test_the_result_does_not_depend_on_where_the_bytes_are_cut(cuts: list[int]) -> None:
    complete = await parse_pieces(SENT)
    assert [(method, path) for method, path, *_ in complete] == [
        ("POST", "/v1/chat/completions"), *[(method, "/version") for method in ("GET", "GET", "GET", "PUT")],
        ("POST", "/v1/chat/completions"), ("POST", "/v1/chat/completions"), ("GET", "/a b"),
    ]  # fmt: skip
    assert [body for *_, body in complete] == [b'{"a": 1}', *[b""] * 4, b'{"b": 2}', b"abcdef", b""]
    assert (b"x-mixed", b"Case") in complete[0][3]
    assert complete[-1][2] == b"c=d"
    assert await parse_pieces(*[SENT[a:b] for a, b in zip([0, *cuts], [*cuts, len(SENT)], strict=True)]) == complete


async def test_a_first_line_equal_to_the_previous_one_is_part_of_the_same_pipeline() -> None:
    requests = await parse_pieces(
        *[VERSION_REQUEST, VERSION_REQUEST, VERSION_REQUEST.replace(b"version", b"versions"), VERSION_REQUEST]
    )
    assert [path for _, path, *_ in requests] == ["/version", "/version", "/versions", "/version"]
    with pytest.raises(ProtocolError):
        await parse_pieces(VERSION_REQUEST, VERSION_REQUEST.replace(b"HTTP/1.1", b"HTTP/1.1x"))


_CODED = CHAT_HEAD + b"transfer-encoding: %b\r\n\r\n0\r\n\r\n"
REFUSED = {
    "no version": b"GET /version\r\n\r\n",
    "an old version": VERSION_REQUEST.replace(b"/1.1", b"/0.9"),
    "a new version": VERSION_REQUEST.replace(b"/1.1", b"/2.0"),
    "an unknown version": VERSION_REQUEST.replace(b"/1.1", b"/1.2"),
    "chunks in HTTP/1.0": (_CODED % b"chunked").replace(b"/1.1", b"/1.0"),
    "a coding with an upgrade": http_request(None, *H2C, b"transfer-encoding: gzip, chunked") + b"0\r\n\r\n",
} | {
    f"the coding {coding!r}": _CODED % coding
    for coding in (
        b"gzip, chunked", b"chunked, gzip", b"gzip", b"identity", b"identity, chunked", b"chunked, chunked", b"",
        b"xchunked", b"chunked;a=b", b",chunked", b"gzip\r\ntransfer-encoding: chunked",
        b"chunked\r\ntransfer-encoding: chunked", b"chunked\r\ncontent-length: 5",
    )
}  # fmt: skip


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("before", [b"", VERSION_REQUEST], ids=["first", "pipelined"])
async def test_another_version_and_a_coding_other_than_chunked_alone_are_refused(sent: bytes, before: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        await parse_pieces(before, sent)
    assert caught.value.status == 400


LINE = b"GET /version HTTP/1.1"
OTHER_LINES = (
    b"GET  /version HTTP/1.1", b"GET /version  HTTP/1.1", b"GET\t/version HTTP/1.1", b"GET /version HTTP/1.1 ",
    b"GET /version RTSP/1.1", b"OPTIONS * RTSP/1.0", b"POST /version RTSP/1.1", b"DESCRIBE /version RTSP/1.1",
    b"SOURCE /version ICE/1.0", b"GET /version HTTP/0.9", b"GET /version", b"GET /version#a HTTP/1.1",
    b"GET /version# HTTP/1.1", b"GET /version?a=b#c HTTP/1.1", b"GET # HTTP/1.1", b"GET http://a/version#b HTTP/1.0",
)  # fmt: skip
HEAD = b"\r\nHost: a\r\n\r\n"
UPGRADE = b"\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\nX: %b\r\n\r\n" % LINE
HEADS = [*((line, HEAD) for line in (LINE, *OTHER_LINES)), (LINE, UPGRADE), (OTHER_LINES[0], UPGRADE)]
TEXT = b"\r\n\r\n%b\r\nHost: a\r\n\r\n" % LINE  # what comes before may look like a request, too
BEFORE = {
    "nothing": b"",
    "empty lines": b"\r\n\r\n\n",
    "the same line": VERSION_REQUEST,
    "the same line, twice, and empty lines": VERSION_REQUEST * 2 + b"\r\n\r\n",
    "another line": http_request(method=b"GET", path=b"/other"),
    "a body with the line": CHAT_HEAD + b"content-length: %d\r\n\r\n%b" % (len(TEXT), TEXT),
    "chunks with the line": CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\n"
    + chunked_body(b"a\n", TEXT, TEXT, trailers=b"x-trailer: y\r\n"),
    "chunks that have names": CHAT_HEAD + b'transfer-encoding: chunked\r\n\r\n00A;a=b;c="d"\r\n' + b"\r\n" * 6
    + b"%x\r\n%b\r\n0;%b\r\n\r\n" % (len(TEXT), TEXT, b"a"),
    "an upgrade": http_request({"b": 2}, *H2C),
    "an upgrade without a body": VERSION_REQUEST[:-2] + b"Connection: upgrade\r\nUpgrade: x\r\n\r\n",
}  # fmt: skip


async def outcome(*pieces: bytes) -> int:
    """The number of requests, or the status of the refusal."""
    try:
        return len(await parse_pieces(*pieces))
    except ProtocolError as error:
        return error.status


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
async def test_a_request_line_is_judged_the_same_after_any_request_and_wherever_it_is_cut(before: bytes) -> None:
    earlier = await outcome(before)
    assert earlier < 3
    wrong = []
    for line, rest in HEADS:
        data = before + line + rest
        expected = earlier + 1 if line is LINE else 400
        cuts = [(data,), *((data[:cut], data[cut:]) for cut in range(1, len(data)))]
        cuts.append(tuple(data[at : at + 1] for at in range(len(data))))
        wrong += [pieces for pieces in cuts if await outcome(*pieces) != expected]
    assert wrong == []


async def test_a_head_that_comes_byte_by_byte_takes_no_more_memory_than_its_size() -> None:
    parser = RequestParser(NullTransport(), {"type": "http"}, deque())  # type: ignore[arg-type]
    head = b"GET /version HTTP/1.1\r\nHost: a\r\nx-filler: " + b"y" * 30_000
    tracemalloc.start()
    for byte in head:
        parser.feed(bytes([byte]))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 10 * len(head)
    parser.close()


async def test_the_coding_chunked_may_have_capitals_and_blanks_around_it() -> None:
    (request,) = await parse_pieces(_CODED % b" Chunked ")
    assert request[-1] == b""


BODIED = b"".join([http_request("x" * 100_000), http_request(method=b"GET", path=b"/next"), http_request("y" * 70_000)])


@given(cuts=st.lists(st.integers(0, len(BODIED)), max_size=4).map(sorted))
@example(cuts=[100_100])
@example(cuts=[50, 100_080])
@example(cuts=[100_180])
@example(cuts=[100_000, 100_300])
async def test_a_request_that_is_cut_in_the_read_that_ends_a_large_body_arrives_like_any_other(
    cuts: list[int],
) -> None:
    arrived = await parse_pieces(*[BODIED[a:b] for a, b in zip([0, *cuts], [*cuts, len(BODIED)], strict=True)])
    assert [(path, len(body)) for _, path, _, _, body in arrived] == [
        ("/v1/chat/completions", 100_002), ("/next", 0), ("/v1/chat/completions", 70_002),
    ]  # fmt: skip


async def test_a_request_that_is_cut_after_many_small_ones_in_a_read_arrives_like_any_other() -> None:
    one = http_request(None, b"x-filler: " + b"y" * 500, method=b"GET", path=b"/version")
    assert len(await parse_pieces(one * 200 + one[:-5], one[-5:])) == 201


async def test_a_head_that_follows_another_request_has_a_limit_too() -> None:
    with pytest.raises(ProtocolError) as caught:
        await parse_pieces(VERSION_REQUEST + CHAT_HEAD + b"x-filler: ", *[b"y" * 40_000] * 2)
    assert caught.value.status == 431


@pytest.mark.parametrize(
    ("begin", "end"),
    [(b"1;", b"\r\nx\r\n0\r\n\r\n"), (b"0\r\nx-trailer: ", b"\r\n\r\n")],
    ids=["extension", "trailer"],
)
async def test_a_line_of_a_chunked_body_has_a_limit_however_large_the_body_is(begin: bytes, end: bytes) -> None:
    before = CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n" % (200_000, b"x" * 200_000)
    assert await outcome(before, begin, *[b"y" * 1000] * 60, end) == 1
    assert await outcome(before, begin, *[b"y" * 1000] * 70, end) == 400


# -- requests for another protocol ------------------------------------------------------------------------------------

UPGRADES = http_request({"b": 2}, *H2C, b"x-filler: " + b"y" * 800)


async def test_a_pipeline_of_upgrades_costs_about_as_much_memory_as_one_of_other_requests() -> None:
    many = MAX_PIPELINED_REQUESTS
    peaks = []
    for sent in (
        http_request({"b": 2}, b"x-filler: " + b"y" * (len(UPGRADES) - len(http_request({"b": 2})) - 12)),
        UPGRADES,
    ):
        assert len(sent) == len(UPGRADES)
        tracemalloc.start()
        assert len(await parse_pieces(sent * many)) == many
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]


@pytest.mark.parametrize("headers", [(), H2C], ids=["plain", "upgrades"])
async def test_the_number_of_pipelined_requests_is_limited_however_small_they_are(headers: tuple[bytes, ...]) -> None:
    queue: RequestQueue = deque()
    arriving = RequestParser(NullTransport(), {"type": "http"}, queue)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError):
        arriving.feed(http_request(None, *headers, method=b"GET", path=b"/") * 5000)
    assert len(queue) == MAX_PIPELINED_REQUESTS
    arriving.close()


@given(cuts=st.lists(st.integers(0, 3 * len(UPGRADES)), max_size=8).map(sorted))
async def test_the_result_does_not_depend_on_where_a_pipeline_of_upgrades_is_cut(cuts: list[int]) -> None:
    sent = UPGRADES * 3
    arrived = await parse_pieces(*[sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)])
    assert [(path, body) for _, path, _, _, body in arrived] == [("/v1/chat/completions", b'{"b": 2}')] * 3
    names = [b"host", b"x-filler", b"content-length"]
    assert all([name for name, _ in headers] == names for _, _, _, headers, _ in arrived)


# -- refusals ---------------------------------------------------------------------------------------------------------


@given(cut=st.integers(0, 60))
async def test_an_invalid_request_is_refused_wherever_it_is_cut(cut: int) -> None:
    sent = CHAT_HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello"
    with pytest.raises(ProtocolError) as caught:
        await parse_pieces(sent[:cut], sent[cut:])
    assert caught.value.status == 400
