"""The flow of one request: key, cache lookup, and on a miss a generation at an engine."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import floor
from typing import Final, assert_never

import msgspec

from router.core.cache.cache_control import CacheControl
from router.core.cache.miss_reason import SeenKeys
from router.core.cache.policy import REDIS_DOWN, Freshness, decide_caching, evaluate_freshness
from router.core.endpoints.choices import choice_count
from router.core.endpoints.endpoint import Prompt
from router.core.resilience.wait_preference import parse_wait
from router.core.types import BypassReason, CacheStatus
from router.errors import ApiError, not_cached
from router.flow.body_budget import BodyAllocation
from router.flow.brownout import Brownout
from router.flow.coalescer import Coalescer
from router.flow.engine_selection import EngineSelector, Selection
from router.flow.exchange import Exchange, GenerationRecord, new_request_id
from router.flow.heartbeat import ClientOfRequest, Heartbeats
from router.flow.inflight import InFlightRequest
from router.flow.lookup import Bypass, CachePolicy, FullResponse, Hit, Lookup, Miss, Stale
from router.flow.new_generation import NewGeneration, StoreResponse
from router.flow.parsed_request import ParsedRequest
from router.flow.request_resolver import RequestResolver
from router.flow.request_trace import GenerationTrace, RequestTrace
from router.flow.response_delivery import ResponseDelivery, RetryRequest
from router.flow.response_storage import ResponseStorage
from router.flow.routed_prompt import RoutedPrompt
from router.flow.tenant_rules import TenantRules
from router.flow.ttft_limits import TtftLimits
from router.flow.wait_plan import WaitPlan
from router.flow.waking import Waking
from router.net.redis.pipeline import RedisDownError
from router.shared.purges import Purges
from router.store.cached_entry import CachedEntry
from router.store.entry_store import EntryStore
from router.store.local_cache import LocalCache
from router.upstream.engine import Engine

# Attempts of one request: it starts over if the in-flight request that it joined has no response for it. The last
# attempt is not shared, so nothing can make it start over again.
_MAX_ATTEMPTS: Final = 3

# Seconds for an attempt at the end of the client's time in queues: a free slot here may be used still.
_MIN_QUEUE_TIME: Final = 0.1

_ENGINE_FAILURE_STATUSES: Final = (502, 503, 504)  # errors in whose place a stale entry is served


GatewayResponse = FullResponse | ResponseDelivery


class Gateway:
    """Answers a request from the cache if possible, else from an engine. Equal requests share one generation."""

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
        storage: ResponseStorage,
        rules: TenantRules,
        record_hit: Callable[[str], None],
        clock: Callable[[], float],
        queue_timeout: float,
        ttft_limits: TtftLimits,
        waking: Waking | None = None,
        heartbeats: Heartbeats | None = None,
    ) -> None:
        """`record_hit` gets the key of every entry served.

        `waking`: None if no request waits for an engine to start. `heartbeats`: None if no stream gets comments.

        `clock` returns seconds since the epoch, the same in every process. `queue_timeout`: see Admission.
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
        self._storage = storage
        self._rules = rules
        self._record_hit = record_hit
        self._clock = clock
        self._queue_timeout = queue_timeout
        self._ttft_limits = ttft_limits
        self._waking = waking
        self._heartbeats = heartbeats

    async def handle(
        self, exchange: Exchange, control: CacheControl, body: bytes, client: ClientOfRequest
    ) -> GatewayResponse:
        """The response for the client: complete, or a stream in progress. Raises ApiError."""
        parsed = self._resolver.resolve(
            exchange.endpoint, exchange.tenant, body, control, form_type=exchange.form_type, session=exchange.session_id
        )
        exchange.stream, exchange.model = parsed.request.stream, parsed.model.reported_name
        tenant = self._cache_policy.tenants[exchange.tenant]
        bypass, may_store = decide_caching(
            parsed.request,
            control,
            tenant.store_policy,
            self._cache_policy.remote_content,
            texts_only=parsed.parts.texts_only,
        )
        lookup: Lookup | None = bypass
        if lookup is None:
            trace = exchange.trace
            started_at = time.perf_counter() if trace is not None else 0.0
            # The local lookup needs no coroutine, so it comes first and apart.
            lookup = self._lookup_local(parsed) or await self._lookup_redis(parsed)
            if trace is not None:
                trace.add_lookup(started_at, lookup)
        if isinstance(lookup, Hit) or (isinstance(lookup, Stale) and self._is_servable(exchange, lookup, parsed)):
            return self._serve_cached(exchange, lookup, parsed)
        self._record_lookup(exchange, lookup, parsed)
        if control.only_if_cached:
            raise not_cached()
        client.cancel_on_disconnect()  # from here on, an engine may work for this client
        if self._heartbeats is not None:
            self._heartbeats.start(exchange, client)
        try:
            store_response = self._storage.callback(exchange, parsed) if may_store else None
            return await self._generate(exchange, parsed, store_response, lookup)
        except ApiError as error:
            if error.status not in _ENGINE_FAILURE_STATUSES:
                raise
            entry = await self._entry_after_failure(exchange.trace, parsed, lookup)
            if entry is None:
                raise error  # noqa: TRY201 - compiled, a `raise` without it can lose the error after an `await`
            return self._serve_cached(exchange, entry, parsed)

    # -- cache lookups ------------------------------------------------------------------------------------------------

    def _lookup_local(self, parsed: ParsedRequest) -> Lookup | None:
        """None if the local cache has no entry; Redis may have one."""
        cached_entry = self._local_cache.get(parsed.key.text)
        return self._evaluate(parsed, cached_entry, from_local_cache=True) if cached_entry is not None else None

    async def _lookup_redis(self, parsed: ParsedRequest) -> Lookup:
        inflight = self._coalescer.find(parsed.key)
        if inflight is not None and inflight.is_leader:
            # This process is generating it, so it is not stored yet. Another process' generation may be stored already.
            return self._miss(parsed)
        return await self._lookup_stored(parsed)

    async def _lookup_stored(self, parsed: ParsedRequest) -> Lookup:
        try:
            entry = await self._store.get(parsed.key.text)
        except RedisDownError:  # no lookup, but the request may still share a generation in this process
            return REDIS_DOWN
        if entry is None:
            return self._miss(parsed)
        return self._evaluate(parsed, CachedEntry(entry), from_local_cache=False)

    def _miss(self, parsed: ParsedRequest) -> Miss:
        return Miss(self._seen_keys.miss_reason(parsed.part_hashes))

    def _evaluate(
        self, parsed: ParsedRequest, cached_entry: CachedEntry, *, from_local_cache: bool
    ) -> Hit | Stale | Miss:
        entry = cached_entry.entry
        age = self._clock() - entry.created
        if age < 0:  # Redis' clock was set back, or a failover went to a server whose clock is behind
            age = 0.0
        if cached_entry.matches(parsed.key):  # else it belongs to another request with the same hashes
            freshness = evaluate_freshness(
                age, entry.ttl, parsed.control, min(entry.stale, self._cache_policy.stale_if_error)
            )
            body = cached_entry.replay(parsed.request) if freshness is not Freshness.UNUSABLE else None
            if body is not None:  # else the entry has no form such as the request asks for (stream or JSON)
                if freshness is Freshness.FRESH:
                    return Hit(entry, body, age, from_local_cache)
                return Stale(entry, body, age, from_local_cache, freshness is Freshness.STALE_IF_ERROR)
        return Miss("expired", replaced_entry_created=entry.created)

    def _is_servable(self, exchange: Exchange, lookup: Stale, parsed: ParsedRequest) -> bool:
        # A brownout counts as an error, and so do engines of which all are known to be down.
        return not lookup.if_error or self._brownout.prefers_stale(
            parsed.model.configured_name, self._candidate_models(exchange, parsed)
        )

    async def _lookup_again(self, trace: RequestTrace | None, parsed: ParsedRequest) -> Lookup:
        started_at = time.perf_counter()
        lookup = self._lookup_local(parsed) or await self._lookup_redis(parsed)
        if trace is not None:
            trace.add_lookup(started_at, lookup)
        return lookup

    async def _entry_after_failure(
        self, trace: RequestTrace | None, parsed: ParsedRequest, lookup: Lookup
    ) -> Hit | Stale | None:
        """The entry to serve in place of an error of the engines, if there is one."""
        if isinstance(lookup, Miss) and lookup.replaced_entry_created is None:
            # There may be an entry by now: a request that joins an in-flight request makes no lookup.
            started_at = time.perf_counter()
            lookup = await self._lookup_stored(parsed)
            if trace is not None:
                trace.add_lookup(started_at, lookup)
        return lookup if isinstance(lookup, Hit | Stale) else None

    def _record_lookup(self, exchange: Exchange, lookup: Stale | Miss | Bypass, parsed: ParsedRequest) -> None:
        """Records a lookup that was no hit. The task was not classified before, because a hit does not need it."""
        exchange.task = parsed.task
        match lookup:
            case Bypass(reason):
                exchange.cache_status, exchange.bypass_reason, exchange.miss_reason = CacheStatus.BYPASS, reason, None
            case Miss(reason):
                exchange.cache_status, exchange.miss_reason = CacheStatus.MISS, reason
                exchange.key = parsed.key.text
            case Stale():
                exchange.cache_status, exchange.miss_reason = CacheStatus.MISS, "expired"
                exchange.key = parsed.key.text
            case _:
                assert_never(lookup)

    def _serve_cached(self, exchange: Exchange, lookup: Hit | Stale, parsed: ParsedRequest) -> FullResponse:
        entry = lookup.entry
        exchange.cache_status = CacheStatus.HIT if isinstance(lookup, Hit) else CacheStatus.STALE
        exchange.key = parsed.key.text
        # They may be left from a generation that failed before.
        exchange.bypass_reason = exchange.miss_reason = exchange.fallback_model = None
        exchange.adjusted_fields = ()
        exchange.age, exchange.ttl = int(lookup.age), floor(entry.ttl - lookup.age)
        exchange.from_local_cache = lookup.from_local_cache
        exchange.task, exchange.engine = entry.task, entry.engine
        exchange.prompt_tokens, exchange.completion_tokens = entry.prompt_tokens, entry.completion_tokens
        exchange.generation_ms = entry.generation_ms
        self._record_hit(parsed.key.text)
        return FullResponse(lookup.body, parsed.request.stream)

    # -- generations --------------------------------------------------------------------------------------------------

    async def _generate(
        self,
        exchange: Exchange,
        parsed: ParsedRequest,
        store_response: StoreResponse | None,
        lookup: Lookup,
    ) -> GatewayResponse:
        """`lookup`: why no entry was served."""
        waking = self._waking
        plan = self._wait_plan(waking, exchange, parsed) if waking is not None else None
        # Without Redis, requests of this process still share. Any other bypass wants a generation of its own.
        may_share = not isinstance(lookup, Bypass) or lookup.reason is BypassReason.REDIS_DOWN
        if plan is not None and plan.is_preferred and waking is not None and waking.is_asleep(plan.model):
            may_share = False  # the others wait longer, or less long
        started_at = time.perf_counter()
        retry_after: int | None = None  # of the queue in another process that has refused it
        for attempt in range(_MAX_ATTEMPTS):
            share = may_share and attempt < _MAX_ATTEMPTS - 1
            inflight = self._coalescer.find(parsed.key) if share else None
            is_new = inflight is None
            if inflight is None:
                models = self._candidate_models(exchange, parsed)
                if plan is not None and waking is not None and not waking.has_engines(models):
                    selection = Selection(_no_engines, parsed.request)
                else:
                    selection = self._select(exchange, parsed, models)
                exchange.adjusted_fields = selection.adjusted_fields
                # With fields left out, the response does not match the key: it is neither shared nor stored.
                exact = not selection.adjusted_fields
                new = NewGeneration(
                    request=selection.request,
                    record=self._new_record(exchange, parsed, selection.prompt),
                    order_engines=selection.order_engines,
                    store_response=store_response if exact else None,
                    documents=parsed.parts.document_names(),
                    wait_plan=plan,
                    body_allocation=_retained(exchange.body_allocation),
                    replaced_entry_created=_created_of(lookup),
                )
                inflight = self._coalescer.start(
                    new, parsed.key if share and exact else None, self._purges.last_position
                )
            exchange.dispatched_at = now = time.perf_counter()
            must_wait = plan is not None and waking is not None and waking.must_wait(plan)
            # One queue sees to its own timeout. This client has waited in another process' queue before.
            queue_time = (
                max(_MIN_QUEUE_TIME, self._queue_timeout - (now - started_at))
                if retry_after is not None and not must_wait
                else None
            )
            delivery = ResponseDelivery(
                inflight, parsed.request, exchange, is_initiator=is_new,
                queue_time=queue_time, retry_after=retry_after or 1,
            )  # fmt: skip
            if plan is not None and waking is not None and exchange.heartbeat is not None:
                waits = partial(_waits_for_start, waking, plan, inflight, must_wait=must_wait)
                exchange.heartbeat.expect_start(plan.model, waits)
            try:
                body = await delivery.start()
            except RetryRequest as retry:  # continues below, with a new lookup
                retry_after = retry.retry_after or retry_after
                delivery.close()
            except BaseException:
                delivery.close()
                raise
            else:
                # Another process may lead it although this request started it here.
                if not (is_new and inflight.is_leader):
                    exchange.cache_status, exchange.miss_reason = CacheStatus.COALESCED, None
                    if exchange.trace is not None:
                        exchange.trace.set_leader(inflight.record.trace, inflight.record.leader_traceparent)
                if body is None:
                    return delivery
                delivery.close()
                return FullResponse(body, parsed.request.stream)
            if share and not isinstance(lookup, Bypass):  # another process may have stored it meanwhile
                lookup = await self._lookup_again(exchange.trace, parsed)
                if isinstance(lookup, Hit):
                    return self._serve_cached(exchange, lookup, parsed)
                if isinstance(lookup, Bypass):
                    self._record_lookup(exchange, lookup, parsed)
        raise AssertionError("an in-flight request that is not shared never asks for a retry")

    def _select(self, exchange: Exchange, parsed: ParsedRequest, models: Sequence[str]) -> Selection:
        max_ttft = exchange.max_ttft
        if max_ttft is None:
            max_ttft = self._rules.max_ttft.get(exchange.tenant)
        if max_ttft is None:
            return self._selector.select(parsed, exchange.tenant, exchange.session_id, models)
        selection = self._selector.select(parsed, exchange.tenant, exchange.session_id, models, needs_estimates=True)
        order_engines = partial(self._ttft_limits.order_engines, selection, exchange.tenant, max_ttft)
        return msgspec.structs.replace(selection, order_engines=order_engines)

    def _candidate_models(self, exchange: Exchange, parsed: ParsedRequest) -> Sequence[str]:
        models = self._brownout.candidate_models(parsed.model.name, parsed.request.endpoint)
        return self._rules.allowed_models(exchange.tenant, models)

    def _wait_plan(self, waking: Waking, exchange: Exchange, parsed: ParsedRequest) -> WaitPlan | None:
        models = self._candidate_models(exchange, parsed)
        order_engines = partial(self._order_engines_now, exchange, parsed, models)
        return waking.plan(parsed.model.configured_name, models, parse_wait(exchange.prefer), order_engines)

    def _order_engines_now(self, exchange: Exchange, parsed: ParsedRequest, models: Sequence[str]) -> Sequence[Engine]:
        return self._selector.select(parsed, exchange.tenant, exchange.session_id, models).order_engines()

    def _new_record(self, exchange: Exchange, parsed: ParsedRequest, prompt: RoutedPrompt) -> GenerationRecord:
        # Engines get the request id only if the router has made it and no earlier attempt of this request has used it.
        # A client's id never goes to engines, because some connectors of vLLM read addresses out of request ids.
        is_ours = exchange.engine_request_id is None and not exchange.has_client_request_id
        exchange.engine_request_id = exchange.request_id if is_ours else new_request_id()
        return GenerationRecord(
            request_id=exchange.request_id,
            engine_request_id=exchange.engine_request_id,
            traceparent=exchange.traceparent,
            tracestate=exchange.tracestate,
            trace=GenerationTrace(exchange.trace) if exchange.trace is not None else None,
            tenant=exchange.tenant,
            key_id=exchange.key_id,
            priority=self._rules.priority(exchange.tenant, parsed.request.priority),
            model=parsed.model.reported_name,
            adapter=parsed.model.adapter,
            engine_revision=parsed.engine_revision,
            task=parsed.task,
            log_odds=parsed.log_odds,
            stream=parsed.request.stream,
            started_at=exchange.started_at,
            prompt=prompt,
            choices=choice_count(
                parsed.request.fields, takes_prompt_list=isinstance(parsed.request.endpoint.input, Prompt)
            ),
        )


def _waits_for_start(waking: Waking, plan: WaitPlan, inflight: InFlightRequest, *, must_wait: bool) -> bool:
    """Whether an in-flight request waits for an engine to start, or has waited for it.

    `must_wait`: it was known to have to, when the client's request joined it.
    """
    if must_wait:
        return True
    if not inflight.is_leader:  # of another process, which says nothing of that
        return waking.must_wait(plan)
    return inflight.wait_plan is not None and inflight.wait_plan.deadline is not None


def _retained(allocation: BodyAllocation | None) -> BodyAllocation | None:
    """For a generation, which may outlive its request; the coalescer releases it."""
    if allocation is not None:
        allocation.retain()
    return allocation


def _no_engines() -> Sequence[Engine]:
    return ()


def _created_of(lookup: Lookup) -> float | None:
    """When the entry that was found was written, if one was found; in seconds since the epoch."""
    if isinstance(lookup, Hit | Stale):
        return lookup.entry.created
    return lookup.replaced_entry_created if isinstance(lookup, Miss) else None
