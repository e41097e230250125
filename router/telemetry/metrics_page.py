"""The page at /metrics, made from the collected families, in Prometheus' text format or in OpenMetrics."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics

from router.shared.status.status_documents import Problem
from router.telemetry.metric_objects import gauge_family

TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = openmetrics.CONTENT_TYPE_LATEST


def collect(registry: CollectorRegistry, multiprocess_dir: str | None) -> list[Metric]:
    """The families of this process; or, if it shares a directory with others, those of all of them together."""
    if multiprocess_dir is None:
        return list(registry.collect())
    files = [str(path) for path in Path(multiprocess_dir).glob("*.db") if _has_header(path)]
    return list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]  # it has no types


def _has_header(path: Path) -> bool:
    # A file is empty for a moment after its process has created it, and for good if that is killed in this moment.
    # prometheus_client fails at it.
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:  # of a worker that died, see prepare_metrics
        return False


def render(families: list[Metric], *, as_openmetrics: bool) -> bytes:
    rendered = CollectorRegistry()
    rendered.register(_CollectedFamilies(families))
    page: bytes = openmetrics.generate_latest(rendered) if as_openmetrics else generate_latest(rendered)  # type: ignore[no-untyped-call]  # as above
    return page


class _CollectedFamilies:
    """Families that are collected already, in the form of a collector."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def drop_unknown_gauges(families: Iterable[Metric], engines: Iterable[str]) -> None:
    """Drops gauges that are NaN, and those of other engines; several workers cannot remove such samples."""
    kept = {None, *engines}
    for family in families:
        if family.type == "gauge":
            family.samples = [s for s in family.samples if s.labels.get("engine") in kept and not math.isnan(s.value)]


def hit_ratio(families: Iterable[Metric]) -> Metric:
    """The share of hits among the requests that were looked up, by model, since the start of the process."""
    hits: dict[str, float] = {}
    lookups: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if sample.name == "llm_cache_requests_total" and sample.labels["result"] != "bypass":
                model = sample.labels["model"]
                lookups[model] = lookups.get(model, 0) + sample.value
                hits[model] = hits.get(model, 0) + (sample.value if sample.labels["result"] == "hit" else 0)
    ratio = gauge_family("llm_cache_hit_ratio")
    for model, count in lookups.items():
        if count:
            ratio.add_metric([model], hits[model] / count)
    return ratio


def problem_family(problems: Iterable[Problem]) -> Metric:
    """`problems` as the worker that responds sees them. All see nearly the same, so the values are not summed."""
    family = gauge_family("roundhouse_problem")
    for problem in problems:
        family.add_metric([problem.severity, problem.kind, problem.subject, problem.words], 1)
    return family
