"""The HTTP side of a modelled replica: what a router asks of a vLLM server."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.routing.model import Replica
from engines.simulator.settings import BLOCK_SIZE

MODEL: Final = "llama"
SPECULATION_COUNTERS: Final = ("drafts", "draft_tokens", "accepted_tokens")
MAX_MODEL_LEN: Final = 65_536


class EngineServer:
    """Listens on a port of the loopback address while its context is entered.

    `stream` gives the events of a chat, from its body. `stated`: the size of the pool that the metrics page states,
    relative to the true one. `checks`: how often the metrics were read.
    """

    def __init__(
        self, replica: Replica, stream: Callable[[dict[str, Any]], AsyncIterator[bytes]], *, stated: float = 1.0
    ) -> None:
        self.checks = 0
        self._replica, self._stream, self._stated = replica, stream, stated
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    async def __aenter__(self) -> "EngineServer":
        application = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/metrics", self._metrics),
                Route("/health", _health),
                Route("/version", _version),
            ]
        )
        config = uvicorn.Config(application, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._task

    async def _chat(self, request: HttpRequest) -> Response:
        return StreamingResponse(self._stream(await request.json()), media_type="text/event-stream")

    async def _models(self, _: HttpRequest) -> Response:
        model = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "root": MODEL, "parent": None}
        return JSONResponse({"object": "list", "data": [{**model, "max_model_len": MAX_MODEL_LEN}]})

    async def _metrics(self, _: HttpRequest) -> Response:
        self.checks += 1
        return PlainTextResponse(metrics_page(self._replica, self._stated))


def metrics_page(replica: Replica, stated: float) -> str:
    engine = f'engine="0",model_name="{MODEL}"'
    blocks = round(replica.speeds.blocks * stated)
    lines = [
        f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",engine="0",num_gpu_blocks="{blocks}"}} 1.0',
        f"vllm:num_requests_running{{{engine}}} {len(replica.running)}.0",
        f"vllm:num_requests_waiting{{{engine}}} {len(replica.waiting)}.0",
        f"vllm:kv_cache_usage_perc{{{engine}}} {replica.pool.usage}",
        f"vllm:prefix_cache_queries_total{{{engine}}} {replica.prompt_tokens}.0",
        f"vllm:prefix_cache_hits_total{{{engine}}} {replica.cached_tokens}.0",
    ]
    if replica.draft:
        lines += [f"vllm:spec_decode_num_{counter}_total{{{engine}}} 0.0" for counter in SPECULATION_COUNTERS]
    return "\n".join([*lines, ""])


def stream_event(text: str | None = None, finish: str | None = None, **fields: object) -> bytes:
    """An event in vLLM's form; without a text and a finish reason, it has no choice."""
    choices: list[dict[str, object]] = []
    if text is not None or finish is not None:
        choices = [{"index": 0, "delta": {"content": text or ""}, "logprobs": None, "finish_reason": finish}]
    base = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return b"data: " + json.dumps({**base, "choices": choices, **fields}).encode() + b"\n\n"


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leaves Ctrl-C to the benchmark."""
        yield


def _page(response: Callable[[], Response]) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def serve(_: HttpRequest) -> Response:
        return response()

    return serve


_health: Final = _page(Response)
_version: Final = _page(lambda: JSONResponse({"version": "0.32.0"}))
