"""The life of one request for a generation: read, check, look up its faults, generate, send."""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from starlette.types import Receive, Scope, Send

from engines.simulator.bodies import Choice, chat_body, completion_body
from engines.simulator.engine import Delta, Engine, EngineFailedError
from engines.simulator.faults import STANDING, FaultBook, Script, markers, script
from engines.simulator.fields import parse
from engines.simulator.frames import DONE, ChatFrames, CompletionFrames, Envelope, Frames, error_frame
from engines.simulator.ledger import Ledger
from engines.simulator.rejections import ENGINE_DEAD, Rejection, engine_failed, wrong_media_type
from engines.simulator.requests import GenerationRequest, chat_request, completion_request
from engines.simulator.wire import DroppedError, Wire, gone, read_body

_KINDS = {429: "RateLimitError", 500: "InternalServerError", 503: "ServiceUnavailableError"}


class GenerationEndpoint:
    """An ASGI app for one of the two generating endpoints. `now` gives Unix seconds."""

    def __init__(
        self, engine: Engine, book: FaultBook, ledger: Ledger, now: Callable[[], float], *, chat: bool
    ) -> None:
        self._engine = engine
        self._book = book
        self._ledger = ledger
        self._now = now
        self._chat = chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the client may leave at any time."""
        raw = await read_body(receive)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._ledger.receive(scope["path"], headers, raw.decode("utf-8", "replace"))
        try:
            request = self._read(headers, raw)
            plan = self._plan(request)
        except Rejection as rejection:
            await Wire(scope, send).reject(rejection)
            return
        wire = Wire(scope, send, plan.chunk_bytes)
        envelope = self._envelope(headers)
        await _unless_gone(receive, self._answer(request, plan, wire, envelope))

    def _read(self, headers: dict[str, str], raw: bytes) -> GenerationRequest:
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise wrong_media_type()
        body = parse(raw)
        read = chat_request if self._chat else completion_request
        return read(body, self._engine.settings)

    def _plan(self, request: GenerationRequest) -> Script:
        text = request.text
        try:
            marked = markers(text)
            plan = script([*self._book.take(text), *marked])
        except ValueError as error:
            raise Rejection(400, f"simulator: {error}", param="prompt") from error
        for fault in marked:
            if fault.kind in STANDING:
                self._book.stand(fault)
        if plan.status is not None:
            kind = _KINDS.get(plan.status, "BadRequestError")
            after = () if plan.retry_after is None else (("Retry-After", plan.retry_after),)
            raise Rejection(plan.status, plan.status_message or "Made up by the simulator.", kind=kind, headers=after)
        return plan

    def _envelope(self, headers: dict[str, str]) -> Envelope:
        settings = self._engine.settings
        number = headers.get("x-request-id") or secrets.token_hex(8)
        prefix = "chatcmpl" if self._chat else "cmpl"
        return Envelope(f"{prefix}-{number}", int(self._now()), settings.names[0], settings.fingerprint)

    async def _answer(self, request: GenerationRequest, plan: Script, wire: Wire, envelope: Envelope) -> None:
        send = self._stream if request.stream else self._json
        try:
            with self._ledger.generation():
                await send(request, plan, wire, envelope)
        except DroppedError:
            await wire.drop(reset=plan.drop_reset)
        except EngineFailedError as failure:
            rejection = engine_failed(str(failure))
            if not request.stream:
                await wire.reject(rejection)
                return
            await wire.write(error_frame(rejection))
            await self._end(plan, wire)

    async def _stream(self, request: GenerationRequest, plan: Script, wire: Wire, envelope: Envelope) -> None:
        make = ChatFrames if self._chat else CompletionFrames
        frames: Frames = make(request, envelope, finish=plan.finish)
        _before_headers(plan)
        await wire.begin_stream()
        opened, cut = False, plan.malformed
        async with aclosing(self._deltas(request, plan, wire)) as deltas:
            async for delta in deltas:
                if not opened:
                    opened = True
                    for frame in frames.opening():
                        await wire.write(frame)
                for frame in frames.of(delta):
                    await wire.write(frame[: len(frame) // 2] + b"\n\n" if cut else frame)
                    cut = False
                self._ledger.sent(len(delta.tokens))
        for frame in frames.closing():
            await wire.write(frame)
        await self._end(plan, wire)

    async def _end(self, plan: Script, wire: Wire) -> None:
        if plan.done:
            await wire.write(DONE)
        await wire.end()

    async def _json(self, request: GenerationRequest, plan: Script, wire: Wire, envelope: Envelope) -> None:
        _before_headers(plan)
        choices = [Choice() for _ in range(len(request.prompts) * request.n)]
        try:
            async with aclosing(self._deltas(request, plan, wire)) as deltas:
                async for delta in deltas:
                    choices[delta.index].add(delta)
        except DroppedError:
            # A part of the body that its head announced.
            await wire.begin_json(1000)
            await wire.write(b'{"id":"' + envelope.id.encode())
            raise
        make = chat_body if self._chat else completion_body
        body: Any = make(request, envelope, choices, finish=plan.finish)
        if plan.malformed:
            body = b'{"id":"' + envelope.id.encode() + b'","choices":[{'
        await wire.json(200, body)
        self._ledger.sent(sum(len(choice.texts) for choice in choices))

    async def _deltas(self, request: GenerationRequest, plan: Script, wire: Wire) -> AsyncGenerator[Delta, None]:
        """The engine's deltas, until a fault's number of tokens has been passed on."""
        count = 0
        async with aclosing(self._engine.generate(request, plan)) as deltas:
            try:
                async for delta in deltas:
                    await _strike(plan, count, wire)
                    yield delta
                    count += len(delta.tokens)
                await _strike(plan, count, wire)
            except EngineFailedError as failure:
                # So that the engine counts what was still running as failed and not as aborted.
                await deltas.athrow(failure)
                raise


def _before_headers(plan: Script) -> None:
    if plan.drop_before_headers:
        raise DroppedError


async def _strike(plan: Script, count: int, wire: Wire) -> None:
    """Let happen what is due after `count` tokens."""
    if plan.exit_after is not None and count >= plan.exit_after:
        await wire.flush()
        os._exit(plan.exit_code)
    if plan.error_after is not None and count >= plan.error_after:
        raise EngineFailedError(plan.error_message or ENGINE_DEAD)
    if plan.drop_after is not None and count >= plan.drop_after:
        raise DroppedError
    if plan.stall_after is not None and count >= plan.stall_after:
        await asyncio.Event().wait()


async def _unless_gone(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Do the work, but give it up when the client leaves."""
    task = asyncio.current_task()
    assert task is not None, "an ASGI app runs in a task"
    left = False

    async def watch() -> None:
        nonlocal left
        await gone(receive)
        left = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await work
    except asyncio.CancelledError:
        # Also a server that shuts down cancels; only the client's leaving ends here.
        if not left:
            raise
        task.uncancel()
    finally:
        watcher.cancel()
