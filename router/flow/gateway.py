"""The story of one request: key, look-up, and on a miss the way to an engine and back."""

import time
from collections.abc import Callable
from functools import partial
from math import floor
from typing import Final, Protocol

from router.core.cache.cache_control import CacheControl
from router.core.cache.fingerprint import Fingerprint
from router.core.cache.miss_reason import PartHashes, SeenKeys, fingerprint_request, hash_parts
from router.core.cache.policy import Freshness, decide_caching, evaluate_freshness
from router.core.endpoints.recorded_response import RecordedResponse
from router.core.types import BypassReason, CacheStatus, Entry
from router.errors import ApiError, not_cached
from router.flow.brownout import Brownout
from router.flow.coalescer import Coalescer
from router.flow.engine_selection import EngineSelector
from router.flow.exchange import Exchange, GenerationRecord, new_request_id
from router.flow.generation import StoreResponse
from router.flow.inflight import RetryRequest, Subscriber
from router.flow.lookup import CacheLookup, CachePolicy, FullResponse
from router.flow.parsed_request import ParsedRequest
from router.flow.request_resolver import RequestResolver
from router.net.redis.pipeline import RedisDownError
from router.shared.purges import Purges
from router.store.cached_entry import CachedEntry
from router.store.entry_store import EntryStore, WriteResult
from router.store.local_cache import LocalCache

_MAX_ATTEMPTS: Final = (
    3  # how often a request may begin anew because a flight came to nothing; the last time on its own
)
_ENGINE_FAILURE_STATUSES: Final = (502, 503, 504)


GatewayResponse = FullResponse | Subscriber


class DisconnectWatcher(Protocol):
    """Watches for the client to leave, from the moment on at which somebody works for it."""

    def cancel_on_disconnect(self) -> None:
        """From now on, the request's task is cancelled when the client leaves."""


class Gateway:
    """Answers requests: from the store where it has the answer, else from an engine, for all who ask the same."""

    def __init__(
        self,
        *,
        resolver: RequestResolver,
        selector: EngineSelector,
        store: EntryStore,
        local_cache: LocalCache,
        coalescer: Coalescer,
        purges: Purges,
        seen_keys: SeenKeys,
        cache_policy: CachePolicy,
        brownout: Brownout,
        record_write: Callable[[str], None],
        record_hit: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """`written` is told what became of every answer that was to be stored, `hit` the key of each that was given.

        `clock` gives seconds since the epoch, the same in every process.
        """
        self._resolver = resolver
        self._selector = selector
        self._store = store
        self._local_cache = local_cache
        self._coalescer = coalescer
        self._purges = purges
        self._seen_keys = seen_keys
        self._cache_policy = cache_policy
        self._brownout = brownout
        self._record_write = record_write
        self._record_hit = record_hit
        self._clock = clock

    async def handle(
        self, exchange: Exchange, control: CacheControl, body: bytes, client: DisconnectWatcher
    ) -> GatewayResponse:
        """What the client gets. Raises ApiError."""
        asked = self._resolver.resolve(exchange.endpoint, exchange.tenant, body, control)
        exchange.stream, exchange.model = asked.request.stream, asked.model.name
        tenant = self._cache_policy.tenants[exchange.tenant]
        exchange.bypass_reason, may_keep = decide_caching(
            asked.request,
            control,
            tenant.store_policy,
            self._cache_policy.remote_content,
            texts_only=asked.parts.texts_only,
        )
        found = None
        if exchange.bypass_reason is None:
            found = self._lookup_local(exchange, asked) or await self._lookup_redis(exchange, asked)
        if found is not None and self._is_servable(found, asked):
            return self._serve_cached(exchange, found, asked)
        exchange.task = asked.task
        exchange.cache_status = CacheStatus.BYPASS if exchange.bypass_reason is not None else CacheStatus.MISS
        print_ = fingerprint_request(asked.key.text, asked.parts)
        marks = hash_parts(print_)
        if exchange.cache_status is CacheStatus.MISS:
            exchange.miss_reason = "expired" if found is not None else self._seen_keys.miss_reason(marks)
        if control.only_if_cached:
            raise not_cached()
        client.cancel_on_disconnect()
        try:
            keep = self._store_callback(exchange, asked, print_, marks) if may_keep else None
            return await self._generate(exchange, asked, keep, found)
        except ApiError as error:
            if error.status not in _ENGINE_FAILURE_STATUSES or exchange.bypass_reason is not None:
                raise
            found = await self._lookup_after_failure(asked, found)
            if found is None:
                raise
            return self._serve_cached(exchange, found, asked)

    # -- what is stored ---------------------------------------------------------------------------------------------

    def _lookup_local(self, exchange: Exchange, parsed: ParsedRequest) -> CacheLookup | None:
        stored = self._local_cache.get(parsed.key.text)
        if stored is None:
            return None
        exchange.key = parsed.key.text
        return self._evaluate(parsed, stored, from_local_cache=True)

    async def _lookup_redis(self, exchange: Exchange, parsed: ParsedRequest) -> CacheLookup | None:
        key = parsed.key.text
        flight = self._coalescer.find(parsed.key)
        if flight is not None and flight.is_leader:
            # It is being generated here, so nobody has stored it. What another process generates may be stored already.
            exchange.key = key
            return None
        try:
            entry = await self._store.get(key)
        except RedisDownError:
            exchange.bypass_reason, exchange.cache_status, exchange.miss_reason = (
                BypassReason.REDIS_DOWN,
                CacheStatus.BYPASS,
                None,
            )
            return None
        exchange.key = key
        return self._evaluate(parsed, CachedEntry(entry), from_local_cache=False) if entry is not None else None

    def _is_servable(self, lookup: CacheLookup, parsed: ParsedRequest) -> bool:
        if lookup.freshness is Freshness.STALE_IF_ERROR:
            return self._brownout.prefers_stale(parsed.model.name)
        return lookup.freshness is not Freshness.UNUSABLE

    def _evaluate(self, parsed: ParsedRequest, cached_entry: CachedEntry, *, from_local_cache: bool) -> CacheLookup:
        entry = cached_entry.entry
        age = self._clock() - entry.created
        if age < 0:  # Redis' clock was set back, or a server took over whose clock is behind
            age = 0.0
        use, body = Freshness.UNUSABLE, None
        if cached_entry.matches(parsed.key):
            use = evaluate_freshness(
                age, entry.ttl, parsed.control, min(entry.stale, self._cache_policy.stale_if_error)
            )
            body = cached_entry.replay(parsed.request) if use is not Freshness.UNUSABLE else None
        return CacheLookup(entry, body or b"", age, from_local_cache, use if body is not None else Freshness.UNUSABLE)

    async def _lookup_after_failure(self, parsed: ParsedRequest, lookup: CacheLookup | None) -> CacheLookup | None:
        """What is stored and can be given although no engine had an answer."""
        if lookup is None:  # it may have been there all the time: who joins a flight has not looked
            try:
                entry = await self._store.get(parsed.key.text)
            except RedisDownError:
                return None
            lookup = self._evaluate(parsed, CachedEntry(entry), from_local_cache=False) if entry is not None else None
        return lookup if lookup is not None and lookup.freshness is not Freshness.UNUSABLE else None

    def _serve_cached(self, exchange: Exchange, lookup: CacheLookup, parsed: ParsedRequest) -> FullResponse:
        entry = lookup.entry
        exchange.cache_status = CacheStatus.HIT if lookup.freshness is Freshness.FRESH else CacheStatus.STALE
        exchange.miss_reason, exchange.adjusted_fields, exchange.fallback_model = None, (), None
        exchange.age, exchange.ttl, exchange.from_local_cache = (
            int(lookup.age),
            floor(entry.ttl - lookup.age),
            lookup.from_local_cache,
        )
        exchange.task, exchange.engine = entry.task, entry.engine
        exchange.prompt_tokens, exchange.completion_tokens = entry.prompt_tokens, entry.completion_tokens
        self._record_hit(parsed.key.text)
        return FullResponse(lookup.body, parsed.request.stream)

    # -- what is generated ------------------------------------------------------------------------------------------

    async def _generate(
        self,
        exchange: Exchange,
        parsed: ParsedRequest,
        store_response: StoreResponse | None,
        lookup: CacheLookup | None,
    ) -> GatewayResponse:
        """`found`: what was stored when it was looked for, and could not be given."""
        may_share = exchange.bypass_reason is None or exchange.bypass_reason is BypassReason.REDIS_DOWN
        for attempt in range(_MAX_ATTEMPTS):
            share = may_share and attempt < _MAX_ATTEMPTS - 1
            flight = self._coalescer.find(parsed.key) if share else None
            leads = flight is None
            if flight is None:
                models = self._brownout.candidate_models(parsed.model.name, parsed.request.endpoint)
                choice = self._selector.select(parsed, exchange.tenant, exchange.session_id, models)
                exchange.adjusted_fields = choice.adjusted_fields
                exact = not choice.adjusted_fields  # else it is the answer to another request, and nobody else's
                flight = self._coalescer.start(
                    choice.request,
                    parsed.key if share and exact else None,
                    self._new_record(exchange, parsed),
                    choice.order_engines,
                    store_response=store_response if exact else None,
                    documents=parsed.parts.document_names(),
                    purge_position=self._purges.last_position,
                    replaced_entry_created=lookup.entry.created if lookup is not None else None,
                )
            reader = flight.subscribe(parsed.request, exchange, is_initiator=leads)
            exchange.dispatched_at = time.perf_counter()
            try:
                whole = await reader.start()
            except RetryRequest:
                reader.close()
            except BaseException:
                reader.close()
                raise
            else:
                if not (leads and flight.is_leader):
                    exchange.cache_status, exchange.miss_reason = CacheStatus.COALESCED, None
                if whole is None:
                    return reader
                reader.close()
                return FullResponse(whole, parsed.request.stream)
            if share and exchange.bypass_reason is None:
                lookup = self._lookup_local(exchange, parsed) or await self._lookup_redis(exchange, parsed)
                if lookup is not None and lookup.freshness is Freshness.FRESH:
                    return self._serve_cached(exchange, lookup, parsed)
        raise AssertionError("a flight of one's own never asks to begin anew")

    def _new_record(self, exchange: Exchange, parsed: ParsedRequest) -> GenerationRecord:
        is_ours = exchange.engine_request_id is None and not exchange.has_client_request_id
        exchange.engine_request_id = exchange.request_id if is_ours else new_request_id()
        if exchange.body_allocation is not None:
            exchange.body_allocation.retain()
        return GenerationRecord(
            body_allocation=exchange.body_allocation,
            request_id=exchange.request_id,
            engine_request_id=exchange.engine_request_id,
            traceparent=exchange.traceparent,
            tenant=exchange.tenant,
            model=parsed.model.name,
            task=parsed.task,
            stream=parsed.request.stream,
            started_at=exchange.started_at,
        )

    def _store_callback(
        self, exchange: Exchange, parsed: ParsedRequest, request_fingerprint: Fingerprint, part_hashes: PartHashes
    ) -> StoreResponse:
        """Stores the answer to this request under its key, for no longer than the client allows."""
        ttl = self._cache_policy.tenants[exchange.tenant].ttl
        lifetime = ttl if parsed.control.ttl is None else min(ttl, parsed.control.ttl)
        # Who shortens the life of his answer wants it gone by then.
        stale = self._cache_policy.stale_if_error if lifetime == ttl else 0.0
        documents, since = parsed.parts.document_names(), self._purges.last_position

        def keep(recording: RecordedResponse, work: GenerationRecord) -> None:
            assert work.engine is not None
            entry = Entry(
                digest=parsed.key.digest,
                body=recording.body,
                stream=recording.stream,
                model=work.model,
                engine=work.engine,
                task=work.task,
                created=int(1000 * self._clock()) / 1000,
                ttl=lifetime,
                stale=stale,
                prompt_tokens=recording.prompt_tokens,
                completion_tokens=recording.completion_tokens,
                generation_ms=int((time.perf_counter() - (work.dispatched_at or work.started_at)) * 1000),
                documents=documents,
                question=request_fingerprint.question,
                params=request_fingerprint.params,
            )
            self._store.put(parsed.key.text, entry, since, partial(self._on_written, part_hashes))

        return keep

    def _on_written(self, part_hashes: PartHashes, result: WriteResult) -> None:
        """A write is over. What was not stored is no reason for a later miss."""
        if result == "stored":
            self._seen_keys.add(part_hashes)
        self._record_write(result)
