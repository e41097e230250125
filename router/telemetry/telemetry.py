"""The metrics are recorded here, once for each request, from the facts in its Exchange. metric_table lists them.

The names are those that dashboards for LLM serving use. Tenants and models come from the configuration, so a client
cannot create new series.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from prometheus_client import CollectorRegistry

from router.core.batches.batch_object import RequestCounts
from router.core.batches.batch_overview import OpenState
from router.core.resilience.breaker import BreakerState
from router.core.types import CacheStatus
from router.errors import NOT_CACHED
from router.flow.exchange import AttemptFacts, Exchange, GenerationRecord, RequestFacts, request_facts
from router.flow.request_kind import RequestKind, request_kind
from router.flow.result import LOST
from router.net.redis.pipeline import RedisPipeline
from router.shared.status.status_documents import Problem
from router.telemetry.access_log import AccessLog
from router.telemetry.announced_metrics import announced_families
from router.telemetry.draft_metrics import draft_families
from router.telemetry.exemplars import HistogramExemplars
from router.telemetry.gauge_metrics import GaugeMetrics
from router.telemetry.metric_objects import create_objects
from router.telemetry.metric_series import GenerationSeries, PendingCounter, RequestSeries
from router.telemetry.metrics_page import collect, drop_unknown_gauges, hit_ratio, problem_family, render
from router.telemetry.prefill_metrics import PrefillMetrics, PrefillSeries
from router.telemetry.savings_metrics import SavingsMetrics
from router.telemetry.slow_threshold import EVERY_REQUEST, NO_REQUEST, SlowThreshold
from router.telemetry.usage_counter import UsageCounter
from router.upstream.engine import Engine

_FROM_STORE: Final = (CacheStatus.HIT, CacheStatus.STALE)
_WITHOUT_GENERATION: Final = (*_FROM_STORE, CacheStatus.COALESCED)  # none of these caused a generation
# The statuses of limits, budgets and queues; the other refusals are mistakes of the client.
_NO_ROOM: Final = (429, 503)

_WITHOUT_KEY: Final = frozenset(("keys_unknown", "auth_mode_unset"))
"""Refusals, beside those of status 401, of requests whose tenant is not known."""
# Seconds that counts may be missing from prometheus_client, and so from another worker's /metrics.
_FLUSH_INTERVAL: Final = 0.25
_MAX_SERIES: Final = 4096  # kinds of requests in the look-up table

RequestObserver = Callable[[Exchange, float, bool], None]
"""Gets a request that has ended, its end by time.perf_counter, and whether it failed or was slow."""

_Series = RequestSeries | GenerationSeries | PrefillSeries | PendingCounter


class Telemetry:
    """All metrics of one router process.

    - `record` is called once for every request that reached the API, whatever its end.
    - A gauge whose value is unknown has no sample; it is not 0.
    """

    def __init__(self, *, log_format: str, multiprocess_dir: str | None = None) -> None:
        """`multiprocess_dir`: the directory in which several workers share their metrics; None for one process."""
        self._access_log = AccessLog(log_format)
        # One look-up finds everything that is counted and logged for a request.
        self._request_series: dict[RequestFacts, RequestSeries] = {}
        self._generation_series: dict[tuple[str, str], GenerationSeries] = {}
        self._write_counters: dict[str, PendingCounter] = {}
        self._dirty: list[_Series] = []
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flush_delay = _FLUSH_INTERVAL
        self._multiprocess_dir = multiprocess_dir
        self.registry = CollectorRegistry()
        objects = create_objects(self.registry)
        counters, histograms = objects.counters, objects.histograms
        self._requests = counters["llm_requests_total"]
        self._tokens = counters["llm_tokens_total"]
        self._cache = counters["llm_cache_requests_total"]
        self._writes = counters["llm_cache_writes_total"]
        self._batch_lines = counters["roundhouse_batch_lines_total"]
        self._damaged = counters["llm_cache_entries_damaged_total"]
        self._kept_responses = counters["roundhouse_kept_responses_total"]
        self._rejected = counters["llm_requests_rejected_total"]
        self._retries = counters["llm_retries_total"]
        self._fallbacks = counters["llm_fallbacks_total"]
        self._wakes = counters["llm_engine_wakes_total"]
        self._gpu_switches = counters["llm_gpu_switches_total"]
        self._continuations = counters["llm_continuations_total"]
        self._repeated_tokens = counters["llm_continuation_tokens_total"]
        self._lost_audit = counters["roundhouse_audit_lost_total"]
        self._dropped_spans = counters["roundhouse_spans_dropped_total"]
        self._duration = histograms["llm_request_duration_seconds"]
        self._first_token = histograms["llm_time_to_first_token_seconds"]
        self._overhead = histograms["llm_router_overhead_seconds"]
        self._queue = histograms["llm_queue_seconds"]
        self._speed = histograms["llm_tokens_per_second"]
        self._latency = histograms["llm_inter_token_latency_seconds"]
        self._wake_seconds = histograms["llm_engine_wake_seconds"]
        self._gpu_switch_seconds = histograms["llm_gpu_switch_seconds"]
        self._exemplars = (
            HistogramExemplars("llm_request_duration_seconds"),
            HistogramExemplars("llm_time_to_first_token_seconds"),
        )
        self._prefills = PrefillMetrics(objects)
        self._savings = SavingsMetrics(objects)
        self._usage = UsageCounter()
        self._observer: RequestObserver = _ignore
        self._slow: dict[str, SlowThreshold] = {}  # by model
        self._engines: dict[str, Engine] = {}
        self._gauges = GaugeMetrics(objects, removable=multiprocess_dir is None)

    # -- recording --------------------------------------------------------------------------------------------------

    def record(self, exchange: Exchange, ended_at: float) -> None:
        """Counts and logs an exchange. `ended_at`: an instant of time.perf_counter."""
        facts = request_facts(exchange)
        series = self._request_series.get(facts) or self._add_request_series(facts, request_kind(exchange))
        if not series.durations:
            self._schedule_flush(series)
        duration = ended_at - exchange.started_at
        series.durations.append(duration)
        series.overheads.append(duration if exchange.joined_at is None else exchange.joined_at - exchange.started_at)
        if series.served_at_once:
            series.first_token_times.append(duration)
        elif exchange.first_token_at is not None:
            series.first_token_times.append(exchange.first_token_at - exchange.started_at)
        series.saved_tokens += exchange.completion_tokens
        series.saved_ms += exchange.generation_ms
        if exchange.trace_id is not None:
            series.add_trace(exchange.trace_id)
        self._access_log.write(series.line_template, exchange, duration)
        self._observer(exchange, ended_at, duration > series.slow.seconds)

    def set_observer(self, observer: RequestObserver) -> None:
        """`observer` is called with each request that ends; see LatestRequests."""
        self._observer = observer

    def _add_request_series(self, facts: RequestFacts, kind: RequestKind) -> RequestSeries:
        if len(self._request_series) >= _MAX_SERIES:
            # Nothing is lost: a series with unflushed counts is in _dirty, and one that comes back is created again.
            self._request_series.clear()
        series = self._request_series[facts] = self._create_request_series(kind)
        return series

    def _create_request_series(self, kind: RequestKind) -> RequestSeries:
        response = kind.response
        tenant, model, cache = kind.tenant, kind.model or "unknown", response.cache_status
        engine, task = response.engine or "none", response.task or "none"
        counters = [self._requests.labels(tenant, model, engine, task, _status_label(kind)).inc]
        if kind.outcome == "refused" and (cache is None or response.engine is None):
            counters += self._refusal_counters(kind, model)
        if cache is not None:
            counters.append(self._cache.labels(tenant, model, cache.lower()).inc)
            if response.fallback_model is not None:
                counters.append(self._fallbacks.labels(model, response.fallback_model).inc)
        saved = self._tokens.labels(tenant, model, "saved") if cache is not None else None
        duration_exemplars, first_token_exemplars = (each.labels(model, cache or "NONE") for each in self._exemplars)
        return RequestSeries(
            line_template=self._access_log.line_template(kind),
            request_counters=counters,
            duration_histogram=self._duration.labels(model, cache or "NONE"),
            overhead_histogram=self._overhead.labels(cache) if cache is not None else None,
            first_token_histogram=self._first_token.labels(model, cache) if cache is not None else None,
            saved_counter=saved.inc if saved is not None and cache in _WITHOUT_GENERATION else None,
            record_requests=partial(self._record_requests, tenant, kind.key_id, model, cache, response.engine)
            if cache is not None
            else None,
            exemplars=(duration_exemplars, first_token_exemplars),
            served_at_once=cache in _FROM_STORE,
            slow=self._slow_threshold(kind, model),
        )

    def _slow_threshold(self, kind: RequestKind, model: str) -> SlowThreshold:
        status = kind.response.status
        if 400 <= status < 500 or kind.error_reason == NOT_CACHED:
            return NO_REQUEST
        if kind.outcome == "failed" or status >= 500:
            return EVERY_REQUEST
        return self._slow.setdefault(model, SlowThreshold())

    def _record_requests(
        self, tenant: str, key_id: str | None, model: str, cache: CacheStatus, engine: str | None,
        requests: int, tokens: int, seconds: float,
    ) -> None:  # fmt: skip
        watts = self._watts_per_request(engine) if engine is not None else None
        joules = watts * seconds if watts is not None else None
        self._usage.add_requests(tenant, key_id, model, cache, requests, tokens, seconds, joules)
        if cache in _WITHOUT_GENERATION:
            self._savings.record_saved(tenant, model, seconds, joules)

    def _record_refused(self, tenant: str, key_id: str | None, model: str, reason: str, requests: float) -> None:
        self._usage.add_refused(tenant, key_id, model, reason, int(requests))

    def _schedule_flush(self, series: _Series) -> None:
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(self._flush_delay, self.flush)
        self._dirty.append(series)

    def flush(self) -> None:
        """Passes all counts to prometheus_client, where the other workers can read them."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        pending, self._dirty = self._dirty, []
        for series in pending:
            series.flush()

    def close(self) -> None:
        """Flushes; what is recorded after this is flushed without delay, since the process ends."""
        self._flush_delay = 0.0
        self.flush()

    def record_generation(self, generation: GenerationRecord, ended_at: float) -> None:
        """Counts a generation that has ended, once, however many requests shared it.

        `ended_at`: an instant of time.perf_counter, the same for all that counts it.
        """
        origin = generation.origin
        self._record_failures(generation)
        if generation.not_stored_reason is not None:
            self.record_write(generation.not_stored_reason)
        gpu_seconds = generation.gpu_seconds(ended_at)
        self._usage.add_generation(generation, gpu_seconds)
        series = self._generation_series.get((origin.tenant, origin.model)) or self._create_generation_series(
            origin.tenant, origin.model
        )
        if not series.dirty:
            series.dirty = True
            self._schedule_flush(series)
        series.queue_times.append(generation.queue_seconds)
        if generation.first_token_at is None and generation.error_reason != LOST:
            return  # no engine has worked on it, as far as is known
        prefills = self._prefills.series(generation)
        if prefills is not None:
            if not prefills.dirty:
                self._schedule_flush(prefills)
            prefills.add(generation)
        worked = [attempt for attempt in generation.attempts if attempt.has_worked]
        if worked:
            joules = _joules(worked, ended_at)
            series.add_work(gpu_seconds, joules)
            if joules is not None:
                self._usage.add_energy(generation, joules)
        series.prompt_tokens += generation.prompt_tokens
        series.completion_tokens += generation.completion_tokens
        # The rate of a stream of two engines is that of neither.
        if not origin.stream or generation.first_token_at is None or generation.continuations:
            return
        duration = ended_at - generation.first_token_at
        if duration > 0 and generation.completion_tokens > 1:
            series.speeds.append((generation.completion_tokens - 1) / duration)
            # The choices of a request are generated at the same time; the first token of each is not counted.
            steps = generation.completion_tokens - origin.choices
            if steps > 0:
                series.latencies.append((duration * origin.choices / steps, steps))

    def _record_failures(self, generation: GenerationRecord) -> None:
        for attempt in generation.attempts:
            if attempt.error_reason is not None and attempt.concerns_engine:  # else the engine gets no blame
                self._retries.labels(attempt.engine, attempt.error_reason).inc()
        for each in generation.continuations:
            self._continuations.labels(generation.origin.model, each.reason, each.result).inc()
            if each.repeated_tokens:
                self._repeated_tokens.labels(generation.origin.model).inc(each.repeated_tokens)

    def _create_generation_series(self, tenant: str, model: str) -> GenerationSeries:
        series = self._generation_series[tenant, model] = GenerationSeries(
            prompt_counter=self._tokens.labels(tenant, model, "prompt").inc,
            completion_counter=self._tokens.labels(tenant, model, "completion").inc,
            queue_histogram=self._queue.labels(model, tenant),
            speed_histogram=self._speed.labels(model),
            latency_histogram=self._latency.labels(model),
            record_generations=partial(self._savings.record_spent, tenant, model),
        )
        return series

    def _refusal_counters(self, kind: RequestKind, model: str) -> list[Any]:
        reason, status = kind.error_reason or "none", kind.response.status
        if status == 401 or reason in _WITHOUT_KEY:  # the tenant is not known
            return [self._rejected.labels(reason, "none").inc]
        counters = [self._rejected.labels(reason, kind.tenant).inc]
        if status in _NO_ROOM:
            counters.append(partial(self._record_refused, kind.tenant, kind.key_id, model, reason))
        return counters

    def record_write(self, result: str) -> None:
        series = self._write_counters.get(result)
        if series is None:
            series = self._write_counters[result] = PendingCounter(self._writes.labels(result).inc)
        if not series.pending:
            self._schedule_flush(series)
        series.pending += 1

    def record_kept_response(self, result: str) -> None:
        self._kept_responses.labels(result).inc()

    def record_batch_lines(self, counts: RequestCounts) -> None:
        """Counts lines of batches that have got a result; a call with none begins the counters with 0."""
        self._batch_lines.labels("generated").inc(counts.completed - counts.cached)
        self._batch_lines.labels("cached").inc(counts.cached)
        self._batch_lines.labels("failed").inc(counts.failed)

    def set_batch_lines_in_flight(self, lines: int) -> None:
        self._gauges.batch_lines.set(lines)

    def set_open_batches(self, batches: Mapping[OpenState, int] | None) -> None:
        """None: they are unknown."""
        self._gauges.set_open_batches(batches)

    def record_damaged_entry(self) -> None:
        self._damaged.inc()

    def record_rejection(self, reason: str) -> None:
        """Counts a client that the server refused before its request."""
        self._rejected.labels(reason, "none").inc()

    def record_lost_audit(self) -> None:
        self._lost_audit.inc()

    def record_dropped_spans(self, reason: str, count: int) -> None:
        """Counts what was traced and not exported; may be called in any thread."""
        self._dropped_spans.labels(reason).inc(count)

    def expect_wakes(self, model: str, results: Iterable[str]) -> None:
        """Begins the counters with 0, so that Prometheus sees the first increase."""
        for result in results:
            self._wakes.labels(model, result)

    def expect_gpu_switches(self, group: str, engines: Iterable[str]) -> None:
        """Begins the counters with 0."""
        for engine in engines:
            for result in ("woken", "failed"):
                self._gpu_switches.labels(group, engine, result)

    def record_gpu_switch(self, group: str, engine: str, succeeded: bool, seconds: float) -> None:
        """Counts a switch of a GPU. `engine`: the one that was to wake up; `seconds`: how long it took."""
        self._gpu_switches.labels(group, engine, "woken" if succeeded else "failed").inc()
        if succeeded:
            self._gpu_switch_seconds.labels(group).observe(seconds)

    def record_wake(self, model: str, result: str, seconds: float) -> None:
        """Counts a request that found its model asleep; `seconds`: how long it waited."""
        self._wakes.labels(model, result).inc()
        if result == "started":
            self._wake_seconds.labels(model).observe(seconds)

    def set_queue_length(self, model: str, waiting: int) -> None:
        self._gauges.queue_length.labels(model).set(waiting)

    def update_gauges(
        self, engines: Iterable[Engine], breaker_state: Callable[[str], BreakerState], *, redis_up: bool,
        asleep: Mapping[str, bool] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Takes over the results of a probe round; see GaugeMetrics.update."""
        self._engines = {engine.name: engine for engine in engines}
        self._gauges.update(self._engines.values(), breaker_state, redis_up=redis_up, asleep=asleep)

    def _watts_per_request(self, engine: str) -> float | None:
        known = self._engines.get(engine)
        return known.energy.watts_per_request if known is not None else None

    # -- what leaves the process --------------------------------------------------------------------------------------

    def flush_savings(self, pipeline: RedisPipeline, clock: Callable[[], float]) -> None:
        """Sends what requests cost and saved, and the usage, since the last call to Redis.

        `clock`: seconds since the epoch.
        """
        self.flush()
        self._usage.flush(pipeline, clock())

    def render(self, problems: Iterable[Problem] = (), *, as_openmetrics: bool = False) -> bytes:
        """The page for Prometheus, in its text format or in OpenMetrics, which has exemplars.

        `problems`: see router.shared.status.problems.lasting_problems.
        """
        self.flush()
        families = collect(self.registry, self._multiprocess_dir)
        announced = [engine.announced for engine in self._engines.values() if engine.announced is not None]
        drop_unknown_gauges(families, self._engines)
        families += [hit_ratio(families), *announced_families(announced), *draft_families(self._engines.values())]
        families.append(problem_family(problems))
        if as_openmetrics:
            for family in families:
                for exemplars in self._exemplars:
                    exemplars.add_to(family)
        return render(families, as_openmetrics=as_openmetrics)


def _ignore(_exchange: Exchange, _ended_at: float, _is_notable: bool) -> None:
    pass


def _joules(attempts: Iterable[AttemptFacts], ended_at: float) -> float | None:
    """None: the power of their engines is unknown."""
    joules = [taken for attempt in attempts if (taken := attempt.take_joules(ended_at)) is not None]
    return sum(joules, 0.0) if joules else None


def _status_label(kind: RequestKind) -> str:
    """The HTTP status, or the failure after a 200 was sent. 499 is nginx's status for a client that disconnected."""
    if kind.outcome == "left":
        return "499"
    return str(kind.response.status) if kind.outcome != "failed" else "broken"
