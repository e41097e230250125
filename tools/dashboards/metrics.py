"""The samples that dashboards and alerts may use, with their labels, out of the table of metrics."""

from collections.abc import Mapping
from typing import Final

from router.telemetry.metric_table import METRICS, MetricRow

IN_NO_DASHBOARD: Final[Mapping[str, str]] = {
    "llm_cache_hit_ratio": "the dashboards show the ratio over five minutes, not since the start",
    "llm_engine_wake_seconds": "few fleets have engines that are started by demand",
    "llm_gpu_switches_total": "few fleets have engines that take turns at a GPU; /dashboard has a row for each",
    "llm_gpu_switch_seconds": "as llm_gpu_switches_total",
    "roundhouse_problem": "it is for the texts of alerts; nothing has samples while all is well",
    "roundhouse_kept_responses_total": "only clients that continue responses use it, and the log has what is wrong",
    "roundhouse_audit_lost_total": "a change while Redis is down is rare, and the log has it",
    "roundhouse_spans_dropped_total": "spans are dropped only with tracing on",
}
"""The metrics that no query uses, with the reason."""


def _sample(row: MetricRow) -> tuple[str, tuple[str, ...]]:
    """The name of what a query selects, with its labels: of a histogram, the buckets."""
    return (f"{row.name}_bucket", (*row.labels, "le")) if row.kind == "histogram" else (row.name, row.labels)


LABELS: Final[Mapping[str, tuple[str, ...]]] = dict(
    _sample(row) for row in METRICS.values() if row.name not in IN_NO_DASHBOARD
)
"""Without `job` and `instance`, which Prometheus adds."""
