"""Server-sent events, as far as LLM APIs use them.

An event is one or more lines and an empty line. Its payload is in its `data:` lines; a line that begins with a colon is
a comment. Lines end with LF or CRLF. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section
9.2.5.
"""

from typing import Final

DONE: Final = b"data: [DONE]\n\n"
"""The normal end of a stream of chats or completions."""

_EVENT_ENDS: Final = (b"\n\n", b"\n\r\n")


class EventBuffer:
    """Reassembles events: it returns complete events, byte for byte, wherever the network has cut them.

    A client cannot use part of an event. And if an engine dies, no partial event has been sent that would need repair.
    """

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """All events that are complete now, joined; buffers the beginning of the next one."""
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if data.endswith(b"\n\n") or data.endswith(b"\n\r\n"):  # noqa: PIE810 - compiled, this is faster
            return data  # the usual case: a chunk ends with an event
        end = max((at + len(marker) for marker in _EVENT_ENDS if (at := data.rfind(marker)) >= 0), default=0)
        self._tail = data[end:]
        return data[:end]

    @property
    def pending(self) -> int:
        return len(self._tail)

    @property
    def rest(self) -> bytes:
        """The beginning of an event whose end has not come."""
        return self._tail


def split_events(frames: bytes) -> list[bytes]:
    """The single events, each with the empty line that ends it. Joined, they equal `frames`."""
    if frames.find(b"\r") < 0:
        *complete, rest = frames.split(b"\n\n")
        events = [event + b"\n\n" for event in complete]
        return [*events, rest] if rest else events
    events = []
    lines: list[bytes] = []
    for line in frames.splitlines(keepends=True):
        lines.append(line)
        if line in (b"\n", b"\r\n"):
            events.append(b"".join(lines))
            lines = []
    return [*events, b"".join(lines)] if lines else events


def payload(frame: bytes) -> bytes | None:
    """The `data:` lines of an event, joined by LF; None for a comment or an event without data."""
    if frame.startswith(b"data: ") and frame.find(b"\n", 6) == len(frame) - 2:
        return frame[6:-2]  # the usual case: one line
    return _field(frame, b"data")


def error_payload(frame: bytes) -> bytes | None:
    """What an event reports that is an error by its fields, whatever its payload; None for any other event.

    llama.cpp names the event `error`, or has the error in lines `error:` in place of `data:`.
    """
    if frame.find(b"error") < 0:
        return None
    return _field(frame, b"error") or (_field(frame, b"data") if _field(frame, b"event") == b"error" else None)


def _field(frame: bytes, wanted: bytes) -> bytes | None:
    lines = []
    for line in frame.splitlines():
        name, _, value = line.partition(b":")
        if name == wanted:
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None


def is_data_event(frame: bytes) -> bool:
    """Whether it is one event with a line of JSON as its data, and no other field but maybe a name (not `error`).

    False also where only parsing the lines would show it.
    """
    line_end = frame.find(b"\n")
    if line_end == len(frame) - 2:
        return frame.startswith(b"data: {")
    is_named = frame.startswith(b"event: ") and not frame.startswith(b"event: error")
    has_data = frame.find(b"\ndata: {") == line_end
    return is_named and has_data and frame.find(b"\n", line_end + 1) == len(frame) - 2


def lacks_data(frame: bytes) -> bool:
    """Whether an event has no data. A comment does not count."""
    return not frame.startswith(b"data: {") and not (payload(frame) or is_comment(frame))


def split_comments(frames: bytes) -> tuple[bytes, bytes]:
    """The events, and the comments that stand between them."""
    if not frames.startswith(b":") and frames.find(b"\n:") < 0:
        return frames, b""
    events: list[bytes] = []
    comments: list[bytes] = []
    for frame in split_events(frames):
        (comments if frame.startswith(b":") and is_comment(frame) else events).append(frame)
    return b"".join(events), b"".join(comments)


def is_comment(frame: bytes) -> bool:
    """Whether an event without data is only comments. One with another field, such as `event:`, is not."""
    return all(line.startswith(b":") for line in frame.splitlines() if line)
