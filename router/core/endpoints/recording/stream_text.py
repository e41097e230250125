"""Extracts the text of an event stream for people to read, also of one that was broken off.

Sources: https://platform.openai.com/docs/api-reference, https://docs.anthropic.com/en/api/messages-streaming.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

_DATA: Final = b"data:"


def stream_text(frames: bytes, max_chars: int) -> str:
    """The first `max_chars` characters of the answer: of its first choice, without reasoning and tool calls."""
    parts = []
    remaining = max_chars
    for part in _texts(frames):
        parts.append(part[:remaining])
        remaining -= len(parts[-1])
        if not remaining:
            break
    return "".join(parts)


def _texts(frames: bytes) -> Iterator[str]:
    for line in frames.split(b"\n"):
        if not line.startswith(_DATA):
            continue
        try:
            event = msgspec.json.decode(line[len(_DATA) :])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # [DONE], or the end of what was broken off
            continue
        yield _event_text(event)


def _event_text(event: Any) -> str:
    match event:
        case {"choices": [{"index": 0, "delta": {"content": str(text)}}, *_]}:
            return text
        case {"choices": [{"index": 0, "text": str(text)}, *_]}:
            return text
        case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}}:
            return text
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return text
    return ""
