"""An upper bound for the hits of any policy with a limit of memory; see lab/eviction.py."""

from lab.eviction_traces import Trace


def bound(trace: Trace, limit: int, ttl: float) -> tuple[float, float]:
    """Shares of the seconds of generation, and of the requests, that are the most that hits can save.

    The two are bounds each for itself. An entry cannot be hit beyond its TTL, so each response is generated at least
    once in a `ttl`: an interval that crosses the end of the TTL, counted from the first request, is left out.
    """
    latest: dict[int, tuple[float, float]] = {}  # of each response: its last request, and the start of its TTL
    intervals: list[tuple[float, float]] = []  # seconds of generation, bytes times seconds
    total = 0.0
    for now, key in trace.requests:
        response = trace.responses[key]
        total += response.seconds
        before, created = latest.get(key, (now, -ttl))
        if now - created > ttl:
            created = now
        else:
            intervals.append((response.seconds, response.size * (now - before)))
        latest[key] = (now, created)
    capacity = limit * (trace.requests[-1][0] - trace.requests[0][0])
    hits = _fill([(1.0, cost) for _, cost in intervals], capacity)
    return _fill(intervals, capacity) / total, hits / len(trace.requests)


def _fill(items: list[tuple[float, float]], capacity: float) -> float:
    """The most value that fits, if the last item may be cut."""
    taken = 0.0
    for value, cost in sorted(items, key=lambda item: item[1] / item[0]):
        if cost > capacity:
            return taken + value * capacity / cost
        capacity -= cost
        taken += value
    return taken
