"""A connection to an OpenAI-compatible server, of low cost: a library's client would be the limit of a load test."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import httptools

_TAIL: Final = 1024  # bytes of a body that are kept, for its end or its error
_MAX_CODE: Final = 60  # characters of an error's code


class Response(NamedTuple):
    """The end of a request. Times are of time.perf_counter().

    `first`: the first event of a stream; None for other responses, and if there was none. `error`: what is wrong, None
    for a complete response; LEFT if the client left. `status`: 0 if no response began.
    """

    status: int
    cache: str
    first: float | None
    ended: float
    error: str | None


LEFT: Final = "left"


def request_bytes(host: str, path: str, body: bytes, api_key: str | None = None) -> bytes:
    """A request in HTTP/1.1."""
    credentials = b"" if api_key is None else b"authorization: Bearer %b\r\n" % api_key.encode("ascii")
    head = b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n" % (path.encode(), host.encode())
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (head, credentials, len(body), body)


class ChatConnection(asyncio.Protocol):
    """Sends one request at a time.

    - Each `send` is followed by exactly one call of `on_end`, also if the connection breaks or `abort` is called.
    - `is_reusable`: whether the connection can take another request; valid from `on_end` on.
    """

    def __init__(self, on_gap: Callable[[float], None] | None = None) -> None:
        """`on_gap`: gets the seconds between two reads with events of a stream."""
        self._on_gap = on_gap
        self._on_end: Callable[[Response], None] | None = None
        self._now = 0.0
        self.is_reusable = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self.is_reusable = True

    def send(self, request: bytes, on_end: Callable[[Response], None], *, leave_after: int | None = None) -> None:
        """`leave_after`: disconnects after that many reads with a part of the body."""
        self._on_end, self._leave_after = on_end, leave_after
        self._cache, self._is_stream, self._reads = "", False, 0
        self._first: float | None = None
        self._last = 0.0
        self._status = 0
        self._tail = b""
        self._transport.write(request)

    def abort(self, error: str) -> None:
        """Closes the connection; a request in flight ends with this error."""
        self._end(error, is_reusable=False)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._on_end is None:
            self.abort("data without a request")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort(f"malformed response: {type(error).__name__}")

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"x-cache":
                self._cache = value.decode("latin-1")[:_MAX_CODE]
            case b"content-type":
                self._is_stream = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if body.startswith(b":"):  # a comment of an event stream, as some servers send them to keep a connection
            return
        if self._first is None:
            self._first = self._now
        elif self._now != self._last and self._is_stream and self._on_gap is not None:
            self._on_gap(self._now - self._last)
        self._last = self._now
        self._tail = body[-_TAIL:] if len(body) >= _TAIL else (self._tail + body)[-_TAIL:]
        self._reads += 1
        if self._leave_after is not None and self._reads > self._leave_after:
            self._end(LEFT, is_reusable=False)

    def on_message_complete(self) -> None:
        if self._on_end is None:  # it left with the last event
            return
        error = error_of(self._status, self._tail, is_stream=self._is_stream)
        self._end(error, is_reusable=self._parser.should_keep_alive())

    def connection_lost(self, exc: Exception | None) -> None:
        kind = "closed" if exc is None else type(exc).__name__
        self._end(f"{kind} within the response" if self._status else f"{kind} before the response", is_reusable=False)

    def _end(self, error: str | None, *, is_reusable: bool) -> None:
        self.is_reusable = is_reusable
        if not is_reusable:
            self._transport.close()
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            ended = time.perf_counter() if error is not None else self._now
            first = self._first if self._is_stream else None
            on_end(Response(self._status, self._cache, first, ended, error))


def error_of(status: int, tail: bytes, *, is_stream: bool) -> str | None:
    """What is wrong with a response that has ended, or None; `tail`: the end of its body."""
    if status != 200:
        return f"HTTP {status} {_code(tail)}".rstrip()
    if not is_stream or tail.endswith(b"data: [DONE]\n\n"):
        return None
    last = tail.removesuffix(b"\n\n").rpartition(b"data: ")[2]
    return f"error event {_code(last)}".rstrip() if b'"error"' in last else "a stream without [DONE]"


def _code(body: bytes) -> str:
    """The code, or else the type, of OpenAI's error object; empty if there is none."""
    try:
        error = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or "")[:_MAX_CODE]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
