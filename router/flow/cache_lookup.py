"""Looks a request up in the cache: first in this process's memory, then in Redis."""

import time
from collections.abc import Callable
from typing import Final

from router.core.cache.cache_control import CacheControl
from router.core.cache.miss_reason import SeenKeys
from router.core.cache.policy import REDIS_DOWN, SESSION_HAS_ALL, Freshness, decide_caching, evaluate_freshness
from router.core.cache.sample import Sample
from router.core.routing.session import Session
from router.flow.exchange import Exchange
from router.flow.lookup import Bypass, CachePolicy, Hit, Lookup, Miss, Stale
from router.flow.parsed_request import ParsedRequest
from router.flow.sharing.coalescer import Coalescer
from router.flow.trace.request_trace import RequestTrace
from router.net.redis.pipeline import RedisDownError
from router.shared.cache.purges import BEGINNING, PurgePosition, Purges
from router.shared.cache.sample_order import SampleOrder
from router.store.cached_entry import CachedEntry
from router.store.entry_store import EntryStore
from router.store.local_cache import LocalCache

_OF_SAMPLE: Final = ("expired", "purged", "not-stored")  # reasons that concern the request's own sample


class CacheLookup:
    """What the cache has for a request, and what its policy says of it."""

    def __init__(
        self, store: EntryStore, local_cache: LocalCache, coalescer: Coalescer, seen_keys: SeenKeys, purges: Purges,
        policy: CachePolicy, sample_order: SampleOrder, *, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """`clock` returns seconds since the epoch, the same in every process."""
        self.has_samples = policy.has_samples
        self._store = store
        self._local_cache = local_cache
        self._coalescer = coalescer
        self._seen_keys = seen_keys
        self._purges = purges
        self._policy = policy
        self._sample_order = sample_order
        self._is_restricted = policy.is_restricted
        self._clock = clock

    def decide(self, parsed: ParsedRequest, control: CacheControl, tenant: str) -> tuple[Bypass | None, bool]:
        """Why there is to be no lookup, None if there is; and whether the response may be stored."""
        decision = decide_caching(
            parsed.request, control, self._policy.tenants[tenant].store_policy, self._policy.remote_content,
            texts_only=parsed.parts.texts_only,
        )  # fmt: skip
        if not self._is_restricted:
            return decision
        # An adapter has no settings of its own.
        return self._policy.restrict(decision, tenant, parsed.model.configured_name)

    async def choose_sample(self, exchange: Exchange, parsed: ParsedRequest, session: Session | None) -> Bypass | None:
        """Makes the key that of the sample which is next. Returns why there is to be no lookup, if so.

        `session`: only one of the headers counts. Clients give one of the body to many conversations, and conversations
        whose first answer is a hit have the same root.
        """
        count = self._policy.samples(exchange.tenant, parsed.model.configured_name)
        if count == 1 or parsed.request.deterministic:
            return None
        if parsed.control.only_if_cached:  # any sample will do, and the others need not wait for their turn
            parsed.use_sample(Sample(count=count))
            return None
        if session is not None and not session.is_of_header:
            session = None
        asked_at, seconds = time.perf_counter(), self._policy.entry_seconds(exchange.tenant)
        try:
            found = await self._sample_order.next(parsed.key.text, count, session, seconds)
        except RedisDownError:  # the lookup says so
            return None
        exchange.lookup_seconds = time.perf_counter() - asked_at
        parsed.use_sample(found.sample)
        return SESSION_HAS_ALL if found.has_all else None

    async def any_sample(self, parsed: ParsedRequest) -> Hit | Stale | None:
        """Any sample that is kept, for a request that gets no answer otherwise; None if it has only one."""
        if parsed.sample.count == 1 or parsed.control.no_cache:
            return None
        stale: tuple[Stale, Sample] | None = None
        for sample in parsed.sample.in_order():
            parsed.use_sample(sample)
            lookup = self.in_memory(parsed) or await self.stored(parsed)
            if isinstance(lookup, Hit):
                return lookup
            if isinstance(lookup, Stale) and stale is None:
                stale = lookup, sample
        if stale is None:
            return None
        parsed.use_sample(stale[1])
        return stale[0]

    def in_memory(self, parsed: ParsedRequest) -> Hit | Stale | Miss | None:
        """None if this process has no entry; Redis may have one."""
        cached_entry = self._local_cache.get(parsed.key.text)
        return self._evaluate(parsed, cached_entry, from_local_cache=True) if cached_entry is not None else None

    async def in_redis(self, parsed: ParsedRequest) -> Lookup:
        inflight = self._coalescer.find(parsed.key)
        if inflight is not None and inflight.is_leader:
            # This process is generating it, so it is not stored yet. Another process' generation may be stored already.
            return self._miss(parsed)
        return await self.stored(parsed)

    async def stored(self, parsed: ParsedRequest) -> Lookup:
        try:
            entry = await self._store.get(parsed.key.text)
        except RedisDownError:  # no lookup, but the request may still share a generation in this process
            return REDIS_DOWN
        if entry is None:
            return self._miss(parsed)
        return self._evaluate(parsed, CachedEntry(entry), from_local_cache=False)

    async def again(self, parsed: ParsedRequest, trace: RequestTrace) -> Lookup:
        """After a request that it has joined had no response for it: another process may have stored one."""
        trace.start_lookup()
        lookup = self.in_memory(parsed) or await self.in_redis(parsed)
        trace.end_lookup(lookup)
        return lookup

    async def after_failure(self, parsed: ParsedRequest, lookup: Lookup, trace: RequestTrace) -> Hit | Stale | None:
        """The entry to serve in place of an error of the engines, if there is one. `lookup`: the first one."""
        if isinstance(lookup, Miss) and lookup.replaced_entry_created is None:
            # There may be an entry by now: a request that joins an in-flight request makes no lookup.
            trace.start_lookup()
            lookup = await self.stored(parsed)
            trace.end_lookup(lookup)
        return lookup if isinstance(lookup, Hit | Stale) else None

    def _miss(self, parsed: ParsedRequest) -> Miss:
        seen_keys, hashes = self._seen_keys, parsed.part_hashes
        reason = seen_keys.miss_reason(hashes)
        if reason == "expired" or seen_keys.remembers_purges:
            since = seen_keys.purged_since(hashes)
            if since is not None and self._is_purged(parsed, since):
                reason = "purged"
        if not parsed.sample.is_first and reason not in _OF_SAMPLE:
            reason = "sample"
        return Miss(reason)

    def _is_purged(self, parsed: ParsedRequest, since: PurgePosition) -> bool:
        position = self._purges.last_covering(parsed.key.text, parsed.parts.document_names())
        # An entry from before an earlier purge would have expired by now.
        expires_at = position[0] / 1000 + self._policy.tenants[parsed.key.parts.tenant].ttl
        return position > BEGINNING and position >= since and self._clock() < expires_at

    def _evaluate(
        self, parsed: ParsedRequest, cached_entry: CachedEntry, *, from_local_cache: bool
    ) -> Hit | Stale | Miss:
        entry = cached_entry.entry
        age = self._clock() - entry.created
        if age < 0:  # Redis' clock was set back, or a failover went to a server whose clock is behind
            age = 0.0
        if cached_entry.matches(parsed.key):  # else it belongs to another request with the same hashes
            freshness = evaluate_freshness(
                age, entry.ttl, parsed.control, min(entry.stale, self._policy.stale_if_error)
            )
            body = cached_entry.replay(parsed.request) if freshness is not Freshness.UNUSABLE else None
            if body is not None:  # else the entry has no form such as the request asks for (stream or JSON)
                if freshness is Freshness.FRESH:
                    return Hit(entry, body, age, from_local_cache)
                return Stale(entry, body, age, from_local_cache, freshness is Freshness.STALE_IF_ERROR)
        return Miss("expired", replaced_entry_created=entry.created)


def entry_created(lookup: Lookup) -> float | None:
    """When the entry that was found was written, if one was found; in seconds since the epoch."""
    if isinstance(lookup, Miss):
        return lookup.replaced_entry_created
    return lookup.entry.created if isinstance(lookup, Hit | Stale) else None
