"""Scripts of inference servers that are not vLLM, as far as the router sees them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.router_server import LLAMA
from tests.support.scripted_engine import Request, Response, json_response

TEXT = "The sea is wide."


class ForeignScript:
    """An OpenAI-compatible server with the peculiarities of a test.

    - `paths`: what it gives for GET, by path; everything else is 404.
    - `api_key`: without it in a request, everything is 401.
    - `refuses_stream_options`: a request with them is 400. `tells_usage`, `sends_done`: in its streams.
    - `requests`: the bodies of the completions; `headers`: those of every request.
    """

    def __init__(
        self,
        *,
        owned_by: str = "someone",
        paths: Mapping[str, str] | None = None,
        api_key: str | None = None,
        refuses_stream_options: bool = False,
        tells_usage: bool = True,
        sends_done: bool = True,
        finish_reason: str | None = "stop",
    ) -> None:
        models = {"object": "list", "data": [{"id": LLAMA, "object": "model", "owned_by": owned_by}]}
        self._paths = {"/v1/models": json.dumps(models), **(paths or {})}
        self.api_key = api_key
        self._refuses_stream_options = refuses_stream_options
        self._tells_usage = tells_usage
        self._sends_done = sends_done
        self._finish_reason = finish_reason
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, request: Request) -> Response:
        self.headers.append(request.headers)
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return json_response({"error": {"message": f"Incorrect API key: {self.api_key[:3]}..."}}, 401)
        if request.method == "GET":
            page = self._paths.get(request.path)
            return Response(page.encode()) if page is not None else json_response({"detail": "Not Found"}, 404)
        if request.path != "/v1/chat/completions":
            return json_response({"detail": "Method Not Allowed"}, 405)
        return await self.chat(request, json.loads(request.body))

    async def chat(self, request: Request, body: dict[str, Any]) -> Response:
        if body.get("user") == "echo":
            return json_response({"error": {"message": f"bad request with {request.headers}"}}, 400)
        if self._refuses_stream_options and "stream_options" in body:
            return json_response({"error": {"message": "Unrecognized request argument: stream_options"}}, 400)
        self.requests.append(body)
        common = {"id": "chatcmpl-1", "created": 7, "model": body["model"]}
        usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
            answer = {**common, "object": "chat.completion", "choices": [choice]}
            return json_response(answer | ({"usage": usage} if self._tells_usage else {}))
        wants_usage = self._tells_usage and body.get("stream_options", {}).get("include_usage")
        return Response(self._events(common, usage if wants_usage else None), content_type="text/event-stream")

    def _events(self, common: dict[str, Any], usage: dict[str, int] | None) -> Iterator[bytes]:
        deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
        deltas += [({"content": word}, None) for word in TEXT.split(" ")]
        deltas += [({}, self._finish_reason)]
        for delta, finish_reason in deltas:
            choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
            yield _event({**common, "object": "chat.completion.chunk", "choices": [choice]})
        if usage is not None:
            yield _event({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        if self._sends_done:
            yield b"data: [DONE]\n\n"


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(payload).encode()
