"""The objects between a request and the cache and the engines."""

import time
from functools import partial
from typing import NamedTuple

from router.api.inference.response_headers import ResponseHeaders
from router.core.cache.miss_reason import SeenKeys
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
from router.flow.request_resolver import RequestResolver
from router.flow.response_storage import ResponseStorage
from router.flow.sharing.abandonment import abandon_limits
from router.flow.sharing.coalescer import Coalescer
from router.flow.tenant_rules import TenantRules
from router.process.process_state import ProcessState
from router.process.wiring.cache import Cache, build_cache
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.redis_link import RedisLink
from router.settings import Settings, groups
from router.shared.prompts.recent_prompts import RecentPrompts
from router.shared.quota.rate_limits import TenantLimits


class GatewayParts(NamedTuple):
    gateway: Gateway
    coalescer: Coalescer
    cache: Cache


def build_gateway(
    settings: Settings,
    process_state: ProcessState,
    redis: RedisLink,
    engines: EnginePool,
    tenant_limits: TenantLimits,
    resolver: RequestResolver,
    rules: TenantRules,
) -> GatewayParts:
    telemetry, timeouts, clock = process_state.telemetry, settings.timeouts, redis.clock
    # Its cache salts are a part of the prompts that new engines are warmed up with, too.
    requests = EngineRequests(engines.client, engine_timeouts(settings), derive_salts(groups(settings)))
    coalescer = _build_coalescer(settings, process_state, engines, requests, tenant_limits)
    seen_keys, policy = SeenKeys(), cache_policy(settings)
    cache = build_cache(settings, telemetry, redis, coalescer, seen_keys)
    storage = ResponseStorage(
        store=cache.store,
        purges=cache.purges,
        seen_keys=seen_keys,
        cache_policy=policy,
        recent_prompts=RecentPrompts(
            redis.pipeline,
            kept=settings.cache.recent_prompts,
            served_models={engine.name: engine.served_model for engine in engines.catalog.engines.values()},
            cache_salts=requests.cache_salts,
            clock=time.monotonic,
        ),
        retention=cache.retention,
        record_write=telemetry.record_write,
        clock=clock.now,
    )
    gateway = Gateway(
        resolver=resolver,
        cache=CacheLookup(cache.store, cache.local, coalescer, seen_keys, policy, clock=clock.now),
        candidates=build_candidates(
            engines.selector, engines.catalog, engines.breakers, engines.health, engines.admission, rules
        ),
        coalescer=coalescer,
        purges=cache.purges,
        storage=storage,
        record_hit=cache.hit_counter.record_hit,
        queue_timeout=timeouts.queue,
        waking=engines.waking,
        heartbeats=Heartbeats(ResponseHeaders().render, interval=timeouts.heartbeat, start_wait=timeouts.queue),
    )
    return GatewayParts(gateway, coalescer, cache)


def _build_coalescer(
    settings: Settings,
    process_state: ProcessState,
    engines: EnginePool,
    requests: EngineRequests,
    tenant_limits: TenantLimits,
) -> Coalescer:
    cache = settings.cache
    losses = EngineLosses(engines.client, process_state.suspects)
    dispatcher = Dispatcher(
        engines.admission,
        engines.health,
        losses,
        on_adapter_not_served=engines.adapter_refresh.request,
    )
    record_metrics = process_state.telemetry.record_generation
    return Coalescer(
        build_generations(
            settings, requests, losses, dispatcher, engines.health, engines.continuation_engines, engines.waking
        ),
        on_abandon=cache.on_abandon,
        abandon_timeout=cache.abandon,
        join_limit=cache.max_entry,
        record_generation=partial(record_generation, record_metrics, engines.selector.learn, tenant_limits.spend),
        max_abandoned=abandon_limits(settings),
    )
