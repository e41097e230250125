"""The events of a response that is generated in the background, as its clients get them.

Each has the id of the response that the client knows, and its number: the first is 0, the next one more. So a client
that has lost its connection says which one it has got last.
"""

import zlib
from typing import Final

import msgspec

from router.core.endpoints.conversations.background_response import as_background
from router.core.endpoints.errors.error_envelope import BrokenStream
from router.core.endpoints.errors.responses_errors import RESPONSES_ERRORS
from router.core.endpoints.recording.sse import EventBuffer, payload, split_events
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.errors import ApiError

_FINAL: Final = ("response.completed", "response.incomplete", "response.failed")


class _Status(msgspec.Struct):
    status: str


_Fields = dict[str, msgspec.Raw]
_decode_event = msgspec.json.Decoder(_Fields).decode
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
    - Beyond `max_size` compressed bytes it `is_full`, and has nothing more.
    """

    def __init__(self, max_size: int) -> None:
        self.is_full = False
        self._max_size = max_size
        self._compressor = zlib.compressobj(1)
        self._data = bytearray()

    def append(self, events: bytes) -> None:
        if self.is_full:
            return
        self._data += self._compressor.compress(events)
        if len(self._data) > self._max_size:
            self.is_full = True
            self._data.clear()

    def compressed(self) -> bytes:
        """Empty if it is full."""
        return b"" if self.is_full else bytes(self._data) + self._compressor.copy().flush()

    def after(self, number: int) -> bytes:
        return events_after(self.compressed(), number)


def events_after(compressed: bytes, number: int) -> bytes:
    """The events with a larger number; -1: all. Raises zlib.error."""
    if not compressed:
        return b""
    events = zlib.decompress(compressed)
    return events if number < 0 else b"".join(split_events(events)[number + 1 :])


def failed_event(response: bytes, error: ApiError, number: int = 0) -> bytes:
    """The event that ends a stream, with this number. `response`: the object so far."""
    first = b'data: {"response":%b}\n\n' % response
    last = b'data: {"sequence_number":%d}\n\n' % (number - 1)
    return RESPONSES_ERRORS.frame(error, BrokenStream("", first=first, last=last))


def ended_event(response: bytes, number: int) -> bytes:
    """The event that ends a stream whose response has ended as the object says."""
    status = _decode_status(response).status
    text = _encode({"type": f"response.{status}", "sequence_number": number, "response": msgspec.Raw(response)})
    return b"event: response.%b\ndata: %b\n\n" % (status.encode(), text)
