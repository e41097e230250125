"""Server-sent events, as far as OpenAI's streams use them.

An event is one or more lines and an empty line; its payload stands in its `data:` lines; lines that begin with a
colon are comments. Line ends are LF or CRLF. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html,
section 9.2.5.
"""

from typing import Final

DONE: Final = b"data: [DONE]\n\n"
"""How a stream of OpenAI's API ends when it ends well."""

_EVENT_ENDS: Final = (b"\n\n", b"\n\r\n")


class EventBuffer:
    """Gives back whole events only, byte for byte, wherever the network has cut them.

    A client can do nothing with part of an event, and what has not been sent needs no mending when the engine dies.
    """

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """All events that are complete now, joined; the begin of the next one is kept for the next call."""
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if data.endswith(b"\n\n") or data.endswith(b"\n\r\n"):  # noqa: PIE810 - compiled, this is quicker
            return data
        end = max((at + len(mark) for mark in _EVENT_ENDS if (at := data.rfind(mark)) >= 0), default=0)
        self._tail = data[end:]
        return data[:end]

    @property
    def pending(self) -> int:
        """How many bytes of an incomplete event are held."""
        return len(self._tail)


def split_events(frames: bytes) -> list[bytes]:
    """Whole events, one by one, each with the empty line that ends it; joined, they are what they were."""
    if frames.find(b"\r") < 0:
        *events, rest = frames.split(b"\n\n")
        parts = [event + b"\n\n" for event in events]
        return [*parts, rest] if rest else parts
    parts = []
    lines: list[bytes] = []
    for line in frames.splitlines(keepends=True):
        lines.append(line)
        if line in (b"\n", b"\r\n"):
            parts.append(b"".join(lines))
            lines = []
    return [*parts, b"".join(lines)] if lines else parts


def payload(frame: bytes) -> bytes | None:
    """What an event says: its `data:` lines, joined by LF; None for a comment or an event without data."""
    if frame.startswith(b"data: ") and frame.find(b"\n", 6) == len(frame) - 2:
        return frame[6:-2]
    data = []
    for line in frame.splitlines():
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
    return b"\n".join(data) if data else None
