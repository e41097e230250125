"""The results of a load: counts, times by cache status, and whether the generator was fast enough to trust them."""

from collections import Counter, defaultdict
from typing import Any, Final

from rich import box
from rich.table import Table

from benchmarks.chat_connection import LEFT, Response
from benchmarks.latency_histogram import LatencyHistogram

LAG_LIMIT: Final = 0.01
"""Seconds. If 1 % of the generator's timers are later than this, its figures are not valid."""

_MAX_KINDS: Final = 50  # of errors that are counted by kind; a server could send a new code with each response
_NO_CACHE: Final = "(none)"  # a response without X-Cache


class Times:
    """Times of responses with one cache status: to the first event of streams, and to the last byte of all."""

    def __init__(self) -> None:
        self.first = LatencyHistogram()
        self.total = LatencyHistogram()


class LoadResults:
    """What a load has shown so far. `seconds`: from the first arrival to the last one.

    `lag`: how much later than intended the generator's timers ran. `gaps`: between two reads of a stream's events.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.completed = 0
        self.left = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.seconds = 0.0
        self.wanted_followers = 0
        self.followers = 0
        self.errors: Counter[str] = Counter()
        self.times: defaultdict[str, Times] = defaultdict(Times)
        self.gaps = LatencyHistogram()
        self.lag = LatencyHistogram()

    def add(self, response: Response, started: float) -> None:
        """`started`: the time from which the request counts."""
        if response.error == LEFT:
            self.left += 1
        elif response.error is not None:
            self.add_error(response.error)
        else:
            self.completed += 1
            times = self.times[response.cache or _NO_CACHE]
            if response.first is not None:
                times.first.add(response.first - started)
            times.total.add(response.ended - started)

    def add_error(self, kind: str) -> None:
        self.errors[kind if kind in self.errors or len(self.errors) < _MAX_KINDS else "other"] += 1

    @property
    def failed(self) -> int:
        return self.errors.total()

    @property
    def all_times(self) -> Times:
        """Those of all completed responses."""
        result = Times()
        for times in self.times.values():
            result.first.include(times.first)
            result.total.include(times.total)
        return result

    @property
    def doubts(self) -> list[str]:
        """Why the figures are not valid; empty if they are."""
        if self.lag.count and self.lag.percentile(0.99) > LAG_LIMIT:
            late = self.lag.percentile(0.99) * 1000
            return [f"the generator itself was late: 1 % of its timers by {late:.0f} ms or more"]
        return []

    def summary(self) -> dict[str, Any]:
        """For JSON."""
        everything = self.all_times
        return {
            "valid": not self.doubts,
            "doubts": self.doubts,
            "seconds": round(self.seconds, 3),
            "sent": self.sent,
            "sent_per_second": round(self.sent / self.seconds, 2) if self.seconds else None,
            "completed": self.completed,
            "left": self.left,
            "failed": self.failed,
            "errors": dict(self.errors.most_common()),
            "in_flight_at_most": self.most_in_flight,
            "followers_sent": self.followers,
            "cache": {name: times.total.count for name, times in sorted(self.times.items())},
            "first_event": {
                "all": everything.first.summary(),
                **{name: times.first.summary() for name, times in sorted(self.times.items())},
            },
            "last_byte": {
                "all": everything.total.summary(),
                **{name: times.total.summary() for name, times in sorted(self.times.items())},
            },
            "event_gap": self.gaps.summary(),
            "generator_lag": self.lag.summary(),
        }


def results_table(results: LoadResults) -> Table:
    """Milliseconds, one row per cache status and kind of time."""
    table = Table("milliseconds", "count", "p50", "p90", "p99", "p99.9", "max", box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.no_wrap = True
        column.justify = "right" if column.header != "milliseconds" else "left"

    def add(name: str, histogram: LatencyHistogram) -> None:
        if histogram.count:
            shares = (0.5, 0.9, 0.99, 0.999)
            figures = [*(histogram.percentile(share) for share in shares), histogram.max]
            table.add_row(name, f"{histogram.count:,}", *(f"{figure * 1000:,.1f}" for figure in figures))

    for name, times in sorted(results.times.items()):
        add(f"{name}, first event", times.first)
        add(f"{name}, last byte", times.total)
    if len(results.times) > 1:
        add("all, first event", results.all_times.first)
        add("all, last byte", results.all_times.total)
    add("between events", results.gaps)
    add("generator's lag", results.lag)
    return table
