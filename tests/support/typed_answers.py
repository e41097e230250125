"""Requests to /v1/responses and /v1/messages, and parsing of the responses."""

import json
from typing import Any, Final

import httpx

from tests.support.router_server import RouterClient

RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
TYPED_PATHS: Final = (RESPONSES, MESSAGES)


def typed_body(path: str, prompt: str, **fields: Any) -> dict[str, Any]:
    if path == RESPONSES:
        return {"model": "llama", "input": prompt, **fields}
    return {"model": "llama", "max_tokens": 100, "messages": [{"role": "user", "content": prompt}], **fields}


async def post_typed(router: RouterClient, path: str, prompt: str, **fields: Any) -> httpx.Response:
    return await router.post(path, typed_body(path, prompt, **fields))


def typed_events(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream; each one must have the same type in its `event:` line and in its payload."""
    events = []
    for frame in stream.removesuffix(b"\n\n").split(b"\n\n"):
        name, _, data = frame.partition(b"\ndata: ")
        events.append(json.loads(data))
        assert name == b"event: " + events[-1]["type"].encode()
    return events


def typed_text(answer: httpx.Response) -> str:
    """The text of a response; for a stream, its deltas joined."""
    if answer.headers["content-type"] != "application/json":
        return typed_delta_text(typed_events(answer.content))
    body = answer.json()
    blocks = body["content"] if "content" in body else [part for item in body["output"] for part in item["content"]]
    return "".join(block["text"] for block in blocks if block["type"] in ("text", "output_text"))


def typed_delta_text(events: list[dict[str, Any]]) -> str:
    pieces = []
    for event in events:
        if event["type"] == "response.output_text.delta":
            pieces.append(event["delta"])
        elif event["type"] == "content_block_delta":
            pieces.append(event["delta"].get("text", ""))
    return "".join(pieces)
