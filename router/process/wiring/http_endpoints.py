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
from router.api.inference.endpoint import InferenceEndpoint
from router.api.inference.prompt_log import AsgiEndpoint, with_prompt_log
from router.api.inference.server_timing import ServerTiming
from router.api.ops.routes import api_error, http_error, unhandled_error
from router.core.endpoints.table import ENDPOINTS, UPLOAD_ENDPOINTS
from router.errors import ApiError
from router.flow.body_budget import BodyAllocation
from router.process.process_state import ProcessState
from router.process.wiring.gateway import GatewayParts
from router.settings import Settings
from router.store.admin.scan import RedisClient
from router.telemetry.tracing.tracer import Tracer


class HttpEndpoints(NamedTuple):
    """`inference`: the endpoints that generate, by path; `starlette_app` has all others.

    `cors`: None if no page of another origin may use the router.
    """

    inference: Mapping[str, AsgiEndpoint]
    starlette_app: Starlette
    cors: CorsPolicy | None


def build_http_endpoints(
    settings: Settings,
    process_state: ProcessState,
    auth: Authenticator,
    admin_authenticator: AdminAuthenticator,
    gateway: GatewayParts,
    routes: Sequence[Route],
    admin_client: RedisClient,
    tracer: Tracer | None,
    *,
    waits_for_start: bool,
) -> HttpEndpoints:
    """`routes`: of the other paths. `waits_for_start`: whether requests may wait for an engine to start."""
    router = settings.router
    # With `keys`, inference accepts no admin key.
    is_admin = admin_authenticator.is_admin if settings.auth_mode != "keys" else lambda _: False
    max_audio = min(router.max_audio, router.max_bodies)
    inference = {
        endpoint.path: InferenceEndpoint(
            endpoint,
            gateway.gateway,
            auth,
            process_state.tenant_limits,
            process_state.telemetry,
            partial(BodyAllocation, process_state.body_budget, router.max_bodies),
            max_body=router.max_body if endpoint in ENDPOINTS else max_audio,
            server_timing=ServerTiming(enabled=router.server_timing, is_admin=is_admin),
            tracer=tracer,
            waits_for_start=waits_for_start,
        )
        for endpoint in (*ENDPOINTS, *UPLOAD_ENDPOINTS)
    }
    starlette_app = Starlette(
        routes=[*routes, tenant_usage_route(auth, process_state.tenant_limits, settings, admin_client)],
        exception_handlers={ApiError: api_error, HTTPException: http_error, Exception: unhandled_error},
    )
    starlette_app.router.redirect_slashes = False  # a redirect would contain the Host that the client sent
    cors = CorsPolicy(router.allowed_origins) if router.allowed_origins else None
    return HttpEndpoints(with_prompt_log(settings, auth, inference), starlette_app, cors)
