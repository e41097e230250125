"""prometheus_client's objects for the rows of the table: those that keep values, and families for one page."""

from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from router.telemetry.batch_histogram import BatchHistogram
from router.telemetry.metric_table import METRICS, Source

KEPT: Final = tuple(row for row in METRICS.values() if Source.PAGE not in row.source)
"""The rows of objects that keep values."""


class MetricObjects(NamedTuple):
    """The objects by their names in the table. They are looked up at the start only, where a wrong name fails."""

    counters: dict[str, Counter]
    gauges: dict[str, Gauge]
    histograms: dict[str, BatchHistogram]


def create_objects(registry: CollectorRegistry) -> MetricObjects:
    """One for each row, in the order of the table, which is that of the page."""
    objects = MetricObjects({}, {}, {})
    for row in KEPT:
        name, help_, labels = row.family, row.help, row.labels
        if row.kind == "counter":
            objects.counters[row.name] = Counter(name, help_, labels, registry=registry)
        elif row.kind == "histogram":
            objects.histograms[row.name] = BatchHistogram(name, help_, labels, buckets=row.buckets, registry=registry)
        else:
            objects.gauges[row.name] = Gauge(
                name, help_, labels, multiprocess_mode=row.workers or "all", registry=registry
            )
    return objects


def counter_family(name: str) -> CounterMetricFamily:
    row = METRICS[name]
    return CounterMetricFamily(row.family, row.help, labels=row.labels)


def gauge_family(name: str) -> GaugeMetricFamily:
    row = METRICS[name]
    return GaugeMetricFamily(row.family, row.help, labels=row.labels, unit=row.unit)


def info_family(name: str) -> InfoMetricFamily:
    row = METRICS[name]
    return InfoMetricFamily(row.family, row.help, labels=row.labels)
