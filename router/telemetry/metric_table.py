"""All metrics of the router, one row each, in the order of the page at /metrics.

metric_objects makes prometheus_client's objects from it. The tests compare the documentation, the dashboards and the
list of public words with it.
"""

from collections.abc import Mapping
from enum import Flag, auto
from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "info"]

Workers = Literal["livemax", "livemin", "livemostrecent", "livesum"]
"""How the values of several workers become one: a `multiprocess_mode` of prometheus_client."""


class Source(Flag):
    """Where a value comes from."""

    REQUEST = auto()  # the facts of a request that has ended, see Telemetry.record
    GENERATION = auto()  # the facts of a generation that has ended, see Telemetry.record_generation
    EVENT = auto()  # it is recorded when it happens
    PROBE = auto()  # a round of probes, see GaugeMetrics.update
    PAGE = auto()  # made with each page out of what the process knows; no object keeps a value


class MetricRow(NamedTuple):
    """One metric.

    - `name`: as users write it. A histogram's samples add `_bucket`, `_sum` and `_count` to it.
    - `workers`: of a gauge that an object keeps.
    - `unit`: for OpenMetrics.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    source: Source
    help: str
    buckets: tuple[float, ...] = ()
    workers: Workers | None = None
    unit: str = ""

    @property
    def family(self) -> str:
        """The name without the suffix that prometheus_client and OpenMetrics add."""
        return self.name.removesuffix(_SUFFIXES.get(self.kind, ""))


_SUFFIXES: Final[Mapping[Kind, str]] = {"counter": "_total", "info": "_info"}
_DURATION: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_OVERHEAD: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_LATENCY: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5,
)  # fmt: skip
_START: Final = (1, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1200)
_SPEED: Final = (1, 5, 10, 20, 30, 50, 75, 100, 150, 200, 500, 1000)

_ROWS: Final = (
    MetricRow(
        "llm_requests_total", "counter", ("tenant", "model", "engine", "task", "status"), Source.REQUEST,
        "Requests by status",
    ),
    MetricRow(
        "llm_request_duration_seconds", "histogram", ("model", "cache"), Source.REQUEST,
        "From the first byte of the request to the last of the response", _DURATION,
    ),
    MetricRow(
        "llm_time_to_first_token_seconds", "histogram", ("model", "cache"), Source.REQUEST,
        "From the first byte of the request to the first token", _DURATION,
    ),
    MetricRow(
        "llm_router_overhead_seconds", "histogram", ("cache",), Source.REQUEST,
        "Time in the router before a request is sent to an engine or a cached response to the client", _OVERHEAD,
    ),
    MetricRow(
        "llm_queue_seconds", "histogram", ("model", "tenant"), Source.GENERATION,
        "Time that a generation waited for a slot at an engine", _DURATION,
    ),
    MetricRow(
        "llm_tokens_per_second", "histogram", ("model",), Source.GENERATION,
        "Tokens per second after the first", _SPEED,
    ),
    MetricRow(
        "llm_inter_token_latency_seconds", "histogram", ("model",), Source.GENERATION,
        "Mean time from one token of a stream to its next, once for each token", _LATENCY,
    ),
    MetricRow(
        "roundhouse_prefix_tokens_total", "counter", ("engine", "result"), Source.GENERATION,
        "Prompt tokens by whether the engine was believed to hold them, and did",
    ),
    MetricRow(
        "roundhouse_expected_ttft_seconds", "histogram", ("model",), Source.GENERATION,
        "Expected time to the first token of streams", _DURATION,
    ),
    MetricRow(
        "llm_gpu_seconds_total", "counter", ("tenant", "model", "kind"), Source.REQUEST | Source.GENERATION,
        "Seconds of generation, spent by engines and saved by the cache",
    ),
    MetricRow(
        "llm_energy_joules_total", "counter", ("tenant", "model", "kind"), Source.REQUEST | Source.GENERATION,
        "Energy of generations, spent by engines and saved by the cache",
    ),
    MetricRow(
        "llm_tokens_total", "counter", ("tenant", "model", "kind"), Source.REQUEST | Source.GENERATION,
        "Prompt, generated and saved tokens",
    ),
    MetricRow(
        "llm_cache_requests_total", "counter", ("tenant", "model", "result"), Source.REQUEST,
        "Requests by cache result",
    ),
    MetricRow(
        "llm_cache_writes_total", "counter", ("result",), Source.GENERATION | Source.EVENT,
        "Responses by cache write result",
    ),
    MetricRow(
        "llm_cache_entries_damaged_total", "counter", (), Source.EVENT,
        "Entries read with a wrong checksum or invalid fields",
    ),
    MetricRow(
        "roundhouse_kept_responses_total", "counter", ("result",), Source.EVENT,
        "Responses of /v1/responses that were to be kept for later turns, by result",
    ),
    MetricRow(
        "roundhouse_batch_lines_total", "counter", ("result",), Source.EVENT,
        "Lines of batches that have got a result in this process",
    ),
    MetricRow(
        "llm_requests_rejected_total", "counter", ("reason", "tenant"), Source.REQUEST | Source.EVENT,
        "Requests rejected before an engine was selected",
    ),
    MetricRow(
        "llm_retries_total", "counter", ("engine", "reason"), Source.GENERATION, "Failed attempts at an engine",
    ),
    MetricRow(
        "llm_fallbacks_total", "counter", ("model", "fallback"), Source.REQUEST, "Requests served by a fallback model",
    ),
    MetricRow(
        "llm_engine_wakes_total", "counter", ("model", "result"), Source.EVENT,
        "Requests that found all engines of their model down, by what became of them",
    ),
    MetricRow(
        "llm_engine_wake_seconds", "histogram", ("model",), Source.EVENT,
        "Seconds that a request waited until an engine of its model had started", _START,
    ),
    MetricRow(
        "llm_gpu_switches_total", "counter", ("gpu", "engine", "result"), Source.EVENT,
        "Switches of a GPU to another engine, by whether that has woken up",
    ),
    MetricRow(
        "llm_gpu_switch_seconds", "histogram", ("gpu",), Source.EVENT,
        "Seconds from the decision to wake an engine up until it took requests", _START,
    ),
    MetricRow(
        "llm_continuations_total", "counter", ("model", "reason", "result"), Source.GENERATION,
        "Streams that an engine broke off, by whether another engine went on",
    ),
    MetricRow(
        "llm_continuation_tokens_total", "counter", ("model",), Source.GENERATION,
        "Tokens of the prompt and the response that engines processed again to go on",
    ),
    MetricRow(
        "roundhouse_audit_lost_total", "counter", (), Source.EVENT, "Administrators' changes that are not in the audit",
    ),
    MetricRow(
        "roundhouse_spans_dropped_total", "counter", ("reason",), Source.EVENT, "Traced events that were not exported",
    ),
    MetricRow(
        "roundhouse_breaker_state", "gauge", ("engine",), Source.PROBE,
        "Breaker state: 0 closed, 1 half-open, 2 open", workers="livemax",
    ),
    MetricRow(
        "llm_requests_in_flight", "gauge", ("engine",), Source.PROBE,
        "Requests in flight at an engine", workers="livesum",
    ),
    MetricRow(
        "llm_requests_queued", "gauge", ("model",), Source.EVENT,
        "Requests waiting in the queue for an engine", workers="livesum",
    ),
    MetricRow(
        "roundhouse_batch_lines_in_flight", "gauge", (), Source.EVENT,
        "Lines of batches that this process has sent and that have no response", workers="livesum",
    ),
    MetricRow(
        "roundhouse_batches_open", "gauge", ("state",), Source.EVENT,
        "Batches of all routers that have not ended, by what happens to them", workers="livemostrecent",
    ),
    MetricRow(
        "roundhouse_engine_up", "gauge", ("engine",), Source.PROBE,
        "Whether the engine is up: 1 or 0", workers="livemin",
    ),
    MetricRow(
        "roundhouse_engine_asleep", "gauge", ("engine",), Source.PROBE,
        "Whether requests of the engine's model wait for an engine to start: 1 or 0", workers="livemin",
    ),
    MetricRow(
        "roundhouse_redis_up", "gauge", (), Source.PROBE, "Whether Redis is up: 1 or 0", workers="livemin",
    ),
    MetricRow(
        "roundhouse_engine_tokens_per_second", "gauge", ("engine", "task"), Source.PROBE,
        "Measured tokens per second of one request, by task", workers="livemostrecent",
    ),
    MetricRow(
        "roundhouse_draft_pays", "gauge", ("engine", "task"), Source.PROBE,
        "Whether the draft model speeds up the task: 1 or 0", workers="livemostrecent",
    ),
    MetricRow(
        "vllm_kv_cache_usage", "gauge", ("engine",), Source.PROBE,
        "Share of the engine's KV cache in use, 0 to 1", workers="livemostrecent",
    ),
    MetricRow(
        "vllm_prefix_cache_hit_rate", "gauge", ("engine",), Source.PROBE,
        "Share of prompt tokens found in the prefix cache", workers="livemostrecent",
    ),
    MetricRow(
        "vllm_spec_acceptance_rate", "gauge", ("engine",), Source.PROBE,
        "Share of draft tokens accepted by the target model", workers="livemostrecent",
    ),
    MetricRow(
        "vllm_spec_tokens_per_step", "gauge", ("engine",), Source.PROBE,
        "Tokens per decoding step with the draft model", workers="livemostrecent",
    ),
    MetricRow("llm_cache_hit_ratio", "gauge", ("model",), Source.PAGE, "Share of hits among cache lookups"),
    MetricRow(
        "roundhouse_engine_capacity", "gauge", ("engine",), Source.PAGE,
        "Share of its in-flight limit that the engine may get",
    ),
    MetricRow(
        "roundhouse_engine_temperature_celsius", "gauge", ("engine",), Source.PAGE,
        "Highest temperature of the engine's GPUs",
    ),
    MetricRow(
        "roundhouse_engine_power_watts", "gauge", ("engine",), Source.PAGE,
        "Power draw of the engine's GPUs", unit="watts",
    ),
    MetricRow(
        "roundhouse_watchdog_restarts_total", "counter", ("engine", "reason"), Source.PAGE,
        "Restarts of the engine by the watchdog",
    ),
    MetricRow(
        "roundhouse_engine_info", "info", ("engine", "model", "task", "draft"), Source.PAGE,
        "1; the engine's model, task, and the draft that the configuration names",
    ),
    MetricRow(
        "roundhouse_draft_tokens_per_step", "gauge", ("engine", "bin"), Source.PAGE,
        "Tokens per decoding step with the draft model, by bin of the classifier's score: 0 certainly chat, 7 code",
    ),
    MetricRow(
        "roundhouse_problem", "gauge", ("severity", "kind", "subject", "problem"), Source.PAGE,
        "1 for each thing that is wrong, in words",
    ),
)  # fmt: skip

METRICS: Final[Mapping[str, MetricRow]] = {row.name: row for row in _ROWS}
