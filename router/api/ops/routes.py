"""Models, health, readiness, version and metrics: the requests of operators and their tools."""

import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from router.api.access.auth import Authenticator
from router.api.allowed_methods import allowed_methods
from router.api.ops.health_summary import HealthSummary
from router.api.ops.metrics_format import prefers_openmetrics
from router.api.ops.mistaken_path import explain_path
from router.build_info import build_version
from router.core.routing.session import SESSION_ID
from router.errors import ApiError, internal_error, unknown_model
from router.flow.tenant_rules import TenantRules
from router.shared.connection.redis_writes import RedisWrites
from router.shared.engines.breakers import Breakers
from router.telemetry.metrics_page import OPENMETRICS_TYPE, TEXT_TYPE
from router.telemetry.telemetry import Telemetry
from router.upstream.catalog import Catalog, Model
from router.upstream.probe import EngineProbe

_encode = msgspec.json.Encoder().encode

OpsHandler = Callable[[Request], Awaitable[Response]]


class OpsRoutes:
    """The routes outside of the hot path."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        breakers: Breakers,
        redis_writes: RedisWrites,
        probe: EngineProbe,
        telemetry: Telemetry,
        auth: Authenticator,
        rules: TenantRules,
        is_draining: Callable[[], bool],
    ) -> None:
        self._catalog = catalog
        self._breakers = breakers
        self._redis_writes = redis_writes
        self._health_summary = HealthSummary(
            catalog, breakers.state, redis_writes, lambda: auth.refuses_all, lambda: probe.last_check
        )
        self._telemetry = telemetry
        self._auth = auth
        self._rules = rules
        self._is_draining = is_draining
        self._created = int(dt.datetime.now(dt.UTC).timestamp())

    def routes(self) -> list[Route]:
        pages: list[tuple[str, OpsHandler]] = [
            ("/v1/models", self.models),
            ("/v1/models/{name:path}", self.model),
            ("/health", self.health),
            ("/healthz", self.healthz),
            ("/readyz", self.readyz),
            ("/version", self.version),
            ("/metrics", self.metrics),
        ]
        routes = [Route(path, handler, methods=["GET"]) for path, handler in pages]
        return [*routes, Route("/v1/sessions/{id:path}", self.end_session, methods=["DELETE"])]

    async def models(self, request: Request) -> Response:
        data = [self._model_object(name, model) for name, model in self._models_for(request)]
        return _json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        requested = request.path_params["name"]
        for name, model in self._models_for(request):
            if name == requested:
                return _json_response(self._model_object(name, model))
        raise unknown_model(requested)

    def _models_for(self, request: Request) -> list[tuple[str, Model | None]]:
        """The names that the request's tenant may use. Raises ApiError."""
        access = self._rules.access.get(self._auth.authenticate(request.scope["headers"]).tenant)
        return list(self._catalog.named_models(access))

    def _model_object(self, name: str, model: Model | None) -> dict[str, Any]:
        lengths = [e.max_model_len for e in self._catalog.engines_for(model.name)] if model is not None else []
        known = [length for length in lengths if length is not None]
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "roundhouse",
            "root": model.name if model is not None else None,
            "parent": model.adapter.base if model is not None and model.adapter is not None else None,
            "max_model_len": max(known) if known else None,
        }

    async def end_session(self, request: Request) -> Response:
        """Ends a session. Nothing is kept for one: its home is computed from each request, so there is nothing to do.

        Raises ApiError: 401 without a valid key, 404 for what no session can be called.
        """
        self._auth.authenticate(request.scope["headers"])
        session = request.path_params["id"]
        if not SESSION_ID.fullmatch(session.encode()):
            raise ApiError(404, "There is no such session.", code="not_found")
        return _json_response({"id": session, "object": "session", "deleted": True})

    async def health(self, _: Request) -> Response:
        """As vLLM does: an empty 200 while the process serves."""
        return Response()

    async def version(self, _: Request) -> Response:
        return _json_response({"version": build_version()})

    async def readyz(self, _: Request) -> Response:
        # Draining comes first: a load balancer must stop sending before the server stops listening.
        if self._is_draining():
            return PlainTextResponse("not ready: the router is shutting down\n", 503, {"retry-after": "1"})
        reason = self._auth.refuses_all or self._catalog.unready_reason(self._breakers.state)
        if reason is None:
            return PlainTextResponse("ready\n")
        return PlainTextResponse(f"not ready: {reason}\n", 503, {"retry-after": "1"})

    async def healthz(self, _: Request) -> Response:
        """Liveness and a summary."""
        return _json_response(*self._health_summary.document())

    async def metrics(self, request: Request) -> Response:
        self._telemetry.update_gauges(
            self._catalog.engines.values(),
            self._breakers.state,
            redis_up=self._redis_writes.redis_state != "down",
            asleep=self._catalog.asleep_engines(self._breakers.state),
        )
        as_openmetrics = prefers_openmetrics(",".join(request.headers.getlist("accept")))
        return Response(
            self._telemetry.render(self._health_summary.lasting_problems(), as_openmetrics=as_openmetrics),
            headers={"vary": "accept"},
            media_type=OPENMETRICS_TYPE if as_openmetrics else TEXT_TYPE,
        )


def _json_response(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")


async def api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else {}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return Response(error.body(), error.status, headers, media_type="application/json")


async def http_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for its own 404 and 405, rendered in OpenAI's shape. OPTIONS has no handler, so it is a 405.

    `OPTIONS *` asks about the whole server (RFC 9110, section 9.3.7).
    """
    assert isinstance(error, HTTPException)
    if request.method == "OPTIONS" and request.scope["path"] == "*":
        return Response(status_code=204, headers={"allow": "DELETE, GET, HEAD, OPTIONS, POST"})
    headers = error.headers
    if error.status_code == 405:
        # Starlette's own `Allow` has the methods of one route; a path can have several.
        headers = {"allow": ", ".join(allowed_methods(request.app.routes, request.scope))}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
    if error.status_code == 405:
        message = f"{request.method} is not allowed on {request.url.path}."
    else:
        message = f"There is nothing at {request.method} {request.url.path}."
        # The most frequent cause, and one that a client hides behind its own words.
        if (explanation := explain_path(request.url.path)) is not None:
            message = f"{message} {explanation}"
    shaped = ApiError(
        error.status_code, message, code="method_not_allowed" if error.status_code == 405 else "not_found"
    )
    return Response(shaped.body(), error.status_code, headers, media_type="application/json")


async def unhandled_error(_: Request, __: Exception) -> Response:
    """Starlette's handler for an unexpected exception; the server logs the traceback."""
    return Response(internal_error().body(), 500, media_type="application/json")
