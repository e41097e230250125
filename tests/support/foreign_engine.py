"""Inference servers that are not vLLM, as far as the router sees them."""

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.router_server import LLAMA

TEXT = "The sea is wide."


class ServedEngine(Protocol):
    @property
    def app(self) -> Starlette: ...


class ForeignEngine:
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
        routes = [
            Route("/v1/chat/completions", self._checked(self._chat), methods=["POST"]),
            Route("/{path:path}", self._checked(self._get)),
        ]
        self.app = Starlette(routes=routes)

    def _checked(self, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def checked(request: Request) -> Response:
            self.headers.append(dict(request.headers))
            if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
                return JSONResponse({"error": {"message": f"Incorrect API key: {self.api_key[:3]}..."}}, 401)
            response: Response = await handler(request)
            return response

        return checked

    async def _get(self, request: Request) -> Response:
        page = self._paths.get(request.url.path)
        return Response(page) if page is not None else JSONResponse({"detail": "Not Found"}, 404)

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        if body.get("user") == "echo":
            return JSONResponse({"error": {"message": f"bad request with {dict(request.headers)}"}}, 400)
        if self._refuses_stream_options and "stream_options" in body:
            return JSONResponse({"error": {"message": "Unrecognized request argument: stream_options"}}, 400)
        self.requests.append(body)
        common = {"id": "chatcmpl-1", "created": 7, "model": body["model"]}
        usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
            answer = {**common, "object": "chat.completion", "choices": [choice]}
            return JSONResponse(answer | ({"usage": usage} if self._tells_usage else {}))
        wants_usage = self._tells_usage and body.get("stream_options", {}).get("include_usage")
        return StreamingResponse(self._stream(common, usage if wants_usage else None), media_type="text/event-stream")

    async def _stream(self, common: dict[str, Any], usage: dict[str, int] | None) -> Any:
        deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
        deltas += [({"content": word}, None) for word in TEXT.split(" ")]
        deltas += [({}, self._finish_reason)]
        for delta, finish_reason in deltas:
            choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
            yield _event({**common, "object": "chat.completion.chunk", "choices": [choice]})
        if usage is not None:
            yield _event({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        if self._sends_done:
            yield "data: [DONE]\n\n"


def _event(payload: dict[str, Any]) -> str:
    return f"data: {json.dumps(payload)}\n\n"


@contextlib.asynccontextmanager
async def served(
    engine: ServedEngine, *, unix_socket: str | None = None, certificate: Path | None = None, port: int = 0
) -> AsyncIterator[str]:
    """The engine's URL. `certificate`: a PEM file with a certificate and its key. `port` 0: any."""
    if unix_socket is not None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(unix_socket)
        url = f"unix://{unix_socket}"
    else:
        listening = socket.socket()
        listening.bind(("127.0.0.1", port))
        url = f"http{'s' if certificate else ''}://127.0.0.1:{listening.getsockname()[1]}"
    tls: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": certificate} if certificate else {}
    server = uvicorn.Server(uvicorn.Config(engine.app, log_config=None, lifespan="off", ws="none", **tls))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[listening])
    await server.on_tick(0)
    try:
        yield url
    finally:
        await server.shutdown(sockets=[listening])
