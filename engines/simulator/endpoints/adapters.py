"""LoRA adapters: those of the start, and vLLM's paths to load and unload others, with its messages."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engines.simulator.rejections import Rejection, unsupported_media_type, validation_error
from engines.simulator.settings import SimulatorSettings
from engines.simulator.validation.fields import parse_body

_VARY = {"Vary": "Origin"}
NOT_ENABLED = "LoRA is not enabled. Use --enable-lora to enable LoRA."
MISSING_PREFIX = "/missing"
"""The simulator has no weights; an adapter under this path is one that does not exist."""


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter that is loaded. `base`: the name of its base model. `number`: vLLM's `lora_int_id`, from 1."""

    name: str
    path: str
    base: str
    number: int


class AdapterRegistry:
    """The loaded adapters, by name, in the order in which they were loaded."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._settings = settings
        self._base = settings.model_names[0]
        self._numbers = count(1)
        self._adapters = {name: self._new(name, path) for name, path in settings.lora_modules}

    def list_adapters(self) -> list[LoadedAdapter]:
        return list(self._adapters.values())

    def settings_for(self, name: object) -> SimulatorSettings:
        """The settings with which a request for this model is answered: an adapter says something else."""
        adapter = self._adapters.get(name) if isinstance(name, str) else None
        if adapter is None:
            return self._settings
        weights = f"{self._settings.model} {adapter.name} {adapter.path}"
        identity = adapter.name, adapter.number
        return replace(self._settings, model=weights, served_names=(adapter.name,), adapter=identity)

    def _new(self, name: str, path: str) -> LoadedAdapter:
        return LoadedAdapter(name, path, self._base, next(self._numbers))

    def load(self, name: str, path: str, *, in_place: bool) -> str:
        """vLLM's answer; raises Rejection."""
        if not name or not path:
            raise Rejection(400, "Both 'lora_name' and 'lora_path' must be provided.", "InvalidUserInput")
        if name in self._settings.model_names:
            message = f"The lora adapter '{name}' conflicts with a served base model."
            raise Rejection(400, message, "InvalidUserInput")
        if not in_place and name in self._adapters:
            raise Rejection(
                400,
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                "InvalidUserInput",
            )
        if not self._settings.enable_lora:
            raise Rejection(500, NOT_ENABLED, "InternalServerError")
        if path.startswith(MISSING_PREFIX):
            raise Rejection(404, f"Loading lora {name} failed: No adapter found for {path}", "NotFoundError")
        self._adapters[name] = self._new(name, path)
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, name: str) -> str:
        """vLLM's answer; raises Rejection."""
        if not name:
            message = "'lora_name' needs to be provided to unload a LoRA adapter."
            raise Rejection(400, message, "InvalidUserInput")
        if self._adapters.pop(name, None) is None:
            raise Rejection(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        return f"Success: LoRA adapter '{name}' removed successfully."


def parse_module(text: str) -> tuple[str, str]:
    """A value of vLLM's `--lora-modules`: `name=path`, or JSON with `name` and `path`. Raises ValueError."""
    if text.startswith("{"):
        module = json.loads(text)
        if not isinstance(module, dict) or not {"name", "path"} <= module.keys():
            raise ValueError(f"invalid lora module: {text}")
        return str(module["name"]), str(module["path"])
    name, equals, path = text.partition("=")
    if not equals:
        raise ValueError(f"invalid lora module: {text}")
    return name, path


def adapter_routes(registry: AdapterRegistry) -> list[Route]:
    """The routes that vLLM has with VLLM_ALLOW_RUNTIME_LORA_UPDATING."""

    async def load(body: dict[str, Any]) -> str:
        in_place = bool(body.get("load_inplace", False))
        return registry.load(_text(body, "lora_name"), _text(body, "lora_path"), in_place=in_place)

    async def unload(body: dict[str, Any]) -> str:
        return registry.unload(_text(body, "lora_name"))

    def route(path: str, handler: Callable[[dict[str, Any]], Awaitable[str]]) -> Route:
        async def handle(request: Request) -> Response:
            try:
                if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
                    raise unsupported_media_type()
                return Response(await handler(parse_body(await request.body())), headers=_VARY)
            except Rejection as rejection:
                return JSONResponse(rejection.body, rejection.status, headers=_VARY)

        return Route(path, handle, methods=["POST"])

    return [route("/v1/load_lora_adapter", load), route("/v1/unload_lora_adapter", unload)]


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if isinstance(value, str):
        return value
    if name not in body:
        raise validation_error({"type": "missing", "loc": f"body.{name}", "msg": "Field required", "input": body})
    raise validation_error(
        {"type": "string_type", "loc": f"body.{name}", "msg": "Input should be a valid string", "input": value}
    )
