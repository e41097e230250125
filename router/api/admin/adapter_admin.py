"""vLLM's paths to load and unload a LoRA adapter, for administrators: at all engines of a model."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request

from router.api.admin.audit import RequestAudit
from router.api.inference.endpoint import read_body
from router.errors import bad_request
from router.flow.replicas.adapter_publication import publish_change
from router.store.admin.scan import RedisClient
from router.upstream.adapter_changes import (
    MAX_REQUEST,
    AdapterRequest,
    EngineChange,
    audited_changes,
    audited_stop,
    change_error,
    load_adapter,
    parse_adapter_request,
    unload_adapter,
)
from router.upstream.catalog import Catalog
from router.upstream.client import EngineClient
from router.upstream.engine import Engine
from router.upstream.model_lists import ModelListReader

log = logging.getLogger("roundhouse.admin")


class AdapterChange(msgspec.Struct, frozen=True):
    """A change that is in effect at all engines. `model`: the base model.

    `everywhere`: other routers know of it now; else they see it at their next probe. `purged`: entries that were
    deleted, since an adapter that is replaced in place may answer differently under the same path.
    """

    adapter: str
    model: str
    engines: Sequence[EngineChange]
    everywhere: bool
    purged: int = 0


class AdapterAdmin:
    """The handlers; AdminRoutes authenticates their requests.

    - A partial failure is an error that names the engines that failed and those that did not; it can be repeated.
    - An adapter that may be replaced in place has no entries afterwards, in any case but that Redis is down: 503.
    """

    def __init__(
        self, catalog: Catalog, client: EngineClient, lists: ModelListReader, redis: RedisClient, audit: RequestAudit
    ) -> None:
        self._audit = audit
        self._catalog = catalog
        self._client = client
        self._lists = lists
        self._redis = redis

    async def load(self, request: Request) -> Any:
        adapter_request = parse_adapter_request(await _read(request), loads=True)
        return await self._change(request, adapter_request, load_adapter, loads=True)

    async def unload(self, request: Request) -> Any:
        adapter_request = parse_adapter_request(await _read(request), loads=False)
        return await self._change(request, adapter_request, unload_adapter, loads=False)

    async def _change(
        self,
        http_request: Request,
        request: AdapterRequest,
        change: Callable[
            [EngineClient, ModelListReader, Sequence[Engine], AdapterRequest], Awaitable[Sequence[EngineChange]]
        ],
        *,
        loads: bool,
    ) -> AdapterChange:
        model = self._base_model(request)
        changes = await self._audit.recorded(
            http_request,
            change(self._client, self._lists, self._catalog.engines_for(model), request),
            lambda done: audited_changes(request, model, done, loads=loads),
            lambda error: [audited_stop(request, model, error, loads=loads)],
        )
        states = ", ".join(f"{each.engine}: {each.state}" for each in changes)
        log.info("adapter %r of the model %s: %s", request.lora_name, model, states)
        everywhere, purged = await publish_change(self._redis, model, request, changes)
        error = change_error(request.lora_name, changes)
        if error is not None:
            raise error
        return AdapterChange(request.lora_name, model, changes, everywhere, purged)

    def _base_model(self, request: AdapterRequest) -> str:
        if request.model is not None:
            model = self._catalog.resolve_configured(request.model)
            if model is not None:
                return model.name
        elif len(self._catalog.models) == 1:
            return self._catalog.models[0].name
        names = ", ".join(model.name for model in self._catalog.models)
        raise bad_request(f"`model` must be the base model, one of {names}.", param="model", code="invalid_adapter")


async def _read(request: Request) -> bytes:
    return await read_body(request.scope["headers"], request.receive, MAX_REQUEST)
