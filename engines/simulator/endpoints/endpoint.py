"""How an engine handles a request: read it, validate it, look up its faults, respond."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from engines.simulator.control.faults import ENGINE_FAULTS, FaultPlan, FaultRegistry, parse_markers, plan_faults
from engines.simulator.control.generation_log import GenerationLog
from engines.simulator.control.request_log import RequestLog
from engines.simulator.engine.core import EngineFailedError
from engines.simulator.rejections import ENGINE_DEAD, Rejection, unsupported_media_type
from engines.simulator.text.prompts import Prompt
from engines.simulator.validation.fields import Body, parse_body
from engines.simulator.wire import ConnectionDroppedError, ResponseWriter, read_body, wait_for_disconnect

_ERROR_TYPES = {
    404: "NotFoundError", 422: "UnprocessableEntityError", 429: "RateLimitError", 500: "InternalServerError",
    501: "NotImplementedError", 503: "ServiceUnavailableError",
}  # fmt: skip


class _HasText(Protocol):
    @property
    def text(self) -> str:
        """Everything the client wrote, in which markers are searched."""


RequestT = TypeVar("RequestT", bound=_HasText)


class SimulatorEndpoint(ABC, Generic[RequestT]):
    """An ASGI app for one endpoint of the engine."""

    def __init__(
        self, fault_registry: FaultRegistry, request_log: RequestLog, generation_log: GenerationLog | None
    ) -> None:
        self._fault_registry = fault_registry
        self._request_log = request_log
        self._generation_log = generation_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await read_body(receive)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        # Before validation, so that refused requests are logged too.
        self._request_log.record_request(scope["path"], headers, raw.decode("utf-8", "replace"))
        try:
            body = self._read_fields(raw, headers)
            request = self._parse_request(body)
            plan = self._plan_faults(request.text)
        except Rejection as rejection:
            body_override = rejection.alternative_body
            await ResponseWriter(scope, send).send_error(
                rejection, self._error_body(rejection) if body_override is None else body_override
            )
            return
        # The log must have its line before the first byte of the answer is sent.
        if self._generation_log is not None:
            plan = self._generation_log.start_generation(body, plan, self._only_prompt(request))
        writer = ResponseWriter(scope, send, plan.chunk_bytes)
        await _cancel_on_disconnect(receive, self._answer(request, plan, writer, headers))

    def _read_fields(self, raw: bytes, headers: dict[str, str]) -> Body:
        """The fields of a JSON body; endpoints that take a form override it. Raises Rejection."""
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise unsupported_media_type()
        return parse_body(raw)

    @abstractmethod
    def _parse_request(self, body: Body) -> RequestT:
        """Raises Rejection."""

    @abstractmethod
    async def _answer(
        self, request: RequestT, plan: FaultPlan, writer: ResponseWriter, headers: dict[str, str]
    ) -> None:
        """Sends the response."""

    def _only_prompt(self, _: RequestT) -> Prompt | None:
        """The prompt of a request for one text; None for any other."""
        return None

    def _error_body(self, rejection: Rejection) -> object:
        """The JSON body for an error; endpoints with another error format override it."""
        return rejection.body

    def _plan_faults(self, text: str) -> FaultPlan:
        try:
            marked = parse_markers(text)
            plan = plan_faults([*self._fault_registry.take_matching(text), *marked])
        except ValueError as error:
            raise Rejection(400, f"simulator: {error}", param="prompt") from error
        # After plan_faults, so that a marker that is rejected has no effect on the engine.
        for fault in marked:
            if fault.kind in ENGINE_FAULTS:
                self._fault_registry.add_engine_fault(fault)
        if plan.status is not None:
            kind = _ERROR_TYPES.get(plan.status, "BadRequestError")
            extra_headers = () if plan.retry_after is None else (("Retry-After", plan.retry_after),)
            message = (plan.status_message or "Made up by the simulator.").ljust(plan.status_bytes, ".")
            raise Rejection(plan.status, message, kind, plan.status_param, extra_headers, plan.status_shape)
        return plan


def drop_before_headers(plan: FaultPlan) -> None:
    if plan.drop_before_headers:
        raise ConnectionDroppedError


async def apply_fault(plan: FaultPlan, token_count: int, writer: ResponseWriter) -> None:
    """Applies the faults that are due after `token_count` tokens."""
    if plan.exit_after is not None and token_count >= plan.exit_after:
        await writer.flush()
        # No cleanup: the fault simulates an engine process that crashes.
        os._exit(plan.exit_code)
    if plan.error_after is not None and token_count >= plan.error_after:
        raise EngineFailedError(plan.error_message or ENGINE_DEAD, plan.error_code)
    if plan.drop_after is not None and token_count >= plan.drop_after:
        raise ConnectionDroppedError
    if plan.stall_after is not None and token_count >= plan.stall_after:
        # Stalls until the client disconnects, which cancels this task.
        await asyncio.Event().wait()


async def _cancel_on_disconnect(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Runs the work and cancels it when the client disconnects."""
    # The work runs in this task; the watcher cancels it.
    task = asyncio.current_task()
    assert task is not None, "an ASGI app runs in a task"
    disconnected = False

    async def watch() -> None:
        nonlocal disconnected
        await wait_for_disconnect(receive)
        disconnected = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await work
    except asyncio.CancelledError:
        # A server that shuts down also cancels the task; only a disconnect of the client is handled here.
        if not disconnected:
            raise
        # The cancellation is handled here; without uncancel() an enclosing timeout would misread it.
        task.uncancel()
    finally:
        watcher.cancel()
