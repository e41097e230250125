"""The Prometheus metrics of an engine, with vLLM's names, labels, types and help texts."""

import pickle
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engines.simulator.control.faults import Fault
from engines.simulator.counters import EngineCounters
from engines.simulator.engine.scheduler import Scheduler
from engines.simulator.engine.sleep_mode import SleepMode
from engines.simulator.engine.speculation import SpeculativeDecoder
from engines.simulator.metrics_text import metrics_text
from engines.simulator.settings import BLOCK_SIZE, SimulatorSettings

_HISTOGRAMS = {
    "request_prompt_tokens": "Number of prefill tokens processed.",
    "request_generation_tokens": "Number of generation tokens processed.",
    "iteration_tokens_total": "Histogram of number of tokens per engine_step.",
    "request_max_num_generation_tokens": "Histogram of maximum number of requested generation tokens.",
    "request_params_n": "Histogram of the n request parameter.",
    "request_params_max_tokens": "Histogram of the max_tokens request parameter.",
    "time_to_first_token_seconds": "Histogram of time to first token in seconds.",
    "inter_token_latency_seconds": "Histogram of inter-token latency in seconds.",
    "request_time_per_output_token_seconds": "Histogram of time_per_output_token_seconds per request.",
    "e2e_request_latency_seconds": "Histogram of e2e request latency in seconds.",
    "request_queue_time_seconds": "Histogram of time spent in WAITING phase for request.",
    "request_inference_time_seconds": "Histogram of time spent in RUNNING phase for request.",
    "request_prefill_time_seconds": "Histogram of time spent in PREFILL phase for request.",
    "request_decode_time_seconds": "Histogram of time spent in DECODE phase for request.",
    "request_num_preemptions": "Histogram of the number of times a request was preempted.",
    "request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens)."
    ),
}
_PROCESS_LIFETIME = 15.0
# The HELP and TYPE lines, and the sample.
_KV_LINE = re.compile(rb"^(# (?:HELP|TYPE) )?vllm:kv_cache_usage_perc\b.*\n", re.MULTILINE)


class EngineCollector(Collector):
    """Converts an engine's counters to metrics.

    `kv_fault` gives the fault that forces the KV usage, if one is set; `started` is the Unix time of the start; `rank`
    is the data-parallel rank that it is.
    """

    def __init__(
        self,
        settings: SimulatorSettings,
        scheduler: Scheduler,
        speculation: SpeculativeDecoder,
        engine_counters: EngineCounters,
        kv_fault: Callable[[], Fault | None],
        sleep_mode: SleepMode,
        started: float,
        rank: int = 0,
    ) -> None:
        self._rank = str(rank)
        self._settings = settings
        self._scheduler = scheduler
        self._speculation = speculation
        self._engine_counters = engine_counters
        self._kv_fault = kv_fault
        self._sleep_mode = sleep_mode
        self._started = started
        self._labels = {"model_name": settings.model_names[0], "engine": self._rank}

    def state(self) -> bytes:
        """Differs from an earlier one if a metric does: all that `collect` reads and that changes."""
        scheduler = self._scheduler
        numbers = (
            scheduler.running, scheduler.waiting, self._kv_usage(), scheduler.counts, self._speculation.counts,
            self._sleep_mode.states,
        )  # fmt: skip
        # Pickled, so that no counter can be forgotten here; and 40 times faster than the text.
        return pickle.dumps((numbers, self._engine_counters))

    def collect(self) -> Iterator[Metric]:
        if self._speculation.enabled:
            yield from self._speculation_metrics()
        yield from self._scheduler_metrics()
        yield from self._cache_metrics()
        yield from self._token_metrics()
        for name, text in _HISTOGRAMS.items():
            yield self._histogram(name, text)
        yield self._cache_config()

    def _scheduler_metrics(self) -> Iterator[Metric]:
        running, waiting = self._scheduler.running, self._scheduler.waiting
        yield self._gauge("num_requests_running", "Number of requests in model execution batches.", running)
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting)
        text = (
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
            "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
            "Sum of all reasons equals vllm:num_requests_waiting."
        )
        reasons = {"capacity": float(waiting), "deferred": 0.0}
        yield self._labelled_gauge("num_requests_waiting_by_reason", text, "reason", reasons)
        text = (
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2."
        )
        yield self._labelled_gauge("engine_sleep_state", text, "sleep_state", self._sleep_mode.states)
        text = "KV-cache usage. 1 means 100 percent usage."
        yield self._gauge("kv_cache_usage_perc", text, self._kv_usage())

    def _kv_usage(self) -> float:
        fault = self._kv_fault()
        forced: float | None = fault.get("usage") if fault else None
        return self._scheduler.kv_usage if forced is None else forced

    def _cache_metrics(self) -> Iterator[Metric]:
        counts = self._scheduler.counts
        text = "Prefix cache queries, in terms of number of queried tokens."
        yield self._counter("prefix_cache_queries", text, counts.prefix_queries)
        text = "Prefix cache hits, in terms of number of cached tokens."
        yield self._counter("prefix_cache_hits", text, counts.prefix_hits)
        cross = "from KV connector cross-instance cache sharing, in terms of number of"
        yield self._counter(
            "external_prefix_cache_queries", f"External prefix cache queries {cross} queried tokens.", 0
        )
        yield self._counter("external_prefix_cache_hits", f"External prefix cache hits {cross} cached tokens.", 0)
        yield self._counter("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", 0)
        yield self._counter("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", 0)
        text = "Cumulative number of preemption from the engine."
        yield self._counter("num_preemptions", text, counts.preemptions)

    def _token_metrics(self) -> Iterator[Metric]:
        counters = self._engine_counters
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", counters.prompt_tokens)
        computed = counters.prompt_tokens - counters.cached_tokens
        sources = {"local_compute": computed, "local_cache_hit": counters.cached_tokens, "external_kv_transfer": 0}
        yield self._labelled_counter("prompt_tokens_by_source", "Number of prompt tokens by source.", "source", sources)
        text = "Number of cached prompt tokens (local + external)."
        yield self._counter("prompt_tokens_cached", text, counters.cached_tokens)
        text = (
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
            "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; "
            "sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits."
        )
        tiers = {
            "device": self._scheduler.counts.prefix_hits,
            "host": 0,
            "p2p": 0,
            "disk": 0,
            "external_unspecified": 0,
        }
        yield self._labelled_counter("prompt_tokens_cached_by_source", text, "source", tiers)
        yield self._counter("generation_tokens", "Number of generation tokens processed.", counters.generation_tokens)
        text = "Count of successfully processed requests."
        yield self._labelled_counter("request_success", text, "finished_reason", counters.finished)
        yield self._admission_rejections()

    def _admission_rejections(self) -> Metric:
        """vLLM's queue limits, which are off by default; these samples lack the `engine` label."""
        text = "Number of admission attempts rejected by a queue limit, by reason."
        family = CounterMetricFamily("vllm:admission_rejections", text, labels=["model_name", "reason"])
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            family.add_metric([self._labels["model_name"], reason], 0, created=self._started)
        return family

    def _speculation_metrics(self) -> Iterator[Metric]:
        counts = self._speculation.counts
        yield self._counter("spec_decode_num_drafts", "Number of spec decoding drafts.", counts.drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Number of draft tokens.", counts.draft_tokens)
        yield self._counter("spec_decode_num_accepted_tokens", "Number of accepted tokens.", counts.accepted)
        name, text = "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens per draft position."
        positions = {str(position): count for position, count in enumerate(counts.accepted_per_position)}
        yield self._labelled_counter(name, text, "position", positions)

    def _cache_config(self) -> Metric:
        blocks = self._settings.kv_blocks
        labels = {
            "block_size": str(BLOCK_SIZE),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "engine": self._rank,
            "gpu_memory_utilization": "0.92",
            "kv_cache_max_concurrency": str(self._settings.kv_tokens / self._settings.context_length),
            "kv_cache_size_tokens": str(self._settings.kv_tokens),
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(blocks),
            "num_gpu_blocks_override": "None",
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": "None",
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=list(labels)
        )
        family.add_metric(list(labels.values()), 1)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _labelled_gauge(self, name: str, text: str, label: str, values: dict[str, float]) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value, created=self._started)
        return family

    def _labelled_counter(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value, created=self._started)
        return family

    def _histogram(self, name: str, text: str) -> Metric:
        histogram = self._engine_counters.histograms[name]
        family = HistogramMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), histogram.cumulative(), histogram.sum)
        # HistogramMetricFamily has no `created` argument.
        family.add_sample(f"vllm:{name}_created", self._labels, self._started)
        return family


def _merged(ranks: Iterable[EngineCollector]) -> Iterator[Metric]:
    """Each metric once, with the samples of all ranks."""
    for families in zip(*(rank.collect() for rank in ranks), strict=True):
        first = families[0]
        for family in families[1:]:
            first.samples += family.samples
        if first.name == "vllm:admission_rejections":
            first.samples = families[-1].samples[: len(first.samples) // len(families)]  # they do not name a rank
        yield first


class MetricsPage:
    """The text of /metrics: the metrics of this Python process, and those of the engine.

    The latter are formatted only if one has changed: a router asks every 2 s, and formatting takes 1 ms. The former
    change all the time, and are read from /proc: they are as old as _PROCESS_LIFETIME at most.
    """

    def __init__(self, ranks: Sequence[EngineCollector], kv_fault: Callable[[], Fault | None]) -> None:
        self._process_registry = CollectorRegistry()
        GCCollector(self._process_registry)
        PlatformCollector(self._process_registry)
        ProcessCollector(registry=self._process_registry)
        self._ranks = ranks
        self._kv_fault = kv_fault
        self._state: list[bytes] = []
        self._engine_text = self._process_text = b""
        self._process_read_at = -_PROCESS_LIFETIME

    def render(self) -> bytes:
        """A `kv` fault can remove the usage, or rename it to its name before vLLM 0.10."""
        state = [rank.state() for rank in self._ranks]
        if state != self._state:
            self._state, self._engine_text = state, metrics_text(_merged(self._ranks))
        now = time.monotonic()
        if now - self._process_read_at >= _PROCESS_LIFETIME:
            self._process_read_at, self._process_text = now, generate_latest(self._process_registry)
        text = self._process_text + self._engine_text
        kv_fault = self._kv_fault()
        metric = kv_fault.get("metric") if kv_fault else "new"
        if metric == "missing":
            return _KV_LINE.sub(b"", text)
        if metric == "old":
            return text.replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
        return text
