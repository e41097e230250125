"""The events of a response that is generated in the background, as its clients get them.

Each has the id of the response that the client knows, and its number: the first is 0, the next one more. So a client
that has lost its connection says which one it has got last.
"""

import zlib
from collections.abc import Generator
from typing import Final

import msgspec

from router.core.endpoints.conversations.background_response import as_background, unended_response
from router.core.endpoints.errors.error_envelope import BrokenStream
from router.core.endpoints.errors.responses_errors import RESPONSES_ERRORS
from router.core.endpoints.recording.sse import EventBuffer, payload, split_events
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.errors import ApiError

MAX_LOG_SIZE: Final = 2 << 20
"""Bytes of all events of a response that are kept, before they are compressed.

A follower gets them in one record: half of what its stream in Redis keeps (see stream_writer).
"""

_FINAL: Final = ("response.completed", "response.incomplete", "response.failed")
_PART: Final = 256 << 10  # bytes that are decompressed at once


class _Status(msgspec.Struct):
    status: str


class _Numbered(msgspec.Struct):
    sequence_number: int


_Fields = dict[str, msgspec.Raw]
_decode_event = msgspec.json.Decoder(_Fields).decode
_decode_number = msgspec.json.Decoder(_Numbered).decode
_decode_status = msgspec.json.Decoder(_Status).decode
_decode_type = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


class BackgroundEvents:
    """- Wherever the bytes of a stream are cut, the events are the same.
    - `response`: the object of the last event that has one. `is_over`: an event has ended the stream.
    - Comments, `[DONE]` and what is no event of a response are left out, and all that comes after the end.
    """

    def __init__(self, response_id: str, parent: str) -> None:
        """`parent`: the id of the response before it; empty in a first turn."""
        self.count = 0
        self.response: bytes | None = None
        self.is_over = False
        self._id = response_id
        self._parent = parent
        self._buffer = EventBuffer()

    def feed(self, data: bytes) -> bytes:
        """The events that are complete now."""
        return b"".join([self._renewed(event) for event in split_events(self._buffer.feed(data))])

    def _renewed(self, event: bytes) -> bytes:
        text = payload(event)
        if not text or self.is_over:
            return b""
        try:
            fields = _decode_event(text)
            kind = _decode_type(fields["type"])
            if "response" in fields:
                response = as_background(bytes(fields["response"]), self._id, self._parent)
                fields["response"], self.response = msgspec.Raw(response), response
        except (*MALFORMED_RESPONSE_ERRORS, KeyError):
            return b""
        self.is_over = kind in _FINAL
        fields["sequence_number"] = msgspec.Raw(b"%d" % self.count)
        self.count += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(fields))


class EventLog:
    """All events of a response, compressed: most of a stream is what each event repeats.

    - `after` can be called at any time.
    - Beyond `max_size` compressed bytes, or MAX_LOG_SIZE bytes, it `is_full`, and has the first event and the last one.
    """

    def __init__(self, max_size: int) -> None:
        self.is_full = False
        self._max_size = max_size
        self._size = 0
        self._first = self._last = b""
        self._compressor = zlib.compressobj(1)
        self._data = bytearray()

    def append(self, events: bytes) -> None:
        if not events:
            return
        if not self._size:
            self._first = events[: events.find(b"\n\n") + 2]
        self._size += len(events)
        if not self.is_full:
            self._data += self._compressor.compress(events)
            self.is_full = len(self._data) > self._max_size or self._size > MAX_LOG_SIZE
        if self.is_full:
            self._data.clear()
            self._last = _last_event(events) if self._size > len(self._first) else b""

    def compressed(self) -> bytes:
        """Empty if even what it has is too large."""
        if not self.is_full:
            return bytes(self._data) + self._compressor.copy().flush()
        ends = zlib.compress(self._first + self._last, 1)
        return ends if len(ends) <= self._max_size else b""

    def after(self, number: int) -> bytes:
        """Nothing if it is full."""
        return b"" if self.is_full else b"".join(events_after(self.compressed(), number))


def events_after(compressed: bytes, number: int) -> Generator[bytes, None, None]:
    """The events with a larger number, in parts, of which some are empty; -1: all. Raises zlib.error."""
    inflater, buffer = zlib.decompressobj(), EventBuffer()
    while part := inflater.decompress(compressed, _PART):
        compressed = inflater.unconsumed_tail
        events = later_events(buffer.feed(part), number)
        if events:
            number = -1  # the rest has larger ones
        yield events
    if compressed and not inflater.eof:
        raise zlib.error("the events have no end")


def _last_event(events: bytes) -> bytes:
    before = events.rfind(b"\n\n", 0, -2)
    return events if before < 0 else events[before + 2 :]


def later_events(events: bytes, number: int) -> bytes:
    """Those with a larger number. `events`: of BackgroundEvents."""
    at = 0
    while number >= 0 and at < len(events):
        end = events.index(b"\n\n", at) + 2
        if _decode_number(events[events.index(b"\ndata: ", at) + 7 : end - 2]).sequence_number > number:
            break
        at = end
    return events[at:]


def failed_event(response: bytes, error: ApiError, number: int = 0) -> bytes:
    """The event that ends a stream, with this number. `response`: the object so far."""
    first = b'data: {"response":%b}\n\n' % response
    last = b'data: {"sequence_number":%d}\n\n' % (number - 1)
    return RESPONSES_ERRORS.frame(error, BrokenStream("", first=first, last=last))


def ended_event(response: bytes, number: int) -> bytes:
    """The event that ends a stream whose response has ended as the object says."""
    return _event(f"response.{_decode_status(response).status}", number, response)


def ended_events(response: bytes, after: int) -> bytes:
    """Those of a response whose own ones are gone: its clients want a first one. `after`: see EventLog."""
    last = ended_event(response, max(after, 0) + 1)
    return last if after >= 0 else _event("response.created", 0, unended_response(response)) + last


def error_event(error: ApiError, number: int) -> bytes:
    """Ends a stream whose response has not ended. `number`: of the last event before it, or -1."""
    body = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    text = _encode(
        {"type": "error", "sequence_number": max(number, 0), "code": error.code, "message": error.message,
         "param": error.param, "error": body}
    )  # fmt: skip
    return b"event: error\ndata: %b\n\n" % text


def _event(kind: str, number: int, response: bytes) -> bytes:
    text = _encode({"type": kind, "sequence_number": number, "response": msgspec.Raw(response)})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), text)
