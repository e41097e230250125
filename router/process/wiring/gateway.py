"""The objects between a request and the cache and the engines."""

import time
from functools import partial
from typing import NamedTuple

from router.api.inference.response_headers import ResponseHeaders
from router.core.endpoints.requests.cache_salt import derive_salts
from router.flow.attempts.candidates import build_candidates
from router.flow.attempts.dispatch import Dispatcher
from router.flow.attempts.engine_losses import EngineLosses
from router.flow.attempts.engine_request import EngineRequests, engine_timeouts
from router.flow.cache_lookup import CacheLookup
from router.flow.gateway import Gateway
from router.flow.generation import build_generations, record_generation
from router.flow.heartbeat import Heartbeats
from router.flow.lookup import cache_policy
from router.flow.request_handler import RequestHandler
from router.flow.request_resolver import RequestResolver
from router.flow.response_storage import ResponseStorage
from router.flow.sharing.abandonment import abandon_limits
from router.flow.sharing.generation_rules import AbandonRules, GenerationRules
from router.flow.tenant_rules import TenantRules
from router.process.process_state import ProcessState
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.redis_services import RedisServices
from router.process.wiring.response_memory import with_memory
from router.settings import Settings, groups
from router.shared.cache.sample_order import SampleOrder
from router.shared.prompts.recent_prompts import RecentPrompts


class GatewayParts(NamedTuple):
    """`responses`: what stands before the gateway at /v1/responses."""

    gateway: RequestHandler
    responses: RequestHandler
    rules: GenerationRules


def build_gateway(
    settings: Settings,
    process_state: ProcessState,
    services: RedisServices,
    engines: EnginePool,
    resolver: RequestResolver,
    rules: TenantRules,
) -> GatewayParts:
    telemetry, timeouts, redis, cache = process_state.telemetry, settings.timeouts, services.redis, services.cache
    # Its cache salts are a part of the prompts that new engines are warmed up with, too.
    requests = EngineRequests(engines.client, engine_timeouts(settings), derive_salts(groups(settings)))
    generation_rules = _build_generation_rules(settings, process_state, engines, requests)
    policy = cache_policy(settings)
    storage = ResponseStorage(
        writer=cache.writer,
        purges=cache.purges,
        seen_keys=cache.seen_keys,
        cache_policy=policy,
        recent_prompts=RecentPrompts(
            redis.pipeline,
            kept=settings.cache.recent_prompts,
            served_models={engine.name: engine.served_model for engine in engines.catalog.engines.values()},
            cache_salts=requests.cache_salts,
            clock=time.monotonic,
        ),
        retention=cache.retention if settings.cache.retention == "worth" else None,
        record_write=telemetry.record_write,
        clock=redis.clock.now,
    )
    gateway = Gateway(
        resolver=resolver,
        cache=CacheLookup(
            cache.store,
            cache.local,
            cache.coalescer,
            cache.seen_keys,
            cache.purges,
            policy,
            SampleOrder(redis.pipeline),
            clock=redis.clock.now,
        ),
        candidates=build_candidates(
            engines.selector, engines.catalog, engines.breakers, engines.health, engines.admission, rules
        ),
        coalescer=cache.coalescer,
        generation_rules=generation_rules,
        storage=storage,
        record_hit=cache.hit_counter.record_hit,
        queue_timeout=timeouts.queue,
        waking=engines.waking,
        heartbeats=Heartbeats(ResponseHeaders().render, interval=timeouts.heartbeat, start_wait=timeouts.queue),
    )
    responses = with_memory(settings, process_state, services, gateway, generation_rules)
    return GatewayParts(gateway, responses, generation_rules)


def _build_generation_rules(
    settings: Settings,
    process_state: ProcessState,
    engines: EnginePool,
    requests: EngineRequests,
) -> GenerationRules:
    cache = settings.cache
    losses = EngineLosses(engines.client, process_state.suspects)
    dispatcher = Dispatcher(
        engines.admission,
        engines.health,
        losses,
        on_adapter_not_served=engines.adapter_refresh.request,
    )
    return GenerationRules(
        build_generations(
            settings, requests, losses, dispatcher, engines.health, engines.continuation_engines, engines.waking
        ),
        AbandonRules(cache.on_abandon, cache.abandon, abandon_limits(settings)),
        join_limit=cache.max_entry,
        record_generation=partial(
            record_generation,
            process_state.telemetry.record_generation,
            engines.selector.learn,
            process_state.tenant_limits.spend,
        ),
    )
