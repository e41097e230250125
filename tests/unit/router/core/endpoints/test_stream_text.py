"""The text of an event stream, for people, also of a stream that was broken off."""

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.recording.stream_text import stream_text
from tests.support.paths import CAPTURES

STREAMS: Final = ("chat-stream", "chat-n2-stream", "completion-stream", "messages-stream", "responses-stream")
CHAT: Final = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"index":1,"delta":{"content":"other"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"The s"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"ea"}}]}\n\n'
    b": comment\n\ndata: [DONE]\n\n"
)


def frames(name: str) -> bytes:
    return Path(CAPTURES, f"{name}.http").read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")[2]


def test_the_text_is_that_of_the_first_choice_without_reasoning() -> None:
    assert stream_text(CHAT, 100) == "The sea"


@pytest.mark.parametrize(("limit", "text"), [(1, "T"), (5, "The s"), (6, "The se"), (7, "The sea")])
def test_the_text_is_cut(limit: int, text: str) -> None:
    assert stream_text(CHAT, limit) == text


@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_vllm_have_their_text(name: str) -> None:
    stream = frames(name)
    text = stream_text(stream, 10_000)
    assert len(text) > 5
    for end in range(0, len(stream), 97):
        assert text.startswith(stream_text(stream[:end], 10_000))


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_have_some_text_and_never_more_than_asked_for(data: bytes, limit: int) -> None:
    assert len(stream_text(data, limit)) <= limit
    assert len(stream_text(CHAT + b"data:" + data, limit)) <= limit
