"""Counts requests of one kind in plain numbers, which are flushed to prometheus_client from time to time.

Theory of operation. A counter of prometheus_client takes a lock for each increment, and with several workers it writes
to a memory-mapped file too; a histogram also searches for the bucket. For a hit, that cost as much as the look-up. So a
request only appends its numbers to lists, and a flush passes on many of them: sorted, they need one search a bucket.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from prometheus_client import Histogram

Increment = Callable[[float], None]


class BatchHistogram(Histogram):
    """A histogram that observes many values at once."""

    def observe_many(self, values: list[float]) -> None:
        values.sort()
        self._sum.inc(sum(values))
        counted = 0
        # prometheus_client keeps a count for each bucket alone, and adds them up when it renders.
        for bucket, bound in zip(self._buckets, self._upper_bounds, strict=True):
            below = bisect_right(values, bound)
            if below > counted:
                bucket.inc(below - counted)
                counted = below


class RequestSeries:
    """The requests of one kind since the last flush; Telemetry defines the numbers.

    - `served_at_once`: the first token comes with the complete response.
    - `line_template`: see AccessLog.
    """

    __slots__ = (
        "_duration_histogram",
        "_first_token_histogram",
        "_overhead_histogram",
        "_request_counters",
        "_saved_counter",
        "durations",
        "first_token_times",
        "line_template",
        "overheads",
        "saved_tokens",
        "served_at_once",
    )  # fmt: skip

    def __init__(
        self,
        *,
        line_template: str,
        request_counters: Sequence[Increment],
        duration_histogram: BatchHistogram,
        overhead_histogram: BatchHistogram | None,
        first_token_histogram: BatchHistogram | None,
        saved_counter: Increment | None,
        served_at_once: bool,
    ) -> None:
        """`request_counters` count requests, the others the lists' values; None: does not apply to this kind."""
        self.line_template = line_template
        self.served_at_once = served_at_once
        self.durations: list[float] = []
        self.overheads: list[float] = []
        self.first_token_times: list[float] = []
        self.saved_tokens = 0
        self._request_counters = request_counters
        self._duration_histogram = duration_histogram
        self._overhead_histogram = overhead_histogram
        self._first_token_histogram = first_token_histogram
        self._saved_counter = saved_counter

    def flush(self) -> None:
        for count in self._request_counters:
            count(len(self.durations))
        for batched, values in (
            (self._duration_histogram, self.durations),
            (self._overhead_histogram, self.overheads),
            (self._first_token_histogram, self.first_token_times),
        ):
            if batched is not None and values:
                batched.observe_many(values)
            values.clear()
        if self._saved_counter is not None:
            self._saved_counter(self.saved_tokens)
        self.saved_tokens = 0


class GenerationSeries:
    """The generations for one tenant at one model since the last flush.

    `speeds`: tokens per second of the streamed ones. `dirty`: a flush is scheduled.
    """

    __slots__ = (
        "_completion_counter",
        "_prompt_counter",
        "_speed_histogram",
        "completion_tokens",
        "dirty",
        "prompt_tokens",
        "speeds",
    )

    def __init__(
        self, *, prompt_counter: Increment, completion_counter: Increment, speed_histogram: BatchHistogram
    ) -> None:
        self.dirty = False
        self.prompt_tokens = self.completion_tokens = 0
        self.speeds: list[float] = []
        self._prompt_counter = prompt_counter
        self._completion_counter = completion_counter
        self._speed_histogram = speed_histogram

    def flush(self) -> None:
        self._prompt_counter(self.prompt_tokens)
        self._completion_counter(self.completion_tokens)
        if self.speeds:
            self._speed_histogram.observe_many(self.speeds)
            self.speeds.clear()
        self.prompt_tokens = self.completion_tokens = 0
        self.dirty = False


class PendingCounter:
    """A counter's increments since the last flush."""

    __slots__ = ("_increment", "pending")

    def __init__(self, increment: Increment) -> None:
        self.pending = 0
        self._increment = increment

    def flush(self) -> None:
        self._increment(self.pending)
        self.pending = 0
