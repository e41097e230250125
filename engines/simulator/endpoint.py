"""The life of one request that an engine works on: read, check, look up its faults, answer."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from engines.simulator.engine import EngineFailedError
from engines.simulator.faults import STANDING, FaultBook, Script, markers, script
from engines.simulator.fields import Body, parse
from engines.simulator.generation_log import GenerationLog
from engines.simulator.rejections import ENGINE_DEAD, Rejection, wrong_media_type
from engines.simulator.request_log import Ledger
from engines.simulator.wire import DroppedError, Wire, gone, read_body

_KINDS = {
    404: "NotFoundError", 422: "UnprocessableEntityError", 429: "RateLimitError", 500: "InternalServerError",
    501: "NotImplementedError", 503: "ServiceUnavailableError",
}  # fmt: skip


class _Asked(Protocol):
    @property
    def text(self) -> str:
        """All that the client wrote, for markers."""


AskedT = TypeVar("AskedT", bound=_Asked)


class Endpoint(ABC, Generic[AskedT]):
    """An ASGI app for one endpoint."""

    def __init__(self, book: FaultBook, ledger: Ledger, log: GenerationLog | None) -> None:
        self._book = book
        self._ledger = ledger
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the client may leave at any time."""
        raw = await read_body(receive)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._ledger.receive(scope["path"], headers, raw.decode("utf-8", "replace"))
        try:
            if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
                raise wrong_media_type()
            body = parse(raw)
            asked = self._read(body)
            plan = self._plan(asked.text)
        except Rejection as rejection:
            other = rejection.other_body
            await Wire(scope, send).reject(rejection, self._refusal(rejection) if other is None else other)
            return
        if self._log is not None:
            plan = self._log.begin(body, plan)
        wire = Wire(scope, send, plan.chunk_bytes)
        await _unless_gone(receive, self._answer(asked, plan, wire, headers))

    @abstractmethod
    def _read(self, body: Body) -> AskedT:
        """The request. Raises Rejection."""

    @abstractmethod
    async def _answer(self, asked: AskedT, plan: Script, wire: Wire, headers: dict[str, str]) -> None:
        """Sends the answer."""

    def _refusal(self, rejection: Rejection) -> object:
        """The body of an error."""
        return rejection.body

    def _plan(self, text: str) -> Script:
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
            message = (plan.status_message or "Made up by the simulator.").ljust(plan.status_bytes, ".")
            raise Rejection(plan.status, message, kind, plan.status_param, after, plan.status_shape)
        return plan


def before_headers(plan: Script) -> None:
    """Drops the connection where that is due before the response has begun."""
    if plan.drop_before_headers:
        raise DroppedError


async def strike(plan: Script, count: int, wire: Wire) -> None:
    """Let happen what is due after `count` tokens."""
    if plan.exit_after is not None and count >= plan.exit_after:
        await wire.flush()
        os._exit(plan.exit_code)
    if plan.error_after is not None and count >= plan.error_after:
        raise EngineFailedError(plan.error_message or ENGINE_DEAD, plan.error_code)
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
