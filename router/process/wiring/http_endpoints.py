"""What answers a request, by its path."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from router.api.access.auth import AdminAuthenticator, Authenticator
from router.api.admin.usage import tenant_usage_route
from router.api.cors import CorsPolicy
from router.api.inference.endpoint import AsgiScope, InferenceEndpoint
from router.api.inference.prompt_log import AsgiEndpoint, with_prompt_log
from router.api.inference.server_timing import ServerTiming
from router.api.method_answers import AsgiApplication, OpenWebSocket
from router.api.ops.routes import api_error, http_error, unhandled_error
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.table import ENDPOINTS, UPLOAD_ENDPOINTS
from router.errors import ApiError
from router.flow.body_budget import BodyAllocation
from router.flow.replicas.background import Task
from router.net.server.timeouts import ClientTimeouts
from router.process.process_state import ProcessState
from router.process.wiring.batches import build_batches
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.gateway import GatewayParts
from router.process.wiring.redis_services import RedisServices
from router.process.wiring.response_memory import kept_response_routes
from router.settings import Settings
from router.telemetry.tracing.tracer import Tracer


class HttpEndpoints(NamedTuple):
    """`inference`: the endpoints that generate, by path; `starlette_app` has all others.

    `cors`: None if no page of another origin may use the router. `open_websocket`: None if WebSockets are turned off.
    `tasks`: run until the configuration is replaced, and start again if they fail.
    """

    inference: Mapping[str, AsgiEndpoint]
    starlette_app: Starlette
    cors: CorsPolicy | None
    open_websocket: OpenWebSocket | None
    tasks: Sequence[Task]


def build_http_endpoints(
    settings: Settings,
    process_state: ProcessState,
    auth: Authenticator,
    admin_authenticator: AdminAuthenticator,
    gateway: GatewayParts,
    routes: Sequence[Route],
    services: RedisServices,
    engines: EnginePool,
    tracer: Tracer | None,
) -> HttpEndpoints:
    """`routes`: of the other paths."""
    router = settings.router
    # With `keys`, inference accepts no admin key.
    is_admin = admin_authenticator.is_admin if settings.auth_mode != "keys" else lambda _: False
    max_audio = min(router.max_audio, router.max_bodies)
    inference = {
        endpoint.path: InferenceEndpoint(
            endpoint,
            gateway.responses if endpoint is RESPONSES else gateway.gateway,
            auth,
            process_state.tenant_limits,
            process_state.telemetry,
            partial(BodyAllocation, process_state.body_budget, router.max_bodies),
            max_body=router.max_body if endpoint in ENDPOINTS else max_audio,
            server_timing=ServerTiming(enabled=router.server_timing, is_admin=is_admin),
            tracer=tracer,
            waits_for_start=engines.waking.is_used,
        )
        for endpoint in (*ENDPOINTS, *UPLOAD_ENDPOINTS)
    }
    batches = build_batches(settings, process_state, services, auth, gateway, engines)
    starlette_app = Starlette(
        routes=[
            *routes,
            tenant_usage_route(auth, process_state.tenant_limits, settings, services.redis.admin_client),
            *kept_response_routes(settings, process_state, services, auth),
            *batches.routes,
        ],
        exception_handlers={ApiError: api_error, HTTPException: http_error, Exception: unhandled_error},
    )
    starlette_app.router.redirect_slashes = False  # a redirect would contain the Host that the client sent
    cors = CorsPolicy(router.allowed_origins) if router.allowed_origins else None
    open_websocket = _websocket(settings, process_state, auth, cors) if router.websocket else None
    return HttpEndpoints(with_prompt_log(settings, auth, inference), starlette_app, cors, open_websocket, batches.tasks)


def _websocket(
    settings: Settings, process_state: ProcessState, auth: Authenticator, cors: CorsPolicy | None
) -> OpenWebSocket:
    router, budget = settings.router, process_state.body_budget

    def open_websocket(scope: AsgiScope, application: AsgiApplication) -> None:
        # Imported at the first WebSocket: most routers have none, and the library takes 20 ms of each start.
        from router.api.websocket.handshake import WebSocketEndpoint
        from router.net.server.websocket import WebSocketLimits

        timeouts = ClientTimeouts(router.receive, router.send, router.keep_alive)
        limits = WebSocketLimits(router.max_body, timeouts, partial(BodyAllocation, budget, router.max_bodies))
        # Half of it, so that what connections remember leaves room for requests.
        new_memory = partial(BodyAllocation, budget, router.max_bodies // 2)
        endpoint = WebSocketEndpoint(auth, cors, limits, new_memory, lambda: process_state.draining)
        endpoint.open(scope, application)

    return open_websocket
