"""One request over one connection of its own."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple


class Answer(NamedTuple):
    """A response. `status` 0: the connection failed. `cache`: X-Cache. `complete`: the body has its end.

    `seconds`: from the start of the connection to the last byte.
    """

    status: int
    cache: str
    complete: bool
    seconds: float

    @property
    def failed(self) -> bool:
        return self.status != 200 or not self.complete


async def ask(
    port: int, body: bytes, *, directive: str = "", on_first: Callable[[], object] = lambda: None, timeout: float = 60.0
) -> Answer:
    """Sends a chat. `directive`: Cache-Control. `on_first` is called when the first event of a stream has arrived."""
    started = time.perf_counter()
    received = b""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
                head += b"cache-control: %b\r\n" % directive.encode() if directive else b""
                writer.write(b"%bconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body))
                has_first = False
                while data := await reader.read(1 << 16):
                    received += data
                    if not has_first and b"data: " in received:
                        has_first = True
                        on_first()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return Answer(0, "", complete=False, seconds=time.perf_counter() - started)
    return _parsed(received, time.perf_counter() - started)


def _parsed(received: bytes, seconds: float) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    status = lines[0].split(b" ")[1:2]
    headers = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
    if b"content-length" in headers:
        complete = len(body) == int(headers[b"content-length"])
    else:
        complete = body.endswith(b"0\r\n\r\n") and b"data: [DONE]" in body
    cache = headers.get(b"x-cache", b"").decode().upper()
    return Answer(int(status[0]) if status else 0, cache, complete, seconds)
