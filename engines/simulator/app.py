"""The routes of a simulated engine. Its objects are wired here."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engines.simulator.control.faults import Fault, FaultRegistry
from engines.simulator.control.generation_log import GenerationLog
from engines.simulator.control.request_log import RequestLog
from engines.simulator.control.routes import control_routes
from engines.simulator.endpoints.adapters import AdapterRegistry, adapter_routes
from engines.simulator.endpoints.apis import APIS
from engines.simulator.endpoints.derendering import DERENDER_API
from engines.simulator.endpoints.development import development_routes
from engines.simulator.endpoints.embeddings import EmbeddingEndpoint
from engines.simulator.endpoints.generation import GenerationEndpoint
from engines.simulator.endpoints.json_endpoint import JsonApi, JsonEndpoint
from engines.simulator.endpoints.pooled import CLASSIFY_API, POOLING_API
from engines.simulator.endpoints.scoring import SCORING_APIS
from engines.simulator.endpoints.tokenizing import COUNT_TOKENS_API, TOKENIZER_APIS
from engines.simulator.endpoints.transcripts import TRANSCRIPT_APIS, TranscriptEndpoint
from engines.simulator.engine.core import EngineCore
from engines.simulator.engine.ranks import Ranks
from engines.simulator.engine.sleep_mode import SleepMode
from engines.simulator.formats.bodies import models_body
from engines.simulator.kv_cache.kv_events import NO_KV_EVENTS, KvEvents, PublishedKvEvents
from engines.simulator.kv_cache.kv_events_config import KvEventsConfig
from engines.simulator.metrics import EngineCollector, MetricsPage
from engines.simulator.settings import VLLM_VERSION, SimulatorSettings

_VARY = {"Vary": "Origin"}


OpenPublisher = Callable[[KvEventsConfig], Callable[[bytes], None]]
"""Returns what sends the batches of KV events. Raises KvEndpointError."""


def open_zmq(config: KvEventsConfig) -> Callable[[bytes], None]:
    from engines.simulator.kv_cache.kv_publisher import ZmqKvPublisher  # pyzmq is an extra

    return ZmqKvPublisher(config).send


def create_app(settings: SimulatorSettings, open_publisher: OpenPublisher = open_zmq) -> Starlette:
    """Raises KvEndpointError if KV events cannot be published."""
    ranks = Ranks(
        [
            EngineCore(settings, time.monotonic, _kv_events(settings, rank, open_publisher))
            for rank in range(settings.data_parallel_size)
        ]
    )
    generation_log = None if settings.generations is None else GenerationLog(Path(settings.generations), time.monotonic)
    fault_registry, request_log, adapters = FaultRegistry(), RequestLog(), AdapterRegistry(settings)
    api_routes = _api_routes(settings, ranks, adapters, fault_registry, request_log, generation_log)
    if settings.allow_runtime_lora_updating:
        api_routes += adapter_routes(adapters)
    return Starlette(
        routes=[
            *api_routes,
            *_server_routes(settings, ranks, adapters, fault_registry),
            *control_routes(fault_registry, request_log),
        ],
        exception_handlers={HTTPException: _http_error},
    )


def _api_routes(
    settings: SimulatorSettings, ranks: Ranks, adapters: AdapterRegistry, fault_registry: FaultRegistry,
    request_log: RequestLog, generation_log: GenerationLog | None,
) -> list[Route]:  # fmt: skip
    routes: list[Route] = []
    if settings.pooling:
        if settings.pooling_task == "embed":
            embeddings = EmbeddingEndpoint(settings, fault_registry, request_log, generation_log, time.time)
            routes.append(Route("/v1/embeddings", embeddings, methods=["POST"]))
    elif settings.speech:
        routes += [
            Route(
                api.path,
                TranscriptEndpoint(api, ranks, adapters, fault_registry, request_log, generation_log, time.time),
                methods=["POST"],
            )
            for api in TRANSCRIPT_APIS
        ]
    else:
        routes += [
            Route(
                api.path,
                GenerationEndpoint(api, ranks, adapters, fault_registry, request_log, generation_log, time.time),
                methods=["POST"],
            )
            for api in APIS
        ]
    counters = ranks.cores[0].counters  # of what generates nothing
    routes += [
        Route(
            api.path,
            JsonEndpoint(
                api, adapters, counters, fault_registry, request_log, generation_log, time.monotonic, time.time
            ),
            methods=["POST"],
        )
        for api in _json_apis(settings)
    ]
    return routes


def _server_routes(
    settings: SimulatorSettings, ranks: Ranks, adapters: AdapterRegistry, fault_registry: FaultRegistry
) -> Iterator[Route]:
    def kv_fault() -> Fault | None:
        return fault_registry.engine_fault("kv")

    sleep_mode = SleepMode(ranks.cores, settings)
    collectors = [
        EngineCollector(
            settings, core.scheduler, core.speculation, core.counters, kv_fault, sleep_mode, time.time(), rank
        )
        for rank, core in enumerate(ranks.cores)
    ]
    metrics_page = MetricsPage(collectors, kv_fault)

    async def models(_: Request) -> Response:
        return _json(models_body(settings, adapters.list_adapters(), int(time.time())))

    async def version(_: Request) -> Response:
        return _json({"version": VLLM_VERSION})

    async def health(_: Request) -> Response:
        fault = fault_registry.engine_fault("health")
        return Response(status_code=fault.get("code") if fault else 200, headers=_VARY)

    async def load(_: Request) -> Response:
        # vLLM counts only with --enable-server-load-tracking; without it, the value is 0.
        return _json({"server_load": 0})

    async def metrics(_: Request) -> Response:
        return Response(metrics_page.render(), headers={"Content-Type": CONTENT_TYPE_LATEST, **_VARY})

    if settings.server_dev_mode:
        yield from development_routes(ranks, sleep_mode)
    yield Route("/v1/models", models, methods=["GET"])
    yield Route("/health", health, methods=["GET"])
    yield Route("/ping", health, methods=["GET", "POST"])
    yield Route("/version", version, methods=["GET"])
    yield Route("/load", load, methods=["GET"])
    yield Route("/metrics", metrics, methods=["GET"])


def _kv_events(settings: SimulatorSettings, rank: int, open_publisher: OpenPublisher) -> KvEvents:
    if not settings.kv_events.is_published:
        return NO_KV_EVENTS
    return PublishedKvEvents(open_publisher(settings.kv_events.for_rank(rank)), time.time, rank)


def _json_apis(settings: SimulatorSettings) -> list[JsonApi]:
    """vLLM has the routes of what the model can do; of the others, it answers 404."""
    if not settings.pooling:
        return [*TOKENIZER_APIS, COUNT_TOKENS_API, DERENDER_API]
    classifying = [CLASSIFY_API] if settings.pooling_task == "classify" else []
    return [*TOKENIZER_APIS, POOLING_API, *classifying, *(SCORING_APIS if settings.scores else ())]


def _json(body: Mapping[str, object], status: int = 200) -> Response:
    return JSONResponse(body, status_code=status, headers=_VARY)


async def _http_error(_: Request, error: Exception) -> Response:
    """The response of FastAPI to an unknown path or a wrong method; vLLM does not change it."""
    assert isinstance(error, HTTPException), "registered for this class"
    headers = {**(error.headers or {}), **_VARY}
    return JSONResponse({"detail": error.detail}, status_code=error.status_code, headers=headers)
