"""Exemplars of the histograms: for each bucket, the trace of a recent request in it.

prometheus_client keeps exemplars for a single process only, so they are kept here, and added to the samples when a page
is made. With several workers, a page has those of the worker that made it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from router.telemetry.metric_table import METRICS

TRACE_ID: Final = "trace_id"

TracedValue = tuple[float, str]
"""A value of a histogram, and the trace id of its request."""


class BucketExemplars:
    """The latest exemplar of each bucket of one series."""

    __slots__ = ("_bounds", "_by_bound", "_names")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper bounds of the buckets, without the last one, which is infinite."""
        self._bounds = bounds
        self._names = [*map(floatToGoString, bounds), "+Inf"]
        self._by_bound: dict[str, Exemplar] = {}

    def observe(self, values: Iterable[TracedValue], now: float) -> None:
        """`now`: seconds since the epoch, about when the requests ended."""
        latest = {self._names[bisect_left(self._bounds, traced[0])]: traced for traced in values}
        for name, (value, trace_id) in latest.items():
            self._by_bound[name] = Exemplar({TRACE_ID: trace_id}, value, round(now, 3))

    def of_bucket(self, bound: str) -> Exemplar | None:
        return self._by_bound.get(bound)


class HistogramExemplars:
    """The exemplars of one histogram, by the values of its labels."""

    def __init__(self, name: str) -> None:
        """`name`: as in the table of metrics."""
        row = METRICS[name]
        self._name, self._labels, self._bounds = row.family, row.labels, row.buckets
        self._series: dict[tuple[str, ...], BucketExemplars] = {}

    def labels(self, *values: str) -> BucketExemplars:
        return self._series.setdefault(values, BucketExemplars(self._bounds))

    def add_to(self, family: Metric) -> None:
        """Adds them to the samples, if this is the family of the histogram."""
        if family.name == self._name and self._series:
            family.samples = [self._with_exemplar(sample) for sample in family.samples]

    def _with_exemplar(self, sample: Sample) -> Sample:
        labels: Mapping[str, str] = sample.labels
        series = self._series.get(tuple(labels.get(name, "") for name in self._labels))
        exemplar = series.of_bucket(labels["le"]) if series is not None and "le" in labels else None
        return sample._replace(exemplar=exemplar) if exemplar is not None else sample
