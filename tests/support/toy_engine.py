"""An engine of a ToyModel over HTTP, with vLLM's bytes, whose streams break off where a test says."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.support.router_server import LLAMA
from tests.support.toy_model import PROMPT_IDS, ToyModel, stream_bytes

_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ERROR_EVENT = b'data: {"error":{"message":"the engine core died","type":"InternalServerError","code":500}}\n\n'


class Break(NamedTuple):
    """After so many bytes of a stream's events; `how`: reset, close, stall, error, abort, or refuse (a status 400).

    Also pause: the stream goes on after it; or unended: the response ends, and its last event lacks its empty line.
    """

    after: int
    how: str = "reset"


class ToyEngine:
    """Its POST requests are in `bodies`, their paths in `paths`. `breaks`: of the next streams, in their order.

    A request that asks for no stream gets an empty object.

    - `left` is set when the client leaves a stream that stalls.
    - `may_answer`: requests wait for it. `may_break`: streams wait for it before they break off.
    - `knows_ids`: whether it knows `return_token_ids`. `adapters`: the paths of its LoRA adapters, by id.
    - `context`: its context length in tokens, which it does not check. `chat_limit`: of a chat that states none.
    """

    def __init__(
        self, model: ToyModel, *breaks: Break, name: str = "toy", groups: list[int] | None = None,
        kind: str = "vllm", knows_ids: bool = True, adapters: Mapping[str, str] = MappingProxyType({}),
        context: int = 4096, chat_limit: int = 4000,
    ) -> None:  # fmt: skip
        self.model = model
        self.breaks = list(breaks)
        self.name = name
        self.groups = groups or [1]
        self.kind = kind
        self.knows_ids = knows_ids
        self.adapters = dict(adapters)
        self.context = context
        self.default_limit = {True: chat_limit, False: 4000 if kind == "llamacpp" else 16}
        self.may_answer = _set_event()
        self.may_break = _set_event()
        self.asked_for_models = asyncio.Event()
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.left = asyncio.Event()
        self.stalled = asyncio.Event()
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode().split("\r\n")
                method, path, _ = lines[0].split(" ")
                length = next((int(line[15:]) for line in lines if line.lower().startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                if method == "POST":
                    await self._respond(path, json.loads(body), reader, writer)
                else:
                    self._write_page(path, writer)
                await writer.drain()
        writer.close()

    def _write_page(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            self.asked_for_models.set()
        model = {"id": LLAMA, "object": "model", "owned_by": self.kind, "max_model_len": self.context}
        adapters = [{**model, "id": id_, "root": root, "parent": LLAMA} for id_, root in self.adapters.items()]
        page = json.dumps({"data": [model, *adapters]}).encode() if path == "/v1/models" else b""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))

    def _events(self, path: str, body: dict[str, Any]) -> bytes:
        chat = path == "/v1/chat/completions"
        prompt = list(PROMPT_IDS)
        if chat and body.get("continue_final_message"):
            assert body["add_generation_prompt"] is False
            prompt += self.model.ids()[: self.model.tokens_of(body["messages"][-1]["content"])]
        elif not chat and isinstance(body["prompt"][0], int):
            prompt = body["prompt"]
        elif not chat:
            text = body["prompt"] if isinstance(body["prompt"], str) else body["prompt"][0]
            prompt += self.model.ids()[: self.model.tokens_of(text.removeprefix("x"))]
        stop = body.get("stop") or []
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or self.default_limit[chat]
        events = self.model.steps(
            self.model.said(prompt),
            max_tokens=limit,
            stop=[stop] if isinstance(stop, str) else stop,
            groups=self.groups,
        )
        return stream_bytes(
            events, chat=chat, id_=f"{self.name}-{len(self.bodies)}", created=len(self.bodies), prompt=prompt,
            with_ids=bool(body.get("return_token_ids")) and self.knows_ids,
            usage=body["stream_options"]["include_usage"],
            continuous=bool(body["stream_options"].get("continuous_usage_stats")),
        )  # fmt: skip

    async def _respond(
        self, path: str, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.bodies.append(body)
        self.paths.append(path)
        await self.may_answer.wait()
        if not body.get("stream"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
            return
        data = self._events(path, body)
        fault = self.breaks.pop(0) if self.breaks else None
        if fault is not None and fault.how == "refuse":
            writer.write(
                b"HTTP/1.1 400 Bad Request\r\nContent-Length: 36\r\n\r\n" + b'{"error":{"message":"out of range"}}'
            )
            return
        writer.write(_STREAM_HEAD)
        end = b"\n\n"
        pieces = [each + end for each in data[: fault.after if fault is not None else None].split(end)]
        pieces[-1] = pieces[-1].removesuffix(end)
        if fault is not None and fault.how == "error":
            pieces = [*pieces[:-1], ERROR_EVENT]
        elif fault is not None and fault.how == "abort":
            pieces = [*pieces[:-1], _abort_event(pieces[-2])]
        elif fault is not None and fault.how == "unended":
            pieces = [*pieces[:-2], pieces[-2].removesuffix(end)]
        for piece in pieces:
            if piece:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
        if fault is not None:
            await self.may_break.wait()
        if fault is not None and fault.how == "pause":
            rest = data[fault.after :]
            writer.write(b"%x\r\n%b\r\n" % (len(rest), rest))
        if fault is None or fault.how in ("error", "abort", "pause", "unended"):
            writer.write(b"0\r\n\r\n")
        elif fault.how == "stall":
            self.stalled.set()
            await reader.read()
            self.left.set()
            raise ConnectionResetError
        else:
            if fault.how == "reset":
                option = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
            raise ConnectionResetError


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _abort_event(event: bytes) -> bytes:
    return event.replace(b'"finish_reason":null', b'"finish_reason":"abort"')


@contextlib.asynccontextmanager
async def toy_engines(*engines: ToyEngine) -> AsyncIterator[dict[str, tuple[str, str, str]]]:
    """Starts them; yields what `router_config` takes: engines of the model llama, by name, the first preferred."""
    for engine in engines:
        await engine.start()
    try:
        yield {engine.name: ("llama", "any", engine.url) for engine in engines}
    finally:
        for engine in engines:
            await engine.stop()
