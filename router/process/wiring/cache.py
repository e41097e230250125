"""The entries in Redis and in this process' memory, and what keeps them and requests in flight equal everywhere."""

from typing import NamedTuple

from router.core.cache.miss_reason import SeenKeys
from router.flow.replicas.invalidation import on_purge
from router.flow.sharing.coalescer import Coalescer
from router.net.redis.liveness import Liveness
from router.process.wiring.redis_link import RedisLink
from router.settings import Settings
from router.shared.cache.hit_counter import HitCounter
from router.shared.cache.local_hits import LocalHits
from router.shared.cache.purges import Purges
from router.shared.cache.retention import WorthRetention
from router.shared.inflight.inflight_leases import InFlightLeases
from router.store.entry_store import EntryStore
from router.store.local_cache import LocalCache
from router.telemetry.telemetry import Telemetry


class Cache(NamedTuple):
    """`retention`: None keeps every entry for its TTL."""

    store: EntryStore
    local: LocalCache
    purges: Purges
    leases: InFlightLeases
    hit_counter: HitCounter
    seen_keys: SeenKeys
    retention: WorthRetention | None
    liveness: Liveness


def build_cache(
    settings: Settings, telemetry: Telemetry, redis: RedisLink, coalescer: Coalescer, seen_keys: SeenKeys
) -> Cache:
    """Lets `coalescer` share requests in flight with other processes."""
    pipeline, clock = redis.pipeline, redis.clock
    retention = WorthRetention(pipeline) if settings.cache.retention == "worth" else None
    liveness = Liveness(clock.monotonic)
    # `local` is created below: purges and local cache need each other, and the lambda runs only once both exist.
    purges = Purges(pipeline, lambda scope: on_purge(coalescer, seen_keys, local, scope), alive=liveness.alive)
    local = LocalCache(settings.cache.local, clock.now, is_purged=purges.covers, alive=liveness.alive)
    # What prolongs an entry's lifetime counts as a use, too.
    renewals = retention.renewals if retention is not None else LocalHits(local.holds).touches
    leases = InFlightLeases(pipeline, on_remote_subscriber=coalescer.on_remote_subscriber)
    # Late, because the leases notify the coalescer, and it needs them only for its first generation.
    coalescer.enable_sharing(leases, purges)
    store = EntryStore(
        pipeline, purges, local, on_damaged=telemetry.record_damaged_entry, on_refused=redis.writes.on_refused
    )
    return Cache(store, local, purges, leases, HitCounter(renewals=renewals), seen_keys, retention, liveness)
