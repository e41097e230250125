"""What is counted of one kind of exchange, in plain numbers at first, and told to prometheus_client now and then.

Theory of operation. A counter of prometheus_client takes a lock for each step, and in a server of several workers a
place in a file as well; a histogram looks for its bucket besides. For a hit, that was as much work as finding it. So a
request only adds its numbers to lists, and many of them are told at once: what is sorted needs one look a bucket.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from prometheus_client import Histogram

Increment = Callable[[float], None]


class BatchHistogram(Histogram):
    """A histogram that can be told many values at once."""

    def observe_many(self, values: list[float]) -> None:
        """Observes each of the values, which it sorts."""
        values.sort()
        self._sum.inc(sum(values))
        told = 0
        for bucket, bound in zip(self._buckets, self._upper_bounds, strict=True):
            below = bisect_right(values, bound)
            if below > told:
                bucket.inc(below - told)
                told = below


class RequestSeries:
    """What the exchanges of one kind came to since that was told last; see Telemetry for what the numbers are.

    - `at_once`: whether its first token was there when the whole answer was.
    - `line`: how its line in the log looks; see AccessLog.
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
        """`each` counts exchanges, the others what the lists hold; what does not go with the kind is None."""
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
        """Tells all, and begins anew."""
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
    """What the generations of one tenant at one model came to since that was told last.

    `speeds`: tokens a second, of those that were streamed.
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
        """Tells all, and begins anew."""
        self._prompt_counter(self.prompt_tokens)
        self._completion_counter(self.completion_tokens)
        if self.speeds:
            self._speed_histogram.observe_many(self.speeds)
            self.speeds.clear()
        self.prompt_tokens = self.completion_tokens = 0
        self.dirty = False


class PendingCounter:
    """What a counter is to be counted up by."""

    __slots__ = ("_increment", "pending")

    def __init__(self, increment: Increment) -> None:
        self.pending = 0
        self._increment = increment

    def flush(self) -> None:
        """Tells it, and begins anew."""
        self._increment(self.pending)
        self.pending = 0
