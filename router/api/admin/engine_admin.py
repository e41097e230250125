"""The admin API of the engines: their status, drain, resume, sleep and wake."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request

from router.api.admin.audit import RequestAudit
from router.api.admin.explained_request import EXPLAIN_OVERHEAD, decode_explained
from router.api.admin.gpus import Gpus
from router.api.inference.endpoint import read_body
from router.core.routing.prefill import PrefixIndexStatus
from router.errors import NOT_FOUND, ApiError
from router.flow.explain.choice_explainer import ChoiceExplainer, ChoiceRequest
from router.shared.audit.changes import engine_drained, engine_ordered, engine_resumed
from router.shared.engines.drains import Drains
from router.upstream.catalog import Catalog
from router.upstream.engine import Engine


class EngineStatus(msgspec.Struct, frozen=True):
    """An engine as this router process sees it; None means unknown, never 0.

    - `in_flight`: this process's requests to it. `running` and `waiting` are the engine's own latest metrics, so they
      count the requests of all its clients.
    - `prefixes`: what this process believes of its prefix cache.
    - `rest`: while others have its GPU, what it does: asleep, about to sleep or waking up.
    """

    name: str
    model: str
    task: str
    url: str
    up: bool | None
    drained: bool
    in_flight: int
    running: float | None
    waiting: float | None
    kv_cache_usage: float | None
    prefixes: PrefixIndexStatus
    rest: str = ""


class DrainResult(msgspec.Struct, frozen=True):
    """`everywhere`: Redis has the change, so all routers apply it; else only this process does, until Redis is back."""

    engine: EngineStatus
    everywhere: bool


class OrderResult(msgspec.Struct, frozen=True):
    """The routers have the order; `engine`: before it is carried out."""

    engine: EngineStatus
    gpu: str


class EngineAdmin:
    """The handlers under /admin/engines; AdminRoutes authenticates their requests."""

    def __init__(
        self, catalog: Catalog, drains: Drains, gpus: Gpus, prefix_status: Callable[[str], PrefixIndexStatus],
        explainer: ChoiceExplainer, audit: RequestAudit, *, max_body: int,
    ) -> None:  # fmt: skip
        """`prefix_status`: by the engine's URL. `max_body`: bytes of a request that is explained."""
        self._explainer = explainer
        self._audit = audit
        self._max_body = max_body
        self._catalog = catalog
        self._prefix_status = prefix_status
        self._drains = drains
        self._gpus = gpus

    async def list_engines(self, _: Request) -> Any:
        return {"engines": [self._engine_status(engine) for engine in self._catalog.engines.values()]}

    async def explain(self, request: Request) -> Any:
        """Which engines a request would be sent to now, in their order, and why; nothing is sent."""
        limit = self._max_body + EXPLAIN_OVERHEAD
        body = await read_body(request.scope["headers"], request.receive, limit)
        return self._explainer.explain(decode_explained(body, ChoiceRequest))

    async def drain(self, request: Request) -> Any:
        """No new requests for an engine; its running ones continue. Idempotent."""
        engine = self._find_engine(request)
        result = DrainResult(everywhere=await self._drains.drain(engine.name), engine=self._engine_status(engine))
        await self._audit.record(request, engine_drained(engine.name, everywhere=result.everywhere))
        return result

    async def resume(self, request: Request) -> Any:
        engine = self._find_engine(request)
        result = DrainResult(everywhere=await self._drains.resume(engine.name), engine=self._engine_status(engine))
        await self._audit.record(request, engine_resumed(engine.name, everywhere=result.everywhere))
        return result

    async def sleep(self, request: Request) -> Any:
        """An engine of a GPU sleeps once its requests have ended."""
        return await self._order(request, sleeps=True)

    async def wake(self, request: Request) -> Any:
        """It wakes up, and another one sleeps for it."""
        return await self._order(request, sleeps=False)

    async def _order(self, request: Request, *, sleeps: bool) -> Any:
        engine = self._find_engine(request)
        group = await self._gpus.order(engine.name, sleeps=sleeps)
        await self._audit.record(request, engine_ordered(engine.name, group, sleeps=sleeps))
        return OrderResult(engine=self._engine_status(engine), gpu=group)

    def _find_engine(self, request: Request) -> Engine:
        engine = self._catalog.engines.get(request.path_params["name"])
        if engine is None:
            raise ApiError(404, "This engine is not configured.", kind=NOT_FOUND, code="no_such_engine")
        return engine

    def _engine_status(self, engine: Engine) -> EngineStatus:
        gauges = engine.gauges
        return EngineStatus(
            name=engine.name, model=engine.model, task=engine.task, url=engine.url, up=engine.up,
            drained=engine.drained, in_flight=engine.in_flight, running=gauges.running, waiting=gauges.waiting,
            kv_cache_usage=gauges.kv_cache_usage, prefixes=self._prefix_status(engine.id), rest=engine.rest,
        )  # fmt: skip
