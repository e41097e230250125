"""However a client's bytes are cut, the same requests come of them."""

import asyncio
from collections import deque
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_http import CHAT_HEAD, VERSION, chunked, request

from router.api.arriving import Arriving, Queue
from router.api.outbox import Outbox, Sender
from router.errors import ApiError

H2C = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAoAAAAAIAAAAA")
SENT = b"".join([
    request({"a": 1}, b"X-Mixed: Case"),
    VERSION,
    b"\r\n" + VERSION,
    VERSION.replace(b"/version", b"/version?"),
    VERSION.replace(b"GET", b"PUT"),
    request({"b": 2}, *H2C),
    CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(b"abc", b"def", trailers=b"x-trailer: y\r\n"),
    request(method=b"GET", path=b"/a%20b?c=d"),
])  # fmt: skip


class Nobody:
    """A connection that has nothing to do, and is never written to."""

    sender = Sender(cast("asyncio.Transport", None), Outbox(), cast("asyncio.AbstractEventLoop", None))

    def resume_reading(self) -> None:
        pass


async def arrive(*pieces: bytes) -> list[tuple[Any, ...]]:
    queue: Queue = deque()
    arriving = Arriving(Nobody(), {"type": "http"}, queue)  # type: ignore[arg-type]
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
async def test_where_the_bytes_are_cut_does_not_matter(cuts: list[int]) -> None:
    whole = await arrive(SENT)
    assert [(method, path) for method, path, *_ in whole] == [
        ("POST", "/v1/chat/completions"), *[(method, "/version") for method in ("GET", "GET", "GET", "PUT")],
        ("POST", "/v1/chat/completions"), ("POST", "/v1/chat/completions"), ("GET", "/a b"),
    ]  # fmt: skip
    assert [body for *_, body in whole] == [b'{"a": 1}', *[b""] * 4, b'{"b": 2}', b"abcdef", b""]
    assert (b"x-mixed", b"Case") in whole[0][3]
    assert whole[-1][2] == b"c=d"
    assert await arrive(*[SENT[a:b] for a, b in zip([0, *cuts], [*cuts, len(SENT)], strict=True)]) == whole


async def test_a_first_line_like_the_last_one_is_no_other_request() -> None:
    requests = await arrive(*[VERSION, VERSION, VERSION.replace(b"version", b"versions"), VERSION])
    assert [path for _, path, *_ in requests] == ["/version", "/version", "/versions", "/version"]
    with pytest.raises(ApiError):
        await arrive(VERSION, VERSION.replace(b"HTTP/1.1", b"HTTP/1.1x"))


@given(cut=st.integers(0, 60))
async def test_what_is_refused_is_refused_wherever_it_is_cut(cut: int) -> None:
    sent = CHAT_HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello"
    with pytest.raises(ApiError) as caught:
        await arrive(sent[:cut], sent[cut:])
    assert caught.value.status == 400
