"""What is written to a client in one turn of the loop goes out in one piece.

uvicorn writes an answer's head and its body one after the other, and its loop sends each at once: two system calls, two
packets, and a client that wakes up twice. A turn later is soon enough, and then both are there.
"""

import asyncio
from typing import Any


class CorkedTransport:
    """A transport that gathers what is written until the loop's next turn; all else is the transport's own.

    Closing sends first what has been gathered; aborting does not.
    """

    __slots__ = (
        "_loop", "_out", "_transport", "get_extra_info", "is_closing", "pause_reading", "resume_reading",
    )  # fmt: skip

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._out: list[bytes] = []
        # What is asked at every request is found without a detour.
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out = self._out
        if out:
            self._out = []
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def close(self) -> None:
        self._flush()
        self._transport.close()
