"""The memory of /v1/responses, if the configuration has one."""

from collections.abc import Callable
from functools import partial

from starlette.routing import Route

from router.api.access.auth import Authenticator
from router.api.inference.endpoint import InferenceEndpoint
from router.api.inference.kept_responses import STREAM_ENDPOINT, KeptResponses
from router.api.inference.response_headers import ResponseHeaders
from router.api.inference.server_timing import ServerTiming
from router.api.inference.tenant_requests import TenantRequests
from router.flow.body_budget import BodyAllocation
from router.flow.heartbeat import Heartbeats
from router.flow.memory.background_responses import BackgroundLimits, BackgroundResponses
from router.flow.memory.background_stream import BackgroundStreams
from router.flow.memory.conversation_gateway import ConversationGateway
from router.flow.memory.item_references import ItemReferences
from router.flow.request_handler import RequestHandler
from router.flow.sharing.generation_rules import GenerationRules
from router.process.process_state import ProcessState
from router.process.wiring.redis_services import RedisServices
from router.settings import Settings
from router.shared.quota.rate_limits import ReadLimits
from router.shared.responses.background_records import BackgroundRecords
from router.shared.responses.kept_items import KeptItems
from router.shared.responses.response_records import ResponseRecords


def with_memory(
    settings: Settings, process_state: ProcessState, services: RedisServices, gateway: RequestHandler,
    rules: GenerationRules,
) -> RequestHandler:  # fmt: skip
    """What /v1/responses passes its requests to."""
    responses = settings.responses
    if not responses.ttl:
        return gateway
    record_result = process_state.telemetry.record_kept_response
    records = _records(settings, services, on_removed=lambda: record_result("removed"))
    background_records = _background_records(settings, services, records)
    limits = BackgroundLimits(
        responses.max_background, responses.max_background_per_tenant, responses.background_timeout, responses.max_size
    )
    background = BackgroundResponses(
        gateway,
        background_records,
        services.cache.background,
        services.cache.leases,
        rules,
        _streams(settings, services, background_records),
        limits,
        record_request=process_state.telemetry.record,
        clock=services.redis.clock.now,
    )
    return ConversationGateway(
        gateway,
        background,
        records,
        ItemReferences(_items(settings, services), settings.router.max_body),
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
    new_allocation = partial(BodyAllocation, process_state.body_budget, settings.router.max_bodies)
    limits = ReadLimits(process_state.tenant_limits)
    requests = TenantRequests(auth, limits, process_state.telemetry, new_allocation)
    records = _records(settings, services)
    background = _background_records(settings, services, records)
    stream = InferenceEndpoint(
        STREAM_ENDPOINT,
        _streams(settings, services, background),
        auth,
        limits,
        process_state.telemetry,
        new_allocation,
        max_body=0,
        server_timing=ServerTiming(enabled=False, is_admin=lambda _: False),
    )
    return KeptResponses(requests, records, background, stream).routes()


def _streams(settings: Settings, services: RedisServices, records: BackgroundRecords) -> BackgroundStreams:
    heartbeats = Heartbeats(
        ResponseHeaders().render, interval=settings.timeouts.heartbeat, start_wait=settings.timeouts.queue
    )
    return BackgroundStreams(records, services.cache.leases, heartbeats)


def _background_records(settings: Settings, services: RedisServices, records: ResponseRecords) -> BackgroundRecords:
    return BackgroundRecords(
        services.redis.pipeline, records, ttl=settings.responses.ttl, clock=services.redis.clock.now
    )


def _items(settings: Settings, services: RedisServices) -> KeptItems:
    return KeptItems(services.redis.pipeline, ttl=settings.responses.ttl, clock=services.redis.clock.now)


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
