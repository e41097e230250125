"""The figures of a run, their medians over seeds, and the tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median
from typing import Final

from benchmarks.routing.simulation import Request, Run, Sample

LOADED: Final = 2.0
"""Mean requests in flight per replica from which on a sample counts for the imbalance."""

AROUND_CHANGES: Final = {"before": (-8.0, 0.0), "0-5 s": (0.0, 5.0), "10-20 s": (10.0, 20.0)}


@dataclass(frozen=True)
class Figures:
    """Of one policy and workload. Times to the first token (`ttft`) and to the last (`total`) are in seconds.

    - `hit_share`: the share of prompt tokens that was found in prefix caches.
    - `imbalance`: the most requests in flight at a replica, divided by the mean of all; the mean over time.
    - `around_changes`: for each change of the replicas, the hit share before and after it.
    - `hits_over_time`: the hit share of the requests that were sent in each interval, by its start.
    """

    workload: str
    policy: str
    seed: int
    requests: int
    failed: float
    hit_share: float
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    ttft_mean: float
    total_mean: float
    tokens_per_second: float
    imbalance: float
    preemptions: float
    around_changes: dict[str, dict[str, float]]
    hits_over_time: dict[float, float]


def figures(run: Run, seed: int) -> Figures:
    complete = [request for request in run.requests if request.done is not None and not request.failed]
    ttft = sorted(request.first - request.sent for request in complete if request.first is not None)
    span = max((request.done for request in complete if request.done is not None), default=0.0)
    return Figures(
        workload=run.workload,
        policy=run.policy,
        seed=seed,
        requests=len(run.requests),
        failed=len(run.requests) - len(complete),
        hit_share=hit_share(complete),
        ttft_p50=percentile(ttft, 0.5),
        ttft_p95=percentile(ttft, 0.95),
        ttft_p99=percentile(ttft, 0.99),
        ttft_mean=fmean(ttft) if ttft else 0.0,
        total_mean=fmean(request.done - request.sent for request in complete if request.done) if complete else 0.0,
        tokens_per_second=sum(request.sequence.answer for request in complete) / span if span else 0.0,
        imbalance=imbalance(run.samples),
        preemptions=run.preemptions,
        around_changes={
            change.label: {
                name: hit_share(request for request in complete if low <= request.sent - change.at < high)
                for name, (low, high) in AROUND_CHANGES.items()
            }
            for change in run.changes
        },
        hits_over_time=hits_over_time(complete, 4.0),
    )


def hit_share(requests: Iterable[Request]) -> float:
    sequences = [request.sequence for request in requests]
    prompt = sum(sequence.prompt for sequence in sequences)
    return sum(sequence.cached for sequence in sequences) / prompt if prompt else 0.0


def hits_over_time(requests: Sequence[Request], interval: float) -> dict[float, float]:
    ordered = sorted(requests, key=lambda request: request.sent)
    groups = groupby(ordered, lambda request: interval * (request.sent // interval))
    return {start: hit_share(list(group)) for start, group in groups}


def imbalance(samples: Sequence[Sample]) -> float:
    loaded = [sample.in_flight for sample in samples if fmean(sample.in_flight) >= LOADED]
    return fmean(max(counts) / fmean(counts) for counts in loaded) if loaded else 1.0


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


# -- tables -----------------------------------------------------------------------------------------------------------

COLUMNS: Final[dict[str, Callable[[Figures], tuple[float, str]]]] = {
    "hits": lambda one: (one.hit_share * 100, ".1f"),
    "TTFT p50": lambda one: (one.ttft_p50 * 1000, ".0f"),
    "p95": lambda one: (one.ttft_p95 * 1000, ".0f"),
    "p99": lambda one: (one.ttft_p99 * 1000, ".0f"),
    "mean": lambda one: (one.ttft_mean * 1000, ".0f"),
    "total": lambda one: (one.total_mean * 1000, ".0f"),
    "tokens/s": lambda one: (one.tokens_per_second, ".0f"),
    "imbalance": lambda one: (one.imbalance, ".2f"),
    "preemptions": lambda one: (one.preemptions, ".0f"),
    "failed": lambda one: (one.failed, ".0f"),
}


def table(results: Sequence[Figures]) -> str:
    """A line for each workload and policy, in their order, with medians over the seeds."""
    lines = [_line(["workload", "policy", *COLUMNS]), _line(["---"] * (2 + len(COLUMNS)))]
    for (workload, policy), ones in _grouped(results):
        cells = []
        for column in COLUMNS.values():
            values = [column(one) for one in ones]
            cells.append(format(median(value for value, _ in values), values[0][1]))
        lines.append(_line([workload, policy, *cells]))
    return "\n".join(lines)


def change_table(results: Sequence[Figures]) -> str:
    """The hit share around each change of the replicas; empty without any."""
    lines = []
    for (workload, policy), ones in _grouped(results):
        for label in ones[0].around_changes:
            shares = [median(one.around_changes[label][name] for one in ones) for name in AROUND_CHANGES]
            lines.append(_line([workload, policy, label, *(f"{share * 100:.1f}" for share in shares)]))
    if not lines:
        return ""
    head = ["workload", "policy", "change", *(f"hits {name}" for name in AROUND_CHANGES)]
    return "\n".join([_line(head), _line(["---"] * len(head)), *lines])


def _grouped(results: Sequence[Figures]) -> list[tuple[tuple[str, str], list[Figures]]]:
    groups: dict[tuple[str, str], list[Figures]] = {}
    for one in results:
        groups.setdefault((one.workload, one.policy), []).append(one)
    return list(groups.items())


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
