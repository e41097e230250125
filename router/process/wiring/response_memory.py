"""The memory of /v1/responses, if the configuration has one."""

from collections.abc import Callable
from functools import partial

from starlette.routing import Route

from router.api.access.auth import Authenticator
from router.api.inference.kept_responses import KeptResponses
from router.api.inference.tenant_requests import TenantRequests
from router.flow.body_budget import BodyAllocation
from router.flow.memory.conversation_gateway import ConversationGateway
from router.flow.request_handler import RequestHandler
from router.process.process_state import ProcessState
from router.process.wiring.redis_services import RedisServices
from router.settings import Settings
from router.shared.responses.response_records import ResponseRecords


def with_memory(
    settings: Settings, process_state: ProcessState, services: RedisServices, gateway: RequestHandler
) -> RequestHandler:
    """What /v1/responses passes its requests to."""
    if not settings.responses.ttl:
        return gateway
    record_result = process_state.telemetry.record_kept_response
    return ConversationGateway(
        gateway,
        _records(settings, services, on_removed=lambda: record_result("removed")),
        services.cache.purges,
        max_body=settings.router.max_body,
        max_size=settings.responses.max_size,
        record_result=record_result,
        clock=services.redis.clock.now,
    )


def kept_response_routes(
    settings: Settings, process_state: ProcessState, services: RedisServices, auth: Authenticator
) -> list[Route]:
    if not settings.responses.ttl:
        return []
    requests = TenantRequests(
        auth,
        process_state.tenant_limits,
        process_state.telemetry,
        partial(BodyAllocation, process_state.body_budget, settings.router.max_bodies),
    )
    return KeptResponses(requests, _records(settings, services)).routes()


def _records(
    settings: Settings, services: RedisServices, on_removed: Callable[[], None] = lambda: None
) -> ResponseRecords:
    return ResponseRecords(
        services.redis.pipeline,
        ttl=settings.responses.ttl,
        max_per_tenant=settings.responses.max_per_tenant,
        max_bytes_per_tenant=int(settings.responses.max_bytes_per_tenant),
        clock=services.redis.clock.now,
        on_refused=services.redis.writes.on_refused,
        on_removed=on_removed,
    )
