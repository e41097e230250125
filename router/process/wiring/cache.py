"""The entries in Redis and in this process' memory, and what keeps them and requests in flight equal everywhere."""

from collections.abc import Iterable
from typing import NamedTuple

from router.core.cache.miss_reason import SeenKeys
from router.flow.memory.background_run import BackgroundRuns
from router.flow.replicas.invalidation import on_purge
from router.flow.sharing.coalescer import Coalescer
from router.net.redis.commands import Command
from router.net.redis.liveness import Liveness
from router.process.wiring.redis_link import RedisLink
from router.shared.cache.hit_counter import HitCounter
from router.shared.cache.local_hits import LocalHits
from router.shared.cache.purges import Purges
from router.shared.cache.retention import WorthRetention
from router.shared.inflight.inflight_leases import InFlightLeases
from router.store.entry_store import EntryStore
from router.store.entry_writer import EntryWriter
from router.store.local_cache import LocalCache
from router.telemetry.telemetry import Telemetry


class Cache(NamedTuple):
    store: EntryStore
    writer: EntryWriter
    local: LocalCache
    purges: Purges
    leases: InFlightLeases
    coalescer: Coalescer
    hit_counter: HitCounter
    seen_keys: SeenKeys
    retention: WorthRetention
    liveness: Liveness
    background: BackgroundRuns


def build_cache(telemetry: Telemetry, redis: RedisLink) -> Cache:
    """The local cache has no room until it is resized, and the retention is not enabled."""
    pipeline, clock = redis.pipeline, redis.clock
    retention, liveness = WorthRetention(pipeline), Liveness(clock.monotonic)
    retention.enabled = False
    coalescer, seen_keys = Coalescer(), SeenKeys()
    # `local` is created below: purges and local cache need each other, and the lambda runs only once both exist.
    purges = Purges(
        pipeline, lambda scope: on_purge(coalescer, seen_keys, local, scope, purges.last_position), alive=liveness.alive
    )
    local = LocalCache(0, clock.now, is_purged=purges.covers, alive=liveness.alive)
    local_hits = LocalHits(local.holds)

    def renewals(keys: Iterable[str]) -> list[Command]:
        # What prolongs an entry's lifetime counts as a use, too.
        return retention.renewals(keys) if retention.enabled else local_hits.touches(keys)

    background = BackgroundRuns()

    def on_message(text: str) -> None:
        if not background.on_message(text):
            coalescer.on_remote_subscriber(text)

    leases = InFlightLeases(pipeline, on_remote_subscriber=on_message)
    coalescer.enable_sharing(leases, purges)
    store = EntryStore(
        pipeline, purges, local, on_damaged=telemetry.record_damaged_entry, on_refused=redis.writes.on_refused
    )
    writer = EntryWriter(store, pipeline, clock.now)
    hit_counter = HitCounter(renewals=renewals)
    return Cache(
        store, writer, local, purges, leases, coalescer, hit_counter, seen_keys, retention, liveness, background
    )
