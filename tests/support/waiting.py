"""Waiting for events instead of sleeping."""

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any

TEST_TIMEOUT = 30.0
"""Seconds after which a test gives up waiting; a busy machine takes ten and more to start a process."""


async def eventually(condition: Callable[[], Awaitable[Any] | Any], timeout: float = TEST_TIMEOUT) -> Any:
    """The first true value of a condition. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.timeout(timeout):
        while True:
            value = condition()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            # Polling, since conditions span processes. A condition can be a request, which is work for the machine.
            await asyncio.sleep(min(0.1, max(0.005, 0.1 * (loop.time() - started))))


async def next_line(stream: asyncio.StreamReader, timeout: float = TEST_TIMEOUT) -> bytes:
    """The next line of a process or a connection; empty at its end. Raises TimeoutError."""
    async with asyncio.timeout(timeout):
        return await stream.readline()


async def read_until(stream: AsyncIterator[bytes], is_enough: Callable[[bytes], bool]) -> bytes:
    """Reads until `is_enough` accepts what was read.

    The caller must keep a reference to the stream: an async generator is closed when it is garbage collected.
    """
    received = b""
    while not is_enough(received):
        received += await anext(stream)
    return received


async def collect(stream: AsyncIterable[Any], seen: list[Any]) -> None:
    """Appends items to `seen` one by one, so that they are there even if the stream breaks."""
    async for item in stream:
        seen.append(item)  # noqa: PERF401 - a comprehension would lose the items if the stream breaks
