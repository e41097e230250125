"""Creates and connects all objects; the rest of the router receives them as arguments."""

import random
from collections.abc import Callable

from router.api.ops.routes import OpsRoutes
from router.core.routing.draft_models.draft_stats import DraftStats
from router.flow.tenant_rules import tenant_rules
from router.net.client.transport import HTTPTransport
from router.process.application import Application
from router.process.process_state import ProcessState
from router.process.runtime import Runtime
from router.process.wiring.admin import build_admin_routes
from router.process.wiring.engine_pool import EnginePool, build_engine_pool
from router.process.wiring.gateway import build_gateway
from router.process.wiring.http_endpoints import build_http_endpoints
from router.process.wiring.live_configuration import LiveConfiguration
from router.process.wiring.probe import build_engine_checks
from router.process.wiring.redis_link import redis_identity
from router.process.wiring.redis_services import RedisServices
from router.process.wiring.request_resolver import build_request_resolver
from router.process.wiring.shared_records import build_admin_authenticator, build_authenticator
from router.process.wiring.status import build_status
from router.settings import Settings
from router.shared.prompts.sibling_link import NO_SIBLINGS, SiblingLink
from router.telemetry.telemetry import Telemetry
from router.telemetry.tracing.otlp import OpenExporter, open_tracer
from router.upstream.kv_feeds import Subscribe
from router.upstream.process_slots import ProcessSlots
from router.upstream.shared_slots import SharedSlots, WorkerPlace


def build(
    settings: Settings,
    *,
    transport: HTTPTransport | None = None,
    multiprocess_dir: str | None = None,
    place: WorkerPlace | None = None,
    random: Callable[[], float] = random.random,
    open_exporter: OpenExporter | None = None,
    subscribe: Subscribe | None = None,
) -> Application:
    """The router as an ASGI application.

    `multiprocess_dir` is the directory in which worker processes share their metrics, and `place` is this worker's
    among them. `random` returns numbers from 0 up to 1; they decide when a request tries another engine than the best.
    `open_exporter` replaces the collector of [tracing], and `subscribe` ZMQ for the KV events of engines.
    """
    telemetry = Telemetry(log_format=settings.router.log_format, multiprocess_dir=multiprocess_dir)
    slots = SharedSlots(place) if place is not None else ProcessSlots()
    siblings = SiblingLink(place.directory, place.worker, place.workers) if place is not None else NO_SIBLINGS
    process_state = ProcessState(
        telemetry, transport or HTTPTransport(), DraftStats(), random, slots, siblings, open_exporter, subscribe
    )
    return Application(build_runtime, process_state, settings)


def build_runtime(settings: Settings, process_state: ProcessState, old: Runtime | None) -> Runtime:
    """Everything for one configuration. It shares the services with `old`, which it replaces, if Redis is the same."""
    services = old.services if old is not None else None
    if services is None or services.identity != redis_identity(settings):
        services = RedisServices(settings, process_state, services)
    engines = build_engine_pool(
        settings,
        process_state,
        services.redis.pipeline,
        services.records.breakers,
        (old.settings, old.catalog) if old is not None else None,
    )
    try:
        return _build_parts(settings, process_state, services, engines, old)
    except BaseException:  # whatever it is, it is raised again
        engines.admission.close()  # engines that the old configuration has, too, would go on notifying it
        raise


def _build_parts(
    settings: Settings, process_state: ProcessState, services: RedisServices, engines: EnginePool, old: Runtime | None
) -> Runtime:
    redis = services.redis
    auth = build_authenticator(settings, redis)
    rules, resolver = tenant_rules(settings, engines.catalog), build_request_resolver(settings, engines.catalog)
    gateway = build_gateway(settings, process_state, services, engines, resolver, rules)
    probe, turns = build_engine_checks(settings, process_state, redis, services.live, engines)
    ops = OpsRoutes(
        catalog=engines.catalog,
        breakers=engines.breakers,
        redis_writes=redis.writes,
        probe=probe,
        telemetry=process_state.telemetry,
        auth=auth,
        rules=rules,
        is_draining=lambda: process_state.draining,
    )
    status = build_status(settings, process_state, redis, engines, auth, turns.gpus)
    admin_authenticator = build_admin_authenticator(settings, services.records)
    admin_routes = build_admin_routes(
        settings, process_state, services, engines, resolver, rules, status, admin_authenticator
    )
    # Late: if something above raises, nothing holds a tracer.
    record_dropped, former = process_state.telemetry.record_dropped_spans, old.tracer if old is not None else None
    tracer = open_tracer(settings, record_dropped, process_state.open_exporter, former)
    return Runtime(
        LiveConfiguration(settings, auth, engines),
        process_state,
        services,
        probe=probe,
        turn_takers=turns.takers,
        rules=gateway.rules,
        http=build_http_endpoints(
            settings, process_state, auth, admin_authenticator, gateway, [*ops.routes(), *admin_routes],
            services, engines, tracer,
        ),
        status=status,
        tracer=tracer,
    )  # fmt: skip
