"""Clients that inspect a response while it arrives."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.support.router_server import RouterClient, chat_body
from tests.support.sse_answers import chat_delta_text, parse_events
from tests.support.waiting import read_until


class LiveStream:
    """A stream that is being read; `received` is what has arrived so far."""

    def __init__(self, answer: httpx.Response) -> None:
        self.headers = answer.headers
        self.status = answer.status_code
        self.received = b""
        # One iterator for all reads: httpx allows only one per response.
        self._chunks = answer.aiter_raw()

    @property
    def text(self) -> str:
        return chat_delta_text(
            [event for event in parse_events(self.received[: self.received.rfind(b"\n\n") + 2]) if "choices" in event]
        )

    async def read_until(self, part: bytes) -> None:
        self.received += await read_until(self._chunks, lambda new: part in self.received + new)

    async def read_until_text(self, text: str) -> None:
        self.received += await read_until(self._chunks, lambda new: text in self._text_with(new))

    def _text_with(self, new: bytes) -> str:
        received = self.received + new
        return chat_delta_text(
            [event for event in parse_events(received[: received.rfind(b"\n\n") + 2]) if "choices" in event]
        )

    async def read_to_end(self) -> bytes:
        async for chunk in self._chunks:
            self.received += chunk
        return self.received


@asynccontextmanager
async def open_stream(
    router: RouterClient, prompt: str, *, headers: dict[str, str] | None = None, **fields: Any
) -> AsyncIterator[LiveStream]:
    """A client that requests a stream, and disconnects at the end of the block."""
    body = chat_body(prompt, stream=True, **fields)
    async with router.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        yield LiveStream(answer)
