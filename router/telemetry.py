"""All metrics: they are recorded here, once for each request, from the facts in its Exchange.

The names are those that dashboards for LLM serving use. Tenants and models come from the configuration, so a client
cannot create new series.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from router.access_log import AccessLog
from router.core.resilience.breaker import BreakerState
from router.core.types import CacheStatus
from router.flow.exchange import Exchange, GenerationRecord
from router.flow.request_kind import RequestFacts, RequestKind, request_facts, request_kind
from router.metric_series import BatchHistogram, GenerationSeries, PendingCounter, RequestSeries
from router.upstream.catalog import Engine

_DURATION_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FROM_STORE: Final = (CacheStatus.HIT, CacheStatus.STALE)
_WITHOUT_GENERATION: Final = (*_FROM_STORE, CacheStatus.COALESCED)  # none of these caused a generation
_OVERHEAD_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_BREAKER_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_SPEED_BUCKETS: Final = (1, 5, 10, 20, 30, 50, 75, 100, 150, 200, 500, 1000)
# Seconds that counts may be missing from prometheus_client, and so from another worker's /metrics.
_FLUSH_INTERVAL: Final = 0.25
_MAX_SERIES: Final = 4096  # kinds of requests in the look-up table
_ENGINE_GAUGES: Final = (
    ("kv_cache_usage", "vllm_kv_cache_usage", "Share of the engine's KV cache in use, 0 to 1"),
    ("prefix_cache_hit_rate", "vllm_prefix_cache_hit_rate", "Share of prompt tokens found in the prefix cache"),
    ("spec_acceptance_rate", "vllm_spec_acceptance_rate", "Share of draft tokens accepted by the target model"),
    ("spec_tokens_per_step", "vllm_spec_tokens_per_step", "Tokens per decoding step with the draft model"),
)


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
        self._dirty: list[RequestSeries | GenerationSeries | PendingCounter] = []
        self._flush_delay = _FLUSH_INTERVAL
        self._multiprocess_dir = multiprocess_dir
        self.registry = registry = CollectorRegistry()
        requests = ("tenant", "model", "engine", "task", "status")
        self._requests = Counter("llm_requests", "Requests by status", requests, registry=registry)
        by_cache = ("model", "cache")
        self._duration = BatchHistogram(
            "llm_request_duration_seconds", "From the first byte of the request to the last of the response", by_cache,
            buckets=_DURATION_BUCKETS, registry=registry,
        )  # fmt: skip
        self._first_token = BatchHistogram(
            "llm_time_to_first_token_seconds", "From the first byte of the request to the first token", by_cache,
            buckets=_DURATION_BUCKETS, registry=registry,
        )  # fmt: skip
        self._overhead = BatchHistogram(
            "llm_router_overhead_seconds", "Time in the router before a request is sent to an engine or a cached "
            "response to the client", ("cache",), buckets=_OVERHEAD_BUCKETS, registry=registry,
        )  # fmt: skip
        self._speed = BatchHistogram(
            "llm_tokens_per_second",
            "Tokens per second after the first",
            ("model",),
            buckets=_SPEED_BUCKETS,
            registry=registry,
        )
        self._tokens = Counter(
            "llm_tokens",
            "Prompt, generated and saved tokens",
            ("tenant", "model", "kind"),
            registry=registry,
        )
        self._cache = Counter(
            "llm_cache_requests", "Requests by cache result", ("tenant", "model", "result"), registry=registry
        )
        self._writes = Counter("llm_cache_writes", "Responses by cache write result", ("result",), registry=registry)
        self._damaged = Counter(
            "llm_cache_entries_damaged", "Entries read with a wrong checksum or invalid fields",
            registry=registry,
        )  # fmt: skip
        self._rejected = Counter(
            "llm_requests_rejected", "Requests rejected before an engine was selected", ("reason",), registry=registry
        )
        self._retries = Counter("llm_retries", "Failed attempts at an engine", ("engine", "reason"), registry=registry)
        self._fallbacks = Counter(
            "llm_fallbacks", "Requests served by a fallback model", ("model", "fallback"), registry=registry
        )
        self._breaker = Gauge(
            "roundhouse_breaker_state", "Breaker state: 0 closed, 1 half-open, 2 open", ("engine",),
            multiprocess_mode="livemax", registry=registry,
        )  # fmt: skip
        self._in_flight = Gauge(
            "llm_requests_in_flight", "Requests in flight at an engine", ("engine",),
            multiprocess_mode="livesum", registry=registry,
        )  # fmt: skip
        self._queue_length = Gauge(
            "llm_requests_queued", "Requests waiting in the queue for an engine", ("model",),
            multiprocess_mode="livesum", registry=registry,
        )  # fmt: skip
        self._up = Gauge(
            "roundhouse_engine_up", "Whether the engine is up: 1 or 0", ("engine",),
            multiprocess_mode="livemin", registry=registry,
        )  # fmt: skip
        self._redis_up = Gauge(
            "roundhouse_redis_up", "Whether Redis is up: 1 or 0", multiprocess_mode="livemin", registry=registry
        )
        by_task = ("engine", "task")
        self._learned_speed = Gauge(
            "roundhouse_engine_tokens_per_second", "Measured tokens per second of one request, by task", by_task,
            multiprocess_mode="livemostrecent", registry=registry,
        )  # fmt: skip
        self._draft_pays = Gauge(
            "roundhouse_draft_pays", "Whether the draft model speeds up the task: 1 or 0", by_task,
            multiprocess_mode="livemostrecent", registry=registry,
        )  # fmt: skip
        self._engine_gauges = {
            field: Gauge(name, help_, ("engine",), multiprocess_mode="livemostrecent", registry=registry)
            for field, name, help_ in _ENGINE_GAUGES
        }

        self._engine_names: set[str] = set()

    # -- recording --------------------------------------------------------------------------------------------------

    def record(self, exchange: Exchange, ended_at: float) -> None:
        """Counts and logs an exchange. `ended_at`: an instant of time.perf_counter."""
        facts = request_facts(exchange)
        series = self._request_series.get(facts) or self._add_request_series(facts, request_kind(exchange))
        if not series.durations:
            self._schedule_flush(series)
        duration = ended_at - exchange.started_at
        series.durations.append(duration)
        series.overheads.append(
            duration if exchange.dispatched_at is None else exchange.dispatched_at - exchange.started_at
        )
        if series.served_at_once:
            series.first_token_times.append(duration)
        elif exchange.first_token_at is not None:
            series.first_token_times.append(exchange.first_token_at - exchange.started_at)
        series.saved_tokens += exchange.completion_tokens
        self._access_log.write(series.line_template, exchange, duration)

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
            counters.append(self._rejected.labels(kind.error_reason or "none").inc)
        if cache is not None:
            counters.append(self._cache.labels(tenant, model, cache.lower()).inc)
            if response.fallback_model is not None:
                counters.append(self._fallbacks.labels(model, response.fallback_model).inc)
        saved = self._tokens.labels(tenant, model, "saved") if cache is not None else None
        return RequestSeries(
            line_template=self._access_log.line_template(kind),
            request_counters=counters,
            duration_histogram=self._duration.labels(model, cache or "NONE"),
            overhead_histogram=self._overhead.labels(cache) if cache is not None else None,
            first_token_histogram=self._first_token.labels(model, cache) if cache is not None else None,
            saved_counter=saved.inc if saved is not None and cache in _WITHOUT_GENERATION else None,
            served_at_once=cache in _FROM_STORE,
        )

    def _schedule_flush(self, series: RequestSeries | GenerationSeries | PendingCounter) -> None:
        if not self._dirty:
            asyncio.get_running_loop().call_later(self._flush_delay, self.flush)
        self._dirty.append(series)

    def flush(self) -> None:
        """Passes all counts to prometheus_client, where the other workers can read them."""
        pending, self._dirty = self._dirty, []
        for series in pending:
            series.flush()

    def close(self) -> None:
        """Flushes; what is recorded after this is flushed without delay, since the process ends."""
        self._flush_delay = 0.0
        self.flush()

    def record_generation(self, generation: GenerationRecord) -> None:
        """Counts a generation that has ended, once, however many requests shared it."""
        for engine, reason in generation.failed_attempts:
            self._retries.labels(engine, reason).inc()
        if generation.not_stored_reason is not None:
            self.record_write(generation.not_stored_reason)
        if generation.first_token_at is None:
            return
        series = self._generation_series.get((generation.tenant, generation.model)) or self._create_generation_series(
            generation.tenant, generation.model
        )
        if not series.dirty:
            series.dirty = True
            self._schedule_flush(series)
        series.prompt_tokens += generation.prompt_tokens
        series.completion_tokens += generation.completion_tokens
        duration = time.perf_counter() - generation.first_token_at
        if generation.stream and duration > 0 and generation.completion_tokens > 1:
            series.speeds.append((generation.completion_tokens - 1) / duration)

    def _create_generation_series(self, tenant: str, model: str) -> GenerationSeries:
        series = self._generation_series[tenant, model] = GenerationSeries(
            prompt_counter=self._tokens.labels(tenant, model, "prompt").inc,
            completion_counter=self._tokens.labels(tenant, model, "completion").inc,
            speed_histogram=self._speed.labels(model),
        )
        return series

    def record_write(self, result: str) -> None:
        series = self._write_counters.get(result)
        if series is None:
            series = self._write_counters[result] = PendingCounter(self._writes.labels(result).inc)
        if not series.pending:
            self._schedule_flush(series)
        series.pending += 1

    def record_damaged_entry(self) -> None:
        self._damaged.inc()

    def record_rejection(self, reason: str) -> None:
        """Counts a client that the server refused before its request."""
        self._rejected.labels(reason).inc()

    def set_queue_length(self, model: str, waiting: int) -> None:
        self._queue_length.labels(model).set(waiting)

    def _set_gauge(self, gauge: Gauge, value: float | None, *labels: str) -> None:
        if value is not None:
            gauge.labels(*labels).set(value)
        elif self._multiprocess_dir is None:  # the files of several workers do not allow a removal
            with contextlib.suppress(KeyError):  # some versions raise it if there is no such sample
                gauge.remove(*labels)

    def update_gauges(
        self, engines: Iterable[Engine], breaker_state: Callable[[str], BreakerState], *, redis_up: bool
    ) -> None:
        """Takes over the results of a probe round; `breaker_state` maps an engine's name to its state."""
        self._redis_up.set(redis_up)
        engines = list(engines)
        self._engine_names = {engine.name for engine in engines}
        for engine in engines:
            self._up.labels(engine.name).set(bool(engine.up))
            self._in_flight.labels(engine.name).set(engine.in_flight)
            self._breaker.labels(engine.name).set(_BREAKER_STATES[breaker_state(engine.name)])
            for field, gauge in self._engine_gauges.items():
                self._set_gauge(gauge, getattr(engine.gauges, field), engine.name)
            for task, draft in engine.drafts.items():
                self._set_gauge(self._learned_speed, draft.tokens_per_second, engine.name, task)
                self._set_gauge(self._draft_pays, draft.pays, engine.name, task)

    # -- rendering --------------------------------------------------------------------------------------------------

    def render(self) -> bytes:
        self.flush()
        registry = self.registry
        if self._multiprocess_dir is not None:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=self._multiprocess_dir)  # type: ignore[no-untyped-call]  # it has no types
        families = list(registry.collect())
        rendered = CollectorRegistry()
        self._drop_removed_engines(families)
        rendered.register(_CollectedFamilies([*families, _hit_ratio(families)]))
        return generate_latest(rendered)

    def _drop_removed_engines(self, families: Iterable[Metric]) -> None:
        """Drops the gauges of engines that a reload has removed; several workers cannot remove their samples."""
        for family in families:
            if family.type == "gauge":
                family.samples = [s for s in family.samples if s.labels.get("engine") in {None, *self._engine_names}]


class _CollectedFamilies:
    """Families that are collected already, in the form of a collector."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _hit_ratio(families: Iterable[Metric]) -> Metric:
    """The share of hits among the requests that were looked up, by model, since the start of the process."""
    hits: dict[str, float] = {}
    lookups: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if sample.name == "llm_cache_requests_total" and sample.labels["result"] != "bypass":
                model = sample.labels["model"]
                lookups[model] = lookups.get(model, 0) + sample.value
                hits[model] = hits.get(model, 0) + (sample.value if sample.labels["result"] == "hit" else 0)
    ratio = GaugeMetricFamily("llm_cache_hit_ratio", "Share of hits among cache lookups", labels=["model"])
    for model, count in lookups.items():
        if count:
            ratio.add_metric([model], hits[model] / count)
    return ratio


def _status_label(kind: RequestKind) -> str:
    """The HTTP status, or the failure after a 200 was sent. 499 is nginx's status for a client that disconnected."""
    if kind.outcome == "left":
        return "499"
    return str(kind.response.status) if kind.outcome != "failed" else "broken"
