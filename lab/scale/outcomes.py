"""What has become of the requests of a simulation, or of real ones: counts, shares and times to the first token."""

from collections import Counter
from typing import NamedTuple

HIT, FOLLOWER, MISS = "hit", "follower", "miss"


class Outcome(NamedTuple):
    """A request that has ended. `kind`: hit, follower, miss, or the code of the error that refused it.

    `first`, `total`: seconds to the first token and to the end. `local`: the hit came from the router's memory.
    """

    kind: str
    first: float
    total: float
    local: bool = False


class Summary(NamedTuple):
    """Shares of all requests; requests per second; times of answered requests in seconds."""

    requests: int
    hit: float
    local: float
    follower: float
    miss: float
    refused: float
    answered_per_s: float
    first_mean: float
    first_p50: float
    first_p99: float
    miss_first_mean: float
    miss_first_p99: float


def summarize(outcomes: list[Outcome], seconds: float) -> Summary:
    count = max(1, len(outcomes))
    kinds = Counter(outcome.kind for outcome in outcomes)
    answered = [outcome for outcome in outcomes if outcome.kind in (HIT, FOLLOWER, MISS)]
    first = sorted(outcome.first for outcome in answered)
    generated = sorted(outcome.first for outcome in answered if outcome.kind == MISS)
    return Summary(
        requests=len(outcomes),
        hit=kinds[HIT] / count,
        local=sum(outcome.local for outcome in outcomes) / count,
        follower=kinds[FOLLOWER] / count,
        miss=kinds[MISS] / count,
        refused=1 - len(answered) / count if outcomes else 0.0,
        answered_per_s=len(answered) / seconds,
        first_mean=sum(first) / max(1, len(first)),
        first_p50=quantile(first, 0.5),
        first_p99=quantile(first, 0.99),
        miss_first_mean=sum(generated) / max(1, len(generated)),
        miss_first_p99=quantile(generated, 0.99),
    )


def quantile(values: list[float], share: float) -> float:
    """Of sorted values; 0 without any."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0
