"""Loads and unloads a LoRA adapter at all engines of a model, with vLLM's API.

Theory. The engines are independent, so a change can succeed at some and fail at others. Each engine is asked for its
list first, which makes a change safe to repeat: an engine that already is as it should be is left alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal

import msgspec

from router.core.endpoints.errors.engine_errors import parse_refusal
from router.errors import INVALID_REQUEST, NOT_FOUND, UPSTREAM, ApiError, bad_request
from router.net.client.errors import EngineError
from router.shared.audit.changes import Change, adapter_changed, half_done
from router.upstream.adapters import MAX_ID_LENGTH, MAX_ROOT_LENGTH, ListedAdapter, is_valid
from router.upstream.client import EngineClient
from router.upstream.engine import Engine
from router.upstream.model_lists import ModelListReader

LOAD_PATH: Final = "/v1/load_lora_adapter"
UNLOAD_PATH: Final = "/v1/unload_lora_adapter"

LOAD_TIMEOUT: Final = 120.0
"""Seconds that an engine has to load an adapter, which it may download."""

MAX_REQUEST: Final = 64 << 10
"""Bytes of a request to load or unload."""

_MAX_RESPONSE: Final = 64 << 10
_MAX_MESSAGE: Final = 300  # characters of an engine's message that are passed on
_NO_SUCH_PATH: Final = (
    "the engine does not take adapters at run time; start vLLM with --enable-lora and "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
)

ChangeState = Literal["loaded", "already_loaded", "unloaded", "not_loaded", "failed"]


class AdapterRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's request, and `model`: the base model, needed if the configuration has several."""

    lora_name: str
    lora_path: str = ""
    load_inplace: bool = False
    is_3d_lora_weight: bool = False
    lora_int_id: int | None = None
    model: str | None = None


class EngineChange(msgspec.Struct, frozen=True):
    """What happened at an engine. `status`: of the engine's error, if it sent one; `message`: why it failed."""

    engine: str
    state: ChangeState
    status: int | None = None
    message: str | None = None

    @property
    def may_be_done(self) -> bool:
        """Whether the engine may be changed: without a refusal, a failure does not tell."""
        refused = self.status is not None and self.status < 500
        return self.state in ("loaded", "unloaded") or (self.state == "failed" and not refused)


def audited_changes(
    request: AdapterRequest, model: str, changes: Sequence[EngineChange], *, loads: bool
) -> list[Change]:
    """What the audit says: nothing if no engine is changed. `model`: the base model."""
    if not any(each.may_be_done for each in changes):
        return []
    states = [f"{each.engine}: {each.state}" for each in changes]
    return [adapter_changed(request.lora_name, model, states, loads=loads, in_place=request.load_inplace)]


def audited_stop(request: AdapterRequest, model: str, error: BaseException, *, loads: bool) -> Change:
    """What the audit says of a change that ended before its engines have replied."""
    change = adapter_changed(request.lora_name, model, (), loads=loads, in_place=request.load_inplace)
    return half_done(change, error)


def parse_adapter_request(body: bytes, *, loads: bool) -> AdapterRequest:
    """Raises ApiError (400)."""
    try:
        request = msgspec.json.decode(body, type=AdapterRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"Invalid request: {error}", code="invalid_adapter") from None
    check_adapter_request(request, loads=loads)
    return request


def check_adapter_request(request: AdapterRequest, *, loads: bool) -> None:
    """Raises ApiError (400)."""
    if not is_valid(ListedAdapter(request.lora_name, request.lora_path)):
        message = (
            f"`lora_name` must have 1 to {MAX_ID_LENGTH} printable characters, `lora_path` at most {MAX_ROOT_LENGTH}."
        )
        raise bad_request(message, param="lora_name", code="invalid_adapter")
    if loads and not request.lora_path:
        raise bad_request("`lora_path` is missing.", param="lora_path", code="invalid_adapter")


async def load_adapter(
    client: EngineClient, lists: ModelListReader, engines: Sequence[Engine], request: AdapterRequest
) -> Sequence[EngineChange]:
    fields = {"lora_name": request.lora_name, "lora_path": request.lora_path, "load_inplace": request.load_inplace}
    if request.is_3d_lora_weight:
        fields["is_3d_lora_weight"] = True
    body = msgspec.json.encode(fields)

    async def load(engine: Engine) -> EngineChange:
        root = _root(engine, request.lora_name)
        if root is not None and not request.load_inplace:
            if root == request.lora_path:
                return EngineChange(engine.name, "already_loaded")
            message = f"it has the adapter from {root!r}; unload that, or set load_inplace to replace it"
            return EngineChange(engine.name, "failed", 400, message)
        return await _change(client, engine, LOAD_PATH, body, "loaded")

    return await _at_all(lists, engines, load)


async def unload_adapter(
    client: EngineClient, lists: ModelListReader, engines: Sequence[Engine], request: AdapterRequest
) -> Sequence[EngineChange]:
    body = msgspec.json.encode({"lora_name": request.lora_name})

    async def unload(engine: Engine) -> EngineChange:
        if _root(engine, request.lora_name) is None:
            return EngineChange(engine.name, "not_loaded")
        return await _change(client, engine, UNLOAD_PATH, body, "unloaded")

    return await _at_all(lists, engines, unload)


def change_error(adapter: str, changes: Sequence[EngineChange]) -> ApiError | None:
    """The error for changes of which one failed, or of which none was needed because no engine has the adapter."""
    failed = [change for change in changes if change.state == "failed"]
    if not failed:
        if any(change.state != "not_loaded" for change in changes):
            return None
        message = f"No engine of the model has the adapter {adapter!r}."
        return ApiError(404, message, kind=NOT_FOUND, param="lora_name", code="no_such_adapter")
    done = [f"{change.engine} ({change.state})" for change in changes if change.state != "failed"]
    problems = "; ".join(f"{change.engine}: {change.message}" for change in failed)
    message = f"The adapter {adapter!r} was not changed at {problems}."
    if done:
        message += f" It was at {', '.join(done)}. The request can be repeated."
        return ApiError(502, message, kind=UPSTREAM, code="adapter_change_incomplete")
    statuses = {change.status for change in failed}
    # All engines refused it for the same reason, so it is the request that is wrong.
    if statuses <= {400, 404}:
        return ApiError(400, message, kind=INVALID_REQUEST, code="adapter_refused")
    return ApiError(502, message, kind=UPSTREAM, code="adapter_change_failed")


async def _at_all(
    lists: ModelListReader, engines: Sequence[Engine], change: Callable[[Engine], Awaitable[EngineChange]]
) -> Sequence[EngineChange]:
    async def change_one(engine: Engine) -> EngineChange:
        if not await lists.reread(engine):
            return EngineChange(engine.name, "failed", None, "the engine cannot be reached")
        result = await change(engine)
        if result.state in ("loaded", "unloaded"):
            await lists.reread(engine)
        return result

    return await asyncio.gather(*map(change_one, engines))


def _root(engine: Engine, adapter_id: str) -> str | None:
    return next((adapter.root for adapter in engine.adapters if adapter.id == adapter_id), None)


async def _change(client: EngineClient, engine: Engine, path: str, body: bytes, state: ChangeState) -> EngineChange:
    try:
        with await client.post_json(engine, path, body, timeout=LOAD_TIMEOUT) as response:
            status = response.status
            text, complete = await response.read_up_to(_MAX_RESPONSE)
    except EngineError as error:
        return EngineChange(engine.name, "failed", None, str(error))
    if status == 200:
        return EngineChange(engine.name, state)
    if status in (404, 405) and b'"error"' not in text:
        return EngineChange(engine.name, "failed", status, _NO_SUCH_PATH)
    refusal = parse_refusal(status, engine.without_secrets(text), complete=complete, address=engine.address)
    return EngineChange(engine.name, "failed", status, refusal.message[:_MAX_MESSAGE])
