"""This process' traffic for the status API, counted out of its metrics, so that a request costs nothing more."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from router.shared.status.traffic import MAX_REFUSED, REJECTED_PREFIX, SECONDS, first_token_name, rejected_name

# By the name of a sample: the label that decides, and by its value the name of the count.
_COUNTS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "llm_cache_requests_total": (
        "result",
        {"hit": "hits", "miss": "misses", "coalesced": "coalesced", "stale": "stale", "bypass": "bypass"},
    ),
    "llm_tokens_total": (
        "kind",
        {"prompt": "prompt_tokens", "completion": "completion_tokens", "saved": "saved_tokens"},
    ),
    "llm_gpu_seconds_total": ("kind", {"spent": "gpu_seconds_spent", "saved": "gpu_seconds_saved"}),
}
_REQUESTS: Final = "llm_requests_total"
_REJECTED: Final = "llm_requests_rejected_total"
_TTFT_BUCKET: Final = "llm_time_to_first_token_seconds_bucket"
SAMPLES: Final = (_REQUESTS, *_COUNTS, _REJECTED, _TTFT_BUCKET)
"""The samples that are counted."""


class TrafficCounter:
    """What was counted since the last `take`; see router.shared.status.traffic for the names of the counts.

    Counters have a value for each tenant, so these are read where prometheus_client keeps them: its samples take 15
    times as long, during which this process answers no request.
    """

    def __init__(self, registry: CollectorRegistry, flush: Callable[[], None]) -> None:
        """`registry`: the metrics of this process alone; `flush` passes all counts to it."""
        self._flush = flush
        collectors: Mapping[str, Any] = registry._names_to_collectors  # noqa: SLF001 - see above
        self._counters = {name: collectors[name] for name in (_REQUESTS, *_COUNTS) if name in collectors}
        self._rejected = collectors.get(_REJECTED)
        self._first_tokens = registry.restricted_registry((_TTFT_BUCKET,))
        self._taken = self._totals()  # the file of a former process with this pid may have counts

    def take(self) -> Mapping[str, int]:
        """Counts above 0."""
        self._flush()
        totals = self._totals()
        taken, self._taken = self._taken, totals
        return _without_rare_refusals(totals - taken)

    def _totals(self) -> Counter[str]:
        totals: Counter[str] = Counter()
        for name, counter in self._counters.items():
            if name == _REQUESTS:
                _add_requests(totals, _values_by_label(counter, "status"))
            else:
                label, names = _COUNTS[name]
                _add_counts(totals, names, _values_by_label(counter, label))
        if self._rejected is not None:
            _add_rejected(totals, self._rejected)
        for family in self._first_tokens.collect():
            _add_buckets(totals, family.samples)
        return totals


def _values_by_label(counter: Any, label: str) -> Mapping[str, float]:
    """The sums of a counter of prometheus_client by the value of one of its labels."""
    position = counter._labelnames.index(label)  # noqa: SLF001 - see TrafficCounter
    values: dict[str, float] = {}
    for labels, child in counter._metrics.items():  # noqa: SLF001 - as above
        values[labels[position]] = values.get(labels[position], 0.0) + child._value.get()  # noqa: SLF001 - as above
    return values


def _add_requests(totals: Counter[str], by_status: Mapping[str, float]) -> None:
    for status, value in by_status.items():
        totals["requests"] += int(value)
        totals["errors"] += int(value) if status.startswith("5") or status == "broken" else 0


def _add_counts(totals: Counter[str], names: Mapping[str, str], values: Mapping[str, float]) -> None:
    for label, name in names.items():
        value = values.get(label, 0.0)
        totals[name] += round(1000 * value if name in SECONDS else value)


def _add_rejected(totals: Counter[str], counter: Any) -> None:
    """In all, and by reason and tenant."""
    reason, tenant = (counter._labelnames.index(label) for label in ("reason", "tenant"))  # noqa: SLF001 - as above
    for labels, child in counter._metrics.items():  # noqa: SLF001 - as above
        value = int(child._value.get())  # noqa: SLF001 - as above
        totals["rejected"] += value
        totals[rejected_name(labels[reason], labels[tenant])] += value


def _without_rare_refusals(counts: Counter[str]) -> Counter[str]:
    """What is stored of a minute is bounded, however many tenants are refused."""
    refused = Counter({name: count for name, count in counts.items() if name.startswith(REJECTED_PREFIX)})
    for name, _ in refused.most_common()[MAX_REFUSED:]:
        del counts[name]
    return counts


def _add_buckets(totals: Counter[str], samples: Iterable[Sample]) -> None:
    """The buckets of a series follow each other, from the lowest bound to the highest, and include all lower ones."""
    below, lower = 0, "0"
    for sample in samples:
        cache_result, upper = sample.labels["cache"], sample.labels["le"]
        totals[first_token_name(cache_result, lower, upper)] += int(sample.value) - below
        below, lower = (int(sample.value), upper) if upper != "+Inf" else (0, "0")
