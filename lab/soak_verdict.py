"""What a soak has shown: failures by their cause, trends of memory and descriptors. Plain functions of its records."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from lab.trend import Sample, Trend, Verdict, block_means, fit_trend, judge

MEMORY_LIMIT: Final = 10.0
"""MB per hour and process that count as flat. At 50 requests per second and one process, it is 55 bytes per request."""

DESCRIPTOR_LIMIT: Final = 30.0
"""Descriptors per hour and process that count as flat; a leak of one per restart of an engine would be 60."""

BLOCK: Final = 60.0
"""Seconds whose samples are averaged; the period of the faults, so that each block has one of each."""

AFTER_DEATH: Final = 3.0
"""Seconds after a death in which a response that it cut may end: the followers of a stream that Redis has lost wait."""


class Failure(NamedTuple):
    """A request that failed. Times in seconds since the start; `error`: its kind."""

    started: float
    ended: float
    error: str


class Death(NamedTuple):
    """`at`: seconds since the start; `cause`: an engine or Redis."""

    at: float
    cause: str


class SoakSample(NamedTuple):
    """One sample of the router and of Redis. `at`: seconds since the start; sizes in MB."""

    at: float
    rss_mb: float
    pss_mb: float
    uss_mb: float
    descriptors: int
    threads: int
    in_flight: int
    metric_lines: int
    redis_keys: int
    redis_mb: float
    redis_clients: int


class SoakFindings(NamedTuple):
    """`explained`: failures with the death of an engine or Redis, by what died and by error; `unexplained`: others."""

    memory: Trend
    memory_verdict: Verdict
    descriptors: Trend
    descriptors_verdict: Verdict
    explained: dict[str, Counter[str]]
    unexplained: Counter[str]
    leases_left: int
    failed_reloads: int

    @property
    def passed(self) -> bool:
        """Whether nothing failed without a cause and nothing was left; growth that is not known is no failure."""
        trends = (self.memory_verdict, self.descriptors_verdict)
        return not (self.unexplained or self.leases_left or self.failed_reloads or Verdict.GROWING in trends)


def classify_failures(
    failures: Sequence[Failure], deaths: Sequence[Death]
) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """Those during which something died, by what it was, and all others; of two deaths, the later one counts."""
    explained: dict[str, Counter[str]] = {}
    unexplained = Counter[str]()
    for failure in failures:
        within = [death for death in deaths if failure.started <= death.at <= failure.ended <= death.at + AFTER_DEATH]
        if within:
            explained.setdefault(max(within).cause, Counter())[failure.error] += 1
        else:
            unexplained[failure.error] += 1
    return explained, unexplained


def judge_soak(
    samples: Sequence[SoakSample], failures: Sequence[Failure], deaths: Sequence[Death], *,
    warm_up: float, processes: int, leases_left: int, failed_reloads: int,
) -> SoakFindings:  # fmt: skip
    """`warm_up`: seconds at the start whose samples are left out; `processes`: those of the router."""
    warm = [sample for sample in samples if sample.at >= warm_up]
    memory = fit_trend(block_means([Sample(sample.at, sample.uss_mb) for sample in warm], BLOCK))
    descriptors = fit_trend(block_means([Sample(sample.at, sample.descriptors) for sample in warm], BLOCK))
    explained, unexplained = classify_failures(failures, deaths)
    return SoakFindings(
        memory, judge(memory, MEMORY_LIMIT * processes), descriptors,
        judge(descriptors, DESCRIPTOR_LIMIT * processes), explained, unexplained, leases_left, failed_reloads,
    )  # fmt: skip


def as_json(findings: SoakFindings) -> dict[str, Any]:
    """For JSON, with infinite bounds as null."""
    return {
        "passed": findings.passed,
        "memory_mb_per_hour": {"verdict": findings.memory_verdict, **_trend(findings.memory)},
        "descriptors_per_hour": {"verdict": findings.descriptors_verdict, **_trend(findings.descriptors)},
        "explained_failures": {cause: dict(errors) for cause, errors in findings.explained.items()},
        "unexplained_failures": dict(findings.unexplained),
        "leases_left": findings.leases_left,
        "failed_reloads": findings.failed_reloads,
    }


def _trend(trend: Trend) -> dict[str, float | None]:
    return {name: round(value, 3) if abs(value) < float("inf") else None for name, value in trend._asdict().items()}
