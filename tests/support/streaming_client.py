"""Clients that look at an answer while it comes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.support.router_server import RouterServer, chat_body
from tests.support.sse_answers import events, text_of
from tests.support.waiting import read_until


class LiveAnswer:
    """A stream that is being read. `got` is what has come so far."""

    def __init__(self, answer: httpx.Response) -> None:
        self.headers = answer.headers
        self.status = answer.status_code
        self.got = b""
        self._chunks = answer.aiter_raw()

    @property
    def text(self) -> str:
        return text_of([event for event in events(self.got[: self.got.rfind(b"\n\n") + 2]) if "choices" in event])

    async def until(self, text: str) -> None:
        """Reads until so much has been said."""
        self.got += await read_until(self._chunks, lambda new: text in self._with(new))

    def _with(self, new: bytes) -> str:
        whole = self.got + new
        return text_of([event for event in events(whole[: whole.rfind(b"\n\n") + 2]) if "choices" in event])

    async def to_the_end(self) -> bytes:
        """All of it."""
        async for chunk in self._chunks:
            self.got += chunk
        return self.got


@asynccontextmanager
async def streaming(
    router: RouterServer, prompt: str, *, headers: dict[str, str] | None = None, **fields: Any
) -> AsyncIterator[LiveAnswer]:
    """A client that asks for a stream, and leaves at the end of the block."""
    body = chat_body(prompt, stream=True, **fields)
    async with router.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        yield LiveAnswer(answer)
