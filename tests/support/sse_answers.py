"""Parses responses, both JSON and event streams."""

import json
from typing import Any

import httpx


def parse_events(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream, without `[DONE]`."""
    payloads = [frame.removeprefix(b"data: ") for frame in stream.split(b"\n\n") if frame.startswith(b"data: ")]
    return [json.loads(payload) for payload in payloads if payload != b"[DONE]"]


def chat_text(answer: httpx.Response) -> str:
    """The text of a response's first choice; for a stream, the deltas joined."""
    if answer.headers["content-type"] == "application/json":
        choice = answer.json()["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    return chat_delta_text(parse_events(answer.content))


def chat_delta_text(chunks: list[dict[str, Any]]) -> str:
    pieces = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == 0]
    return "".join(piece["delta"].get("content") or "" if "delta" in piece else piece["text"] for piece in pieces)


def chat_frame(*, content: str | None = None, finish: str | None = None, **delta: Any) -> bytes:
    if content is not None:
        delta["content"] = content
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: %b\n\n" % json.dumps(event).encode()


ROLE_FRAME = chat_frame(role="assistant", content="")
DONE_FRAME = b"data: [DONE]\n\n"
