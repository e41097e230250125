"""The life of one request that an engine works on: read, check, look up its faults, answer."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from engines.simulator.engine import EngineFailedError
from engines.simulator.faults import ENGINE_FAULTS, FaultPlan, FaultRegistry, parse_markers, plan_faults
from engines.simulator.fields import Body, parse_body
from engines.simulator.generation_log import GenerationLog
from engines.simulator.rejections import ENGINE_DEAD, Rejection, unsupported_media_type
from engines.simulator.request_log import RequestLog
from engines.simulator.wire import ConnectionDroppedError, ResponseWriter, read_body, wait_for_disconnect

_ERROR_TYPES = {
    404: "NotFoundError", 422: "UnprocessableEntityError", 429: "RateLimitError", 500: "InternalServerError",
    501: "NotImplementedError", 503: "ServiceUnavailableError",
}  # fmt: skip


class _HasText(Protocol):
    @property
    def text(self) -> str:
        """All that the client wrote, for markers."""


RequestT = TypeVar("RequestT", bound=_HasText)


class SimulatorEndpoint(ABC, Generic[RequestT]):
    """An ASGI app for one endpoint."""

    def __init__(
        self, fault_registry: FaultRegistry, request_log: RequestLog, generation_log: GenerationLog | None
    ) -> None:
        self._fault_registry = fault_registry
        self._request_log = request_log
        self._generation_log = generation_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the client may leave at any time."""
        raw = await read_body(receive)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._request_log.record_request(scope["path"], headers, raw.decode("utf-8", "replace"))
        try:
            if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
                raise unsupported_media_type()
            body = parse_body(raw)
            asked = self._parse_request(body)
            plan = self._plan_faults(asked.text)
        except Rejection as rejection:
            other = rejection.alternative_body
            await ResponseWriter(scope, send).send_error(
                rejection, self._error_body(rejection) if other is None else other
            )
            return
        if self._generation_log is not None:
            plan = self._generation_log.start_generation(body, plan)
        wire = ResponseWriter(scope, send, plan.chunk_bytes)
        await _cancel_on_disconnect(receive, self._answer(asked, plan, wire, headers))

    @abstractmethod
    def _parse_request(self, body: Body) -> RequestT:
        """The request. Raises Rejection."""

    @abstractmethod
    async def _answer(
        self, request: RequestT, plan: FaultPlan, writer: ResponseWriter, headers: dict[str, str]
    ) -> None:
        """Sends the answer."""

    def _error_body(self, rejection: Rejection) -> object:
        """The body of an error."""
        return rejection.body

    def _plan_faults(self, text: str) -> FaultPlan:
        try:
            marked = parse_markers(text)
            plan = plan_faults([*self._fault_registry.take_matching(text), *marked])
        except ValueError as error:
            raise Rejection(400, f"simulator: {error}", param="prompt") from error
        for fault in marked:
            if fault.kind in ENGINE_FAULTS:
                self._fault_registry.add_engine_fault(fault)
        if plan.status is not None:
            kind = _ERROR_TYPES.get(plan.status, "BadRequestError")
            after = () if plan.retry_after is None else (("Retry-After", plan.retry_after),)
            message = (plan.status_message or "Made up by the simulator.").ljust(plan.status_bytes, ".")
            raise Rejection(plan.status, message, kind, plan.status_param, after, plan.status_shape)
        return plan


def drop_before_headers(plan: FaultPlan) -> None:
    """Drops the connection where that is due before the response has begun."""
    if plan.drop_before_headers:
        raise ConnectionDroppedError


async def apply_fault(plan: FaultPlan, token_count: int, writer: ResponseWriter) -> None:
    """Let happen what is due after `count` tokens."""
    if plan.exit_after is not None and token_count >= plan.exit_after:
        await writer.flush()
        os._exit(plan.exit_code)
    if plan.error_after is not None and token_count >= plan.error_after:
        raise EngineFailedError(plan.error_message or ENGINE_DEAD, plan.error_code)
    if plan.drop_after is not None and token_count >= plan.drop_after:
        raise ConnectionDroppedError
    if plan.stall_after is not None and token_count >= plan.stall_after:
        await asyncio.Event().wait()


async def _cancel_on_disconnect(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Do the work, but give it up when the client leaves."""
    task = asyncio.current_task()
    assert task is not None, "an ASGI app runs in a task"
    left = False

    async def watch() -> None:
        nonlocal left
        await wait_for_disconnect(receive)
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
