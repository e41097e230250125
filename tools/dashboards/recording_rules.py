"""What dashboards and alerts compute from the metrics, recorded under names of the form level:metric:operations.

The level names the labels that remain. `instance` remains where a dashboard filters by it.
"""

from typing import Final, NamedTuple

from tools.dashboards.metrics import LABELS


class RecordingRule(NamedTuple):
    """`labels`: those that the recorded series have."""

    record: str
    expr: str
    labels: tuple[str, ...]


def _rate(metric: str, *labels: str) -> RecordingRule:
    """The rate per second over five minutes, summed over the labels that are not named."""
    assert set(labels) <= set(LABELS[metric]), metric
    base = metric.removesuffix("_total")
    kept = ("instance", *labels)
    record = f"{'_'.join(kept)}:{base}:rate5m"
    return RecordingRule(record, f"sum by ({', '.join(kept)}) (rate({metric}[5m]))", kept)


TTFT: Final = _rate("llm_time_to_first_token_seconds_bucket", "model", "cache", "le")
DURATION: Final = _rate("llm_request_duration_seconds_bucket", "model", "cache", "le")
INTER_TOKEN: Final = _rate("llm_inter_token_latency_seconds_bucket", "model", "le")
OVERHEAD: Final = _rate("llm_router_overhead_seconds_bucket", "cache", "le")
REQUESTS: Final = _rate("llm_requests_total", "tenant", "model", "status")
LOOKUPS: Final = _rate("llm_cache_requests_total", "tenant", "model", "result")
TOKENS: Final = _rate("llm_tokens_total", "tenant", "model", "kind")
GPU_SECONDS: Final = _rate("llm_gpu_seconds_total", "tenant", "model", "kind")
ENERGY: Final = _rate("llm_energy_joules_total", "tenant", "model", "kind")

HIT_RATIO: Final = RecordingRule(
    "model:llm_cache_hit_ratio:rate5m",
    # `or` gives 0, not nothing, to a model without a hit.
    f'(sum by (model) ({LOOKUPS.record}{{result="hit"}}) or 0 * sum by (model) ({LOOKUPS.record}{{result!="bypass"}}))'
    f' / (sum by (model) ({LOOKUPS.record}{{result!="bypass"}}) > 0)',
    ("model",),
)
ERROR_RATIO: Final = RecordingRule(
    "model:llm_requests_errors:ratio_rate5m",
    f'(sum by (model) ({REQUESTS.record}{{status=~"5..|broken"}}) or 0 * sum by (model) ({REQUESTS.record}))'
    f" / (sum by (model) ({REQUESTS.record}) > 0)",
    ("model",),
)
TTFT_P99: Final = RecordingRule(
    "model:llm_time_to_first_token_seconds:p99_rate5m",
    f"histogram_quantile(0.99, sum by (model, le) ({TTFT.record})) >= 0",
    ("model",),
)
RESTARTS: Final = RecordingRule(
    "engine:roundhouse_watchdog_restarts:increase1h",
    # increase() would miss the first restart, since the counter has no sample before it. An engine that was known an
    # hour ago without a restart had none.
    "max by (engine) (sum by (instance, engine) (roundhouse_watchdog_restarts_total)"
    " - (sum by (instance, engine) (roundhouse_watchdog_restarts_total offset 1h)"
    " or 0 * sum by (instance, engine) (roundhouse_engine_up offset 1h)))",
    ("engine",),
)

RATES: Final = (TTFT, DURATION, INTER_TOKEN, OVERHEAD, REQUESTS, LOOKUPS, TOKENS, GPU_SECONDS, ENERGY)
DERIVED: Final = (HIT_RATIO, ERROR_RATIO, TTFT_P99, RESTARTS)
"""They use the rates, so they are evaluated after them."""
