"""An engine of /v1/responses that repeats what it was asked, and a client that continues its responses."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from itertools import count
from typing import Any, Final

import httpx

from tests.support.router_server import RouterClient
from tests.support.scripted_engine import Request, Response, json_response
from tests.support.typed_answers import RESPONSES, typed_events

Item = dict[str, Any]
PREVIOUS_NOT_FOUND: Final = "previous_response_not_found"


def user(text: str) -> Item:
    return {"type": "message", "role": "user", "content": text}


def said(text: str, number: int = 1) -> Item:
    """What the engine answers to `text`, as item `number` of its conversation."""
    parts = [{"type": "output_text", "text": f"{text} Yes.", "annotations": []}]
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": parts}


def texts_of(items: list[Item]) -> list[str]:
    contents = [item["content"] for item in items]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]


class RepeatingEngine:
    """A script for ScriptedEngine. Each response has the next one of `ids`. A stream ends once `may_end` is set."""

    def __init__(self, ids: Iterator[str] | None = None) -> None:
        self.ids = ids if ids is not None else (f"resp_{number}" for number in count(1))
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, request: Request) -> Response:
        if request.method != "POST":
            return Response()
        body = json.loads(request.body)
        response = self._response(body)
        if not body.get("stream"):
            return json_response(response)
        return Response(self._events(response), content_type="text/event-stream")

    def _response(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = body["input"]
        items = [user(asked)] if isinstance(asked, str) else asked
        return {
            "id": next(self.ids), "object": "response", "created_at": 1, "status": "completed", "error": None,
            "model": body["model"], "instructions": body.get("instructions"), "previous_response_id": None,
            "output": [said(texts_of(items)[-1], len(items))],
            "usage": {"input_tokens": 10 * len(items), "output_tokens": 2, "total_tokens": 10 * len(items) + 2},
        }  # fmt: skip

    async def _events(self, response: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        started = {**response, "status": "in_progress", "output": [], "usage": None}
        yield _event("response.created", response=started)
        (item,) = response["output"]
        (part,) = item["content"]
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        yield _event("response.output_item.added", output_index=0, item={**item, "content": []})
        yield _event("response.content_part.added", **place, part={**part, "text": ""})
        yield _event("response.output_text.delta", **place, delta=part["text"])
        await self.may_end.wait()
        yield _event("response.completed", response=response)


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def ask(
    router: RouterClient, text: str, previous: str | None = None, *, key: str = "", **fields: Any
) -> httpx.Response:
    """`previous`: the id of the response that it continues."""
    body = {"model": "llama", "input": text, **fields}
    if previous is not None:
        body["previous_response_id"] = previous
    return await router.post(RESPONSES, body, **({"authorization": f"Bearer {key}"} if key else {}))


def response_of(answer: httpx.Response) -> dict[str, Any]:
    """The response object, of JSON or of a stream."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("application/json"):
        response: dict[str, Any] = answer.json()
        return response
    final = typed_events(answer.content)[-1]
    assert final["type"] == "response.completed"
    response = final["response"]
    assert isinstance(response, dict)
    return response


def id_of(answer: httpx.Response) -> str:
    id_: str = response_of(answer)["id"]
    return id_
