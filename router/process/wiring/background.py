"""What a process does with one Redis in the background, in one list: what is read first, what runs, what is closed."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from router.flow.replicas.background import BackgroundServices, Service, every, flush_hits, load_purges
from router.flow.replicas.invalidation import InvalidationHandler, KnownEntries, KnownRecords, PromptMessages
from router.net.redis.listener import Listener
from router.net.redis.pipeline import RedisPipeline
from router.net.redis.url import parse_redis_url
from router.process.process_state import ProcessState
from router.process.wiring.cache import Cache
from router.process.wiring.live_configuration import LiveConfiguration
from router.process.wiring.redis_link import RedisLink
from router.process.wiring.shared_records import SharedRecords
from router.settings import Settings
from router.shared.accounting.ledger import FLUSH_INTERVAL
from router.shared.cache.retention import REFRESH_INTERVAL
from router.shared.connection.rights_report import RightsReport
from router.shared.prompts.prompt_link import RedisRecordLink
from router.shared.prompts.prompt_records import PROMPTS_CHANNEL, RecordLink
from router.shared.prompts.sibling_link import FirstUpLink

_HIT_FLUSH_INTERVAL: Final = 2.0  # seconds
_ANNOUNCEMENTS_INTERVAL: Final = 2.0  # seconds between two reads, which decide whether a lease has ended


class Background(NamedTuple):
    """`record_link`: how what other routers send of their prompts comes, and this process' records go."""

    services: BackgroundServices
    listener: Listener
    record_link: RecordLink


def build_background(
    settings: Settings,
    process_state: ProcessState,
    redis: RedisLink,
    live: Sequence[LiveConfiguration],
    records: SharedRecords,
    cache: Cache,
) -> Background:
    pipeline = redis.pipeline
    redis_link = RedisRecordLink(pipeline)
    prompts = PromptMessages(process_state.prompt_records, redis_link)
    invalidation = _invalidation(pipeline, live, records, cache, prompts)
    listener = Listener(
        redis.backend,
        prefixes=(),
        channels=(cache.leases.channel, PROMPTS_CHANNEL),
        callbacks=invalidation,
        retry_interval=settings.cache.retry,
        clock=redis.clock,
        liveness=cache.liveness,
    )
    flush_savings = partial(process_state.telemetry.flush_savings, pipeline, redis.clock.now)
    flush_all_hits = partial(flush_hits, pipeline, cache.hit_counter)
    services = [
        Service(close=redis.admin_client.aclose),
        # Until the pipeline is closed, replies make the stream writers send what remains.
        Service(run=cache.leases.run, close=cache.leases.stop),
        Service(close=pipeline.aclose),  # sends what is queued
        Service(run=cache.writer.run, close=cache.writer.aclose),
        Service(run=redis.writes.run),
        Service(run=RightsReport(redis.backend, parse_redis_url(settings.redis_url).kind).run),
        Service(close=records.stored_keys.withdraw),
        Service(records.stored_keys.try_refresh, records.stored_keys.run, records.stored_keys.flush_used),
        Service(cache.purges.load, partial(load_purges, pipeline, cache.purges)),
        Service(records.drains.try_refresh),
        Service(records.announcements.try_refresh, every(_ANNOUNCEMENTS_INTERVAL, records.announcements.try_refresh)),
        Service(run=listener.run, close=invalidation.aclose),
        Service(run=process_state.tenant_limits.run),
        Service(run=every(FLUSH_INTERVAL, flush_savings), close=flush_savings),
        Service(run=every(_HIT_FLUSH_INTERVAL, flush_all_hits), close=flush_all_hits),
        Service(run=every(REFRESH_INTERVAL, cache.retention.refresh, at_once=True)),
        # The ends of requests in flight go to their followers through the pipeline.
        Service(close=cache.coalescer.aclose),
    ]
    return Background(BackgroundServices(pipeline, services), listener, FirstUpLink(redis_link, process_state.siblings))


def _invalidation(
    pipeline: RedisPipeline,
    live: Sequence[LiveConfiguration],
    records: SharedRecords,
    cache: Cache,
    prompts: PromptMessages,
) -> InvalidationHandler:
    def refresh_adapters() -> None:
        for each in live:
            each.engines.adapter_refresh.request()

    return InvalidationHandler(
        pipeline,
        KnownEntries(cache.local, cache.seen_keys, cache.coalescer, cache.purges, cache.leases, cache.retention),
        KnownRecords(*records),
        prompts,
        on_adapters_changed=refresh_adapters,
    )
