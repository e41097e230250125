"""What a configuration runs in the background: one list of what is read first, of what runs, and of what is closed."""

from functools import partial
from typing import Final, NamedTuple

from router.core.cache.redis_keys import tracked_prefixes
from router.flow.replicas.background import BackgroundServices, every, flush_hits, load_purges
from router.flow.replicas.invalidation import InvalidationHandler, KnownEntries, KnownRecords, PromptMessages
from router.net.redis.listener import Listener
from router.net.redis.pipeline import RedisPipeline
from router.net.redis.url import parse_redis_url
from router.process.process_state import ProcessState
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.gateway import GatewayParts
from router.process.wiring.redis_link import RedisLink
from router.process.wiring.shared_records import SharedRecords
from router.settings import Settings, tenants
from router.shared.accounting.ledger import FLUSH_INTERVAL
from router.shared.cache.retention import REFRESH_INTERVAL
from router.shared.connection.rights_report import RightsReport
from router.shared.prompts.prompt_link import RedisRecordLink
from router.shared.prompts.prompt_records import PROMPTS_CHANNEL, PromptRecords, RecordLink
from router.shared.prompts.sibling_link import FirstUpLink

_HIT_FLUSH_INTERVAL: Final = 2.0  # seconds
_ANNOUNCEMENTS_INTERVAL: Final = 2.0  # seconds between two reads, which decide whether a lease has ended


class Background(NamedTuple):
    """`record_link`: how what other routers send of their prompts comes, and this process' records go."""

    services: BackgroundServices
    record_link: RecordLink


def build_background(
    settings: Settings,
    process_state: ProcessState,
    redis: RedisLink,
    engines: EnginePool,
    records: SharedRecords,
    parts: GatewayParts,
) -> Background:
    pipeline, cache, coalescer = redis.pipeline, parts.cache, parts.coalescer
    redis_link = RedisRecordLink(pipeline)
    invalidation = _invalidation(process_state.prompt_records, redis_link, pipeline, engines, records, parts)
    listener = Listener(
        redis.backend,
        prefixes=tracked_prefixes(tenants(settings)),
        channels=(cache.leases.channel, PROMPTS_CHANNEL),
        callbacks=invalidation,
        retry_interval=settings.cache.retry,
        clock=redis.clock,
        liveness=cache.liveness,
    )
    flush_savings = partial(process_state.telemetry.flush_savings, pipeline, redis.clock.now)
    flush_all_hits = partial(flush_hits, pipeline, cache.hit_counter)
    retention = cache.retention
    services = BackgroundServices(
        pipeline,
        reads=[
            records.stored_keys.try_refresh,
            cache.purges.load,
            records.drains.try_refresh,
            records.announcements.try_refresh,
        ],
        # Each is started again if it fails; none of them ends the process.
        tasks=[
            partial(load_purges, pipeline, cache.purges),
            redis.writes.run,
            RightsReport(redis.backend, parse_redis_url(settings.redis_url).kind).run,
            listener.run,
            cache.leases.run,
            records.tenant_limits.run,
            records.stored_keys.run,
            every(_HIT_FLUSH_INTERVAL, flush_all_hits),
            every(FLUSH_INTERVAL, flush_savings),
            every(_ANNOUNCEMENTS_INTERVAL, records.announcements.try_refresh),
            *([every(REFRESH_INTERVAL, retention.refresh, at_once=True)] if retention is not None else []),
        ],
        closes=[
            coalescer.aclose,  # first: the ends of requests in flight go to their followers through the pipeline
            flush_all_hits,
            flush_savings,
            invalidation.aclose,
            records.stored_keys.flush_used,
            records.stored_keys.withdraw,
            engines.adapter_refresh.aclose,
            pipeline.aclose,  # sends what is queued
            cache.leases.stop,  # last: until the pipeline is closed, replies make the stream writers send what remains
        ],
    )
    return Background(services, FirstUpLink(redis_link, process_state.siblings))


def _invalidation(
    prompt_records: PromptRecords, record_link: RedisRecordLink, pipeline: RedisPipeline, engines: EnginePool,
    records: SharedRecords, parts: GatewayParts,
) -> InvalidationHandler:  # fmt: skip
    cache = parts.cache
    return InvalidationHandler(
        pipeline,
        KnownEntries(cache.local, cache.seen_keys, parts.coalescer, cache.purges, cache.leases, cache.retention),
        KnownRecords(records.stored_keys, records.drains, records.announcements, engines.breakers),
        PromptMessages(prompt_records, record_link),
        on_adapters_changed=engines.adapter_refresh.request,
    )
