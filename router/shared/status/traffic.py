"""The traffic of all routers, minute by minute, in Redis.

    rh:1:traffic:{minute}     a hash: a count's name -> its sum over all routers; `minute` in minutes since the epoch

The names are those of TrafficSums; `rejected/REASON/TENANT` for the parts of `rejected`; and `ttft/RESULT/LOWER/UPPER`
for a bucket of the histogram of times to the first token: how many requests with this cache result were between these
bounds, in seconds. The values of gpu_seconds are in milliseconds, since Redis adds up integers exactly.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from router.core.cache.redis_keys import traffic_key
from router.net.redis.commands import Command
from router.net.redis.replies import hash_fields
from router.shared.status.problems import RecentTraffic
from router.shared.status.status_documents import FirstTokenTimes, LastHour, MinuteRow, Percentiles, RefusedRow

MAX_MINUTES: Final = 120
"""Minutes that Redis keeps."""

MINUTE: Final = 60
"""Seconds."""

TrafficCounts = Mapping[str, int]
"""Counts by name; a missing one is 0."""

MAX_REFUSED: Final = 50
"""Pairs of reason and tenant for which rejected requests are counted, the most frequent ones."""

REJECTED_PREFIX: Final = "rejected/"
"""With what the name of such a pair begins."""

_TTL: Final = (MAX_MINUTES + 1) * MINUTE
_TTFT: Final = "ttft"
_MAX_DIGITS: Final = 18  # of a count
_COUNTS: Final = (
    "requests", "hits", "misses", "coalesced", "stale", "bypass", "rejected", "errors",
    "prompt_tokens", "completion_tokens", "saved_tokens",
)  # fmt: skip
SECONDS: Final = ("gpu_seconds_spent", "gpu_seconds_saved")
"""The names whose values are stored in milliseconds."""


def first_token_name(cache_result: str, lower: str, upper: str) -> str:
    """The name of a bucket. `cache_result`: as in X-Cache. Bounds in seconds, as Prometheus writes them."""
    return f"{_TTFT}/{cache_result}/{lower}/{upper}"


def rejected_name(reason: str, tenant: str) -> str:
    return f"{REJECTED_PREFIX}{reason}/{tenant}"


def minute_of(now: float) -> int:
    return int(now // MINUTE)


def add_commands(minute: int, counts: TrafficCounts) -> list[Command]:
    key = traffic_key(minute)
    commands: list[Command] = [("HINCRBY", key, name, count) for name, count in counts.items()]
    return [*commands, ("EXPIRE", key, _TTL)]


def read_commands(minutes: Iterable[int]) -> list[Command]:
    return [("HGETALL", traffic_key(minute)) for minute in minutes]


def decode_counts(reply: Any) -> TrafficCounts:
    """The counts in a reply to `read_commands`; what is no count is left out."""
    return {
        name.decode("ascii", "replace"): int(value)
        for name, value in hash_fields(reply).items()
        if value.isdigit() and len(value) <= _MAX_DIGITS
    }


def minute_row(minute: int, counts: TrafficCounts) -> MinuteRow:
    times = FirstTokenTimes(hit=_percentiles(_buckets(counts, "HIT")), miss=_percentiles(_buckets(counts, "MISS")))
    return MinuteRow(at=minute * MINUTE, ttft_ms=times, refused=_refused([counts]), **_sums(counts))


def last_hour(minutes: Iterable[TrafficCounts]) -> LastHour:
    total: dict[str, int] = {}
    for counts in minutes:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    looked_up = sum(total.get(name, 0) for name in ("hits", "misses", "coalesced", "stale"))
    times = _percentiles(_buckets(total))
    return LastHour(
        hit_ratio=total.get("hits", 0) / looked_up if looked_up else None,
        ttft_p50_ms=times.p50,
        ttft_p99_ms=times.p99,
        **_sums(total),
    )


def recent_traffic(minutes: Sequence[TrafficCounts]) -> RecentTraffic:
    return RecentTraffic(
        requests=sum(counts.get("requests", 0) for counts in minutes),
        errors=sum(counts.get("errors", 0) for counts in minutes),
        refused=_refused(minutes),
    )


def _refused(minutes: Iterable[TrafficCounts]) -> tuple[RefusedRow, ...]:
    totals: dict[str, int] = {}
    for counts in minutes:
        for name, count in counts.items():
            if name.startswith(REJECTED_PREFIX):
                totals[name] = totals.get(name, 0) + count
    rows = []
    for name in sorted(totals, key=lambda each: (-totals[each], each))[:MAX_REFUSED]:
        reason, _, tenant = name.removeprefix(REJECTED_PREFIX).partition("/")
        if reason and tenant:
            rows.append(RefusedRow(reason=reason, tenant=tenant, count=totals[name]))
    return tuple(rows)


def _sums(counts: TrafficCounts) -> dict[str, Any]:
    sums: dict[str, Any] = {name: counts.get(name, 0) for name in _COUNTS}
    return sums | {name: counts.get(name, 0) / 1000 for name in SECONDS}


_Buckets = Mapping[tuple[float, float], int]
"""Counts by lower and upper bound in seconds."""


def _buckets(counts: TrafficCounts, cache_result: str | None = None) -> _Buckets:
    """Those of a cache result, or of all."""
    buckets: dict[tuple[float, float], int] = {}
    for name, count in counts.items():
        kind, _, rest = name.partition("/")
        result, _, bounds = rest.partition("/")
        if kind == _TTFT and cache_result in (None, result):
            lower, _, upper = bounds.partition("/")
            try:
                bucket = (float(lower), float(upper))
            except ValueError:
                continue
            buckets[bucket] = buckets.get(bucket, 0) + count
    return buckets


def _percentiles(buckets: _Buckets) -> Percentiles:
    return Percentiles(p50=_quantile_ms(buckets, 0.5), p99=_quantile_ms(buckets, 0.99))


def _quantile_ms(buckets: _Buckets, quantile: float) -> float | None:
    """A quantile in milliseconds; None without a count.

    It is interpolated within its bucket; in the bucket without an upper bound, it is the lower one. Source: Prometheus'
    histogram_quantile.
    """
    rank = quantile * sum(buckets.values())
    for (lower, upper), count in sorted(buckets.items()):
        if 0 < rank <= count:
            return round(1000 * (lower if upper == math.inf else lower + (upper - lower) * rank / count), 3)
        rank -= count
    return None
