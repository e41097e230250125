"""What an engine did between two readings of its metrics."""

import msgspec

from engines.watchdog.scrape import Scrape


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """An engine between two readings; None is unknown, never 0.

    - `restarted`: its counters went back, so it is another process.
    - `hot`: its in-flight limit is lowered because of its temperature, so it may be slower than it was.
    - `generated`, `prefilled`: tokens per second; prompt tokens count if they were computed, not if they were cached.
    - `preemptions`: per second. `error_rate`: the share of the requests that ended with an internal error.
    - `time_to_first_token`: the mean of the first tokens in this time, in seconds.
    """

    healthy: bool
    restarted: bool = False
    hot: bool = False
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    generated: float | None = None
    prefilled: float | None = None
    preemptions: float | None = None
    prefix_cache_hit_rate: float | None = None
    error_rate: float | None = None
    time_to_first_token: float | None = None


def observe(before: Scrape | None, after: Scrape, *, hot: bool = False) -> Observation:
    """`before` is the previous reading, None for the first one."""
    restarted = before is not None and _went_back(before, after)
    known = before if before is not None and not restarted else None
    seconds = after.at - known.at if known is not None else 0.0

    def grown(name: str) -> float | None:
        first = getattr(known, name) if known is not None else None
        last = getattr(after, name)
        return last - first if first is not None and last is not None else None

    def rate(name: str) -> float | None:
        return _ratio(grown(name), seconds)

    return Observation(
        healthy=after.healthy,
        restarted=restarted,
        hot=hot,
        running=after.running,
        waiting=after.waiting,
        kv_cache_usage=after.kv_cache_usage,
        generated=rate("generated"),
        prefilled=rate("prefilled"),
        preemptions=rate("preemptions"),
        prefix_cache_hit_rate=_ratio(grown("prefix_hits"), grown("prefix_queries")),
        error_rate=_ratio(grown("failed"), grown("finished")),
        time_to_first_token=_ratio(grown("first_token_seconds"), grown("first_tokens")),
    )


def _went_back(before: Scrape, after: Scrape) -> bool:
    pairs = [(before.generated, after.generated), (before.finished, after.finished)]
    return any(first is not None and last is not None and last < first for first, last in pairs)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole is not None and whole > 0 else None
