"""Waiting for what happens, instead of sleeping."""

import asyncio
import inspect
import socket
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any

TEST_TIMEOUT = 15.0
"""Seconds after which what a test waits for is taken not to come."""


async def eventually(condition: Callable[[], Awaitable[Any] | Any], timeout: float = TEST_TIMEOUT) -> Any:
    """What a condition gives once that is true of it. Raises TimeoutError."""
    async with asyncio.timeout(timeout):
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.005)


async def read_until(stream: AsyncIterator[bytes], is_enough: Callable[[bytes], bool]) -> bytes:
    """What has come once it is enough. The caller holds the stream, which would be closed if nobody did."""
    got = b""
    while not is_enough(got):
        got += await anext(stream)
    return got


async def collect(stream: AsyncIterable[Any], seen: list[Any]) -> None:
    """Adds what comes to what was seen, so that it is there even if the stream breaks."""
    async for item in stream:
        seen.append(item)  # noqa: PERF401 - a list that is only there at the end would not do


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
