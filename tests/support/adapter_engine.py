"""An engine with LoRA adapters that a test holds and lets fail."""

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.router_server import LLAMA


class AdapterEngine:
    """A server with vLLM's API for chats and adapters, of which `app` is the application.

    - Its answer to a chat names the path of the adapter.
    - `load_status`: of the answer to a load, which is done in any case but for a 4xx.
    - `open`: chats wait for it. `received` counts them.
    """

    def __init__(self, **paths_by_id: str) -> None:
        self.paths = dict(paths_by_id)
        self.load_status = 200
        self.open = asyncio.Event()
        self.open.set()
        self.received = 0
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
            Route("/health", self._ok),
            Route("/metrics", self._ok),
        ]
        self.app = Starlette(routes=routes)

    async def _ok(self, _: Request) -> Response:
        return Response()

    async def _models(self, _: Request) -> Response:
        base = {"id": LLAMA, "object": "model", "owned_by": "vllm", "root": LLAMA, "parent": None}
        adapters = [{**base, "id": id_, "root": path, "parent": LLAMA} for id_, path in self.paths.items()]
        return JSONResponse({"object": "list", "data": [base, *adapters]})

    async def _chat(self, request: Request) -> Response:
        body: dict[str, Any] = await request.json()
        self.received += 1
        await self.open.wait()
        message = {"role": "assistant", "content": f"from {self.paths.get(body['model'])}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        return JSONResponse({"id": "c", "object": "chat.completion", "model": body["model"], "created": 1,
                             "choices": [choice], "usage": usage})  # fmt: skip

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        if not 400 <= self.load_status < 500:
            self.paths[body["lora_name"]] = body["lora_path"]
        return Response("Success", self.load_status)

    async def _unload(self, request: Request) -> Response:
        del self.paths[(await request.json())["lora_name"]]
        return Response("Success")
