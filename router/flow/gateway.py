"""The flow of one request: key, cache lookup, and on a miss a generation at an engine.

Theory of operation. The gateway looks the request up, and joins a generation of an equal request or starts one
(sharing/coalescer). A generation is a task of its own, which outlives the request: generation.py calls the dispatcher,
which tries engines in turn (attempts/dispatch); engine_attempts and engine_request send the request to one of them.
engine_stream publishes its events, which the response of each client reads (response_delivery).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import floor
from typing import Final, assert_never

from router.core.cache.cache_control import CacheControl
from router.core.cache.policy import KEPT_AT_ENGINE
from router.core.resilience.wait_preference import parse_wait
from router.core.types import BypassReason, CacheStatus
from router.errors import ApiError, not_cached
from router.flow.attempts.candidates import Candidates
from router.flow.attempts.model_start import NO_START, AwaitedStart, ModelStart
from router.flow.attempts.waking import Waking
from router.flow.cache_lookup import CacheLookup, entry_created
from router.flow.caller import Caller
from router.flow.exchange import Exchange, GenerationRecord
from router.flow.heartbeat import Heartbeats
from router.flow.lookup import Bypass, FullResponse, Hit, Lookup, Miss, Stale
from router.flow.parsed_request import ParsedRequest
from router.flow.request_resolver import RequestResolver
from router.flow.response_delivery import ResponseDelivery, RetryRequest
from router.flow.response_storage import ResponseStorage
from router.flow.selection import Selection
from router.flow.sharing.coalescer import Coalescer
from router.flow.sharing.generation_rules import GenerationRules
from router.flow.sharing.inflight import InFlightRequest
from router.flow.sharing.new_generation import NewGeneration, StoreResponse, new_origin
from router.upstream.engine import Engine

# A request starts over if the in-flight request that it joined has no response for it. Its last round is not shared,
# so it does not start over again.
_MAX_ROUNDS: Final = 3

# Seconds for a round at the end of the client's time in queues: enough to use a slot that is free here.
_MIN_QUEUE_TIME: Final = 0.1

_ENGINE_FAILURE_STATUSES: Final = (502, 503, 504)  # a stale entry is served instead of these errors


GatewayResponse = FullResponse | ResponseDelivery


class Gateway:
    """Answers a request from the cache if possible, else from an engine. Equal requests share one generation."""

    def __init__(
        self, *, resolver: RequestResolver, cache: CacheLookup, candidates: Candidates, coalescer: Coalescer,
        generation_rules: GenerationRules, storage: ResponseStorage, record_hit: Callable[[str], None],
        queue_timeout: float, heartbeats: Heartbeats, waking: Waking,
    ) -> None:  # fmt: skip
        """`record_hit` gets the key of every entry served. `queue_timeout`: see Admission."""
        self._resolver = resolver
        self._cache = cache
        self._candidates = candidates
        self._coalescer = coalescer
        self._generation_rules = generation_rules
        self._storage = storage
        self._record_hit = record_hit
        self._queue_timeout = queue_timeout
        self._heartbeats = heartbeats
        self._waking = waking

    async def handle(self, exchange: Exchange, control: CacheControl, body: bytes, caller: Caller) -> GatewayResponse:
        """The response for the client: complete, or a stream in progress. Raises ApiError."""
        parsed = self._resolver.resolve(
            exchange.endpoint, exchange.tenant, body, control, form_type=caller.form_type, session=caller.session
        )
        exchange.stream, exchange.model = parsed.request.stream, parsed.model.reported_name
        bypass, may_store = self._cache.decide(parsed, control, exchange.tenant)
        if caller.at_engine is not None:
            bypass, may_store = bypass or KEPT_AT_ENGINE, False
        if self._cache.has_samples and may_store:
            has_all = await self._cache.choose_sample(exchange, parsed, caller.session)
            bypass = bypass or has_all
        lookup: Lookup | None = bypass
        if lookup is None:
            exchange.trace.start_lookup()
            # The lookup in memory needs no coroutine, so it comes first and apart.
            lookup = self._cache.in_memory(parsed)
            if lookup is None:
                asked_at = time.perf_counter()
                lookup = await self._cache.in_redis(parsed)
                exchange.lookup_seconds += time.perf_counter() - asked_at
            exchange.trace.end_lookup(lookup)
        if isinstance(lookup, Hit) or (isinstance(lookup, Stale) and self._is_servable(exchange, lookup, parsed)):
            return self._serve_cached(exchange, lookup, parsed)
        self._record_lookup(exchange, lookup, parsed)
        if control.only_if_cached:
            return await self._serve_any_sample(exchange, parsed, not_cached())
        caller.connection.cancel_on_disconnect()  # from here on, an engine may work for this client
        caller.heartbeat = self._heartbeats.start(exchange, caller)
        try:
            store_response = self._storage.callback(exchange, parsed) if may_store else None
            return await self._generate(exchange, parsed, caller, store_response, lookup)
        except ApiError as error:
            if error.status not in _ENGINE_FAILURE_STATUSES:
                raise
            failure = error
        entry = await self._cache.after_failure(parsed, lookup, exchange.trace)
        if entry is None:
            return await self._serve_any_sample(exchange, parsed, failure)
        return self._serve_cached(exchange, entry, parsed)

    # -- the cache ----------------------------------------------------------------------------------------------------

    def _is_servable(self, exchange: Exchange, lookup: Stale, parsed: ParsedRequest) -> bool:
        return not lookup.if_error or self._candidates.prefers_stale(parsed, exchange.tenant)

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

    async def _serve_any_sample(self, exchange: Exchange, parsed: ParsedRequest, error: ApiError) -> FullResponse:
        """Serves any kept sample in place of an error, which is raised if there is none."""
        entry = await self._cache.any_sample(parsed)
        if entry is None:
            raise error
        return self._serve_cached(exchange, entry, parsed)

    # -- generations --------------------------------------------------------------------------------------------------

    async def _generate(
        self, exchange: Exchange, parsed: ParsedRequest, caller: Caller, store_response: StoreResponse | None,
        lookup: Lookup,
    ) -> GatewayResponse:  # fmt: skip
        """`lookup`: why no entry was served."""
        model_start = self._start_of_model(exchange, parsed, caller)
        # Without Redis, requests of this process still share. Any other bypass wants a generation of its own.
        may_share = model_start.is_shareable and (
            not isinstance(lookup, Bypass) or lookup.reason is BypassReason.REDIS_DOWN
        )
        started_at, rounds = time.perf_counter(), 0
        retry_after: int | None = None  # of the queue in another process that has refused it
        while True:
            rounds += 1
            share = may_share and rounds < _MAX_ROUNDS
            inflight = self._coalescer.find(parsed.key) if share else None
            is_new = inflight is None
            if inflight is None:
                new = self._new_generation(exchange, parsed, caller, model_start, store_response, lookup)
                key = parsed.key if share and not new.adjusted_fields else None
                exchange.adjusted_fields = new.adjusted_fields
                inflight = self._coalescer.start(new, self._generation_rules, key)
            exchange.joined_at = time.perf_counter()
            must_wait = model_start.must_wait()
            delivery = ResponseDelivery(
                inflight, parsed.request, exchange, is_initiator=is_new,
                queue_time=self._queue_time(started_at, retry_after, must_wait=must_wait), retry_after=retry_after or 1,
                pass_comments=caller.heartbeat.pass_comments, retries_after_break=caller.retries_after_break,
            )  # fmt: skip
            model_start.show_in(caller.heartbeat, inflight, must_wait=must_wait)
            try:
                return self._response(exchange, inflight, delivery, await delivery.start(), is_new=is_new)
            except asyncio.CancelledError as left:  # the client has disconnected
                self._note_shared(exchange, inflight, is_new=is_new)
                raise left  # noqa: TRY201 - mypyc: not a bare raise
            except RetryRequest as retry:
                assert share, "an in-flight request that is not shared never asks for a retry"
                retry_after = retry.retry_after or retry_after
            if share and not isinstance(lookup, Bypass):
                lookup = await self._cache.again(parsed, exchange.trace)
                if isinstance(lookup, Hit):
                    return self._serve_cached(exchange, lookup, parsed)
                if isinstance(lookup, Bypass):
                    self._record_lookup(exchange, lookup, parsed)

    def _start_of_model(self, exchange: Exchange, parsed: ParsedRequest, caller: Caller) -> ModelStart:
        if not self._waking.is_used:
            return NO_START
        models = self._candidates.models(parsed, exchange.tenant)
        engines_now = partial(self._candidates.engines_now, parsed, exchange.tenant, caller.session, models)
        plan = self._waking.plan(parsed.model.configured_name, models, parse_wait(caller.prefer), engines_now)
        return NO_START if plan is None else AwaitedStart(self._waking, plan)

    def _new_generation(
        self, exchange: Exchange, parsed: ParsedRequest, caller: Caller, start: ModelStart,
        store_response: StoreResponse | None, lookup: Lookup,
    ) -> NewGeneration:  # fmt: skip
        models = self._candidates.models(parsed, exchange.tenant)
        if start.has_engines(models):
            selection = self._candidates.select(parsed, exchange.tenant, caller.session, caller.max_ttft, models)
            if caller.prefers_engine is not None:
                selection = selection.with_first(caller.prefers_engine)
            if caller.at_engine is not None:
                selection = selection.with_first(partial(_has_name, caller.at_engine.engine))
        else:
            selection = Selection(_no_engines, parsed.request)
        caller.body_allocation.retain()  # the generation may outlive the request; the coalescer releases it
        priority = (
            caller.priority if caller.priority is not None else self._candidates.priority(parsed, exchange.tenant)
        )
        origin = new_origin(exchange, parsed, caller, priority)
        new = NewGeneration(
            request=selection.request,
            record=GenerationRecord(origin, selection.prompt.placement),
            order_engines=selection.order_engines,
            # With fields left out, the response does not match the key: it is neither shared nor stored.
            store_response=None if selection.adjusted_fields else store_response,
            documents=parsed.parts.document_names(),
            adjusted_fields=selection.adjusted_fields,
            wait_plan=start.plan,
            body_allocation=caller.body_allocation,
            replaced_entry_created=entry_created(lookup),
        )
        new.prompt, new.trace = selection.prompt, exchange.trace.new_generation()
        return new

    def _queue_time(self, started_at: float, retry_after: int | None, *, must_wait: bool) -> float | None:
        """Seconds that are left of the client's time in queues; None: the queue sees to that.

        `retry_after`: of the queue in another process in which this client has waited before.
        """
        if retry_after is None or must_wait:
            return None
        return max(_MIN_QUEUE_TIME, self._queue_timeout - (time.perf_counter() - started_at))

    def _response(
        self, exchange: Exchange, inflight: InFlightRequest, delivery: ResponseDelivery, body: bytes | None, *,
        is_new: bool,
    ) -> GatewayResponse:  # fmt: skip
        """`body`: the full response, None if it is a stream in progress."""
        self._note_shared(exchange, inflight, is_new=is_new)
        if body is None:
            return delivery
        delivery.close()
        return FullResponse(body, exchange.stream)

    def _note_shared(self, exchange: Exchange, inflight: InFlightRequest, *, is_new: bool) -> None:
        # Another process may lead it although this request started it here.
        if not (is_new and inflight.is_leader):
            exchange.cache_status, exchange.miss_reason = CacheStatus.COALESCED, None
            leader = inflight.record.leader
            exchange.trace.set_leader(inflight.trace, leader.traceparent if leader is not None else None)


def _has_name(name: str, engine: Engine) -> bool:
    return engine.name == name


def _no_engines() -> Sequence[Engine]:
    return ()
