"""A load on a router: a number of connections, each with consecutive requests."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

from benchmarks.chats import Chats


def bodies(*, stream: bool, different: int | None = None, name: str = "") -> Iterator[bytes]:
    """An endless sequence of chats: all different, or a cycle of `different` ones. Each `name` has its own chats."""
    chats, number = Chats(model="bare", max_tokens=64, name=name), 0
    while True:
        yield chats.body(number if different is None else number % different, stream=stream)
        number += 1


class Load(NamedTuple):
    """Times in seconds to the first event and to the end of each response; the number of responses by X-Cache."""

    first: list[float]
    total: list[float]
    caches: Counter[str]

    def first_ms(self, share: float) -> float:
        """Milliseconds to the first event, or to the first byte of a JSON response; `share` 0.5 is the median."""
        return _ms(self.first, share)

    def total_ms(self, share: float) -> float:
        """Milliseconds to the last byte."""
        return _ms(self.total, share)


def _ms(seconds: list[float], share: float) -> float:
    return round(sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))] * 1000, 2)


async def load(port: int, bodies: Iterator[bytes], *, connections: int, requests: int) -> Load:
    """Sends `requests` requests in total; raises RuntimeError if a response is not 200 and complete."""
    result = Load([], [], Counter())
    left = iter(range(requests))
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    open_ = 0

    def next_body() -> bytes | None:
        return next(bodies) if next(left, None) is not None else None

    def on_end(error: Exception | None) -> None:
        nonlocal open_
        open_ -= 1
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif open_ == 0:
            done.set_result(None)

    transports = []
    for _ in range(min(connections, requests)):
        open_ += 1
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: _Client(result, next_body, on_end), "127.0.0.1", port
        )
        transports.append(transport)
    try:
        await done
    finally:
        for transport in transports:
            transport.close()
    return result


class _Client(asyncio.Protocol):
    def __init__(
        self, result: Load, next_body: Callable[[], bytes | None], on_end: Callable[[Exception | None], None]
    ) -> None:
        self._result = result
        self._next_body = next_body
        self._on_end: Callable[[Exception | None], None] | None = on_end
        self._received: list[bytes] = []
        self._started = 0.0
        self._has_first_event = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        body = self._next_body()
        if body is None:
            self._end(None)
            return
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
        self._started, self._has_first_event = time.perf_counter(), False
        self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._received.append(data)
        if not self._has_first_event and (b"data: " in data or len(self._received) == 1):
            self._has_first_event = b"data: " in data or b"text/event-stream" not in data
            if self._has_first_event:
                self._result.first.append(now - self._started)
        if not data.endswith(b"0\r\n\r\n") and not self._has_its_length():
            return
        head, _, body = b"".join(self._received).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 ") or (b"text/event-stream" in head and b"data: [DONE]" not in body):
            self._end(RuntimeError(f"incomplete response: {head[:200]!r} ... {body[-200:]!r}"))
            return
        self._result.total.append(now - self._started)
        self._result.caches[head.partition(b"x-cache: ")[2].split(b"\r\n")[0].decode()] += 1
        self._received.clear()
        self._ask()

    def _has_its_length(self) -> bool:
        head, _, body = self._received[0].partition(b"\r\n\r\n")
        length = head.partition(b"content-length: ")[2].split(b"\r\n")[0]
        return bool(length) and len(body) + sum(map(len, self._received[1:])) >= int(length)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError("the router closed the connection"))

    def _end(self, error: Exception | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(error)
