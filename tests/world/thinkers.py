"""Engines of vLLM at /v1/messages and /v1/responses that reason and answer, and may die in the middle of it."""

import asyncio
import json
from typing import Any, Final

from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.recording.sse import split_events
from router.core.endpoints.responses import RESPONSES
from tests.support.router_server import LLAMA
from tests.support.scripted_engine import Request, Response, ScriptedEngine, json_response

_CALL_BLOCK: Final = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
_TEXT_BLOCK: Final = {"type": "text", "text": "I look."}
_CALL_ITEM: Final = {
    "type": "function_call", "id": "f", "call_id": "c", "name": "look", "arguments": "{}", "status": "completed",
}  # fmt: skip
_TEXT_ITEM: Final = {
    "type": "message", "id": "m", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
}  # fmt: skip


class Thinker:
    """It reasons, then says a text, or with `calls` calls a tool.

    - `breaks_after`: its connection closes after the first event that contains this, once `may_break` is set.
    - `summarizes`: a client of /v1/responses gets a summary of the reasoning.
    """

    def __init__(
        self, name: str, breaks_after: bytes | None = None, *, kind: str = "vllm", calls: bool = False,
        summarizes: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.kind = kind
        self.calls = calls
        self.summarizes = summarizes
        self.breaks_after = breaks_after
        self.bodies: list[dict[str, Any]] = []
        self.may_break = asyncio.Event()
        self.may_break.set()
        self.engine = ScriptedEngine(script=self)

    async def __call__(self, request: Request) -> Response:
        if request.path == "/v1/models":
            return json_response({"data": [{"id": LLAMA, "object": "model", "owned_by": self.kind}]})
        if request.method != "POST":
            return Response()
        self.bodies.append(json.loads(request.body))
        frames = self._frames(MESSAGES if request.path == MESSAGES.path else RESPONSES)
        if self.breaks_after is None:
            return Response(frames, content_type="text/event-stream")
        await self.may_break.wait()
        last = next(number for number, frame in enumerate(frames) if self.breaks_after in frame)
        return Response(frames[: last + 1], content_type="text/event-stream", end="close")

    def _frames(self, endpoint: Endpoint) -> list[bytes]:
        assert endpoint.streaming is not None
        body = json.dumps(self._message() if endpoint is MESSAGES else self._response())
        frames = endpoint.streaming.frames_from_body(body.encode(), True) or b""
        if self.summarizes:
            frames = frames.replace(b"reasoning_text", b"reasoning_summary_text")
        return split_events(frames)

    def _message(self) -> dict[str, Any]:
        content: list[Any] = [{"type": "thinking", "thinking": f"thought of {self.name}", "signature": "s"}]
        content.append(_CALL_BLOCK if self.calls else _TEXT_BLOCK)
        head = {"id": f"msg-{self.name}", "type": "message", "role": "assistant", "model": LLAMA, "content": content}
        usage = {"input_tokens": 4, "output_tokens": 5}
        reason = "tool_use" if self.calls else "end_turn"
        return {**head, "stop_reason": reason, "stop_sequence": None, "usage": usage}

    def _response(self) -> dict[str, Any]:
        content = [{"type": "reasoning_text", "text": f"thought of {self.name}"}]
        reasoning = {"type": "reasoning", "id": f"rs-{self.name}", "summary": [], "content": content}
        head = {"id": f"resp_{self.name}", "object": "response", "created_at": 1, "model": LLAMA, "status": "completed"}
        usage = {"input_tokens": 4, "output_tokens": 5, "total_tokens": 9}
        item = _CALL_ITEM if self.calls else _TEXT_ITEM
        return {**head, "output": [{**reasoning, "status": "completed"}, item], "usage": usage}
