"""Counts requests of one kind in plain numbers, which are flushed to prometheus_client from time to time.

Theory of operation. A counter of prometheus_client takes a lock for each increment, and with several workers it writes
to a memory-mapped file too; a histogram also searches for the bucket. For a hit, that cost as much as the look-up. So a
request only appends its numbers to lists, and a flush passes on many of them: sorted, they need one search a bucket.
"""

import time
from collections.abc import Callable, Sequence

from router.telemetry.batch_histogram import BatchHistogram
from router.telemetry.exemplars import BucketExemplars, TracedValue
from router.telemetry.slow_threshold import SlowThreshold

Increment = Callable[[float], None]

RecordRequests = Callable[[int, int, float], None]
"""Gets the number of requests, and the tokens and seconds that their responses took to generate, all together."""

RecordGenerations = Callable[[float, float | None], None]
"""Gets the seconds of generations, and the joules of those whose energy is known; None if there are none."""


class RequestSeries:
    """The requests of one kind since the last flush; Telemetry defines the numbers.

    - `slow`: which of them are slow, or failed.
    - `served_at_once`: the first token comes with the complete response.
    - `line_template`: see AccessLog.
    - `saved_ms`: milliseconds of generation, like `saved_tokens`.
    """

    __slots__ = (
        "_duration_exemplars",
        "_duration_histogram",
        "_first_token_exemplars",
        "_first_token_histogram",
        "_overhead_histogram",
        "_record_requests",
        "_request_counters",
        "_saved_counter",
        "_traced_durations",
        "_traced_first_tokens",
        "durations",
        "first_token_times",
        "line_template",
        "overheads",
        "saved_ms",
        "saved_tokens",
        "served_at_once",
        "slow",
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
        record_requests: RecordRequests | None,
        exemplars: tuple[BucketExemplars, BucketExemplars],
        served_at_once: bool,
        slow: SlowThreshold,
    ) -> None:
        """`request_counters` count requests, the others the lists' values; None: does not apply to this kind.

        `exemplars`: of the durations, and of the first tokens.
        """
        self.line_template = line_template
        self.served_at_once = served_at_once
        self.slow = slow
        self.durations: list[float] = []
        self.overheads: list[float] = []
        self.first_token_times: list[float] = []
        self.saved_tokens = self.saved_ms = 0
        self._traced_durations: list[TracedValue] = []
        self._traced_first_tokens: list[TracedValue] = []
        self._request_counters = request_counters
        self._duration_histogram = duration_histogram
        self._overhead_histogram = overhead_histogram
        self._first_token_histogram = first_token_histogram
        self._saved_counter = saved_counter
        self._record_requests = record_requests
        self._duration_exemplars, self._first_token_exemplars = exemplars

    def add_trace(self, trace_id: str) -> None:
        """The trace of the request that was added last."""
        self._traced_durations.append((self.durations[-1], trace_id))
        if self.first_token_times:  # all requests of a kind have one, or none has
            self._traced_first_tokens.append((self.first_token_times[-1], trace_id))

    def flush(self) -> None:
        if self._record_requests is not None:
            self._record_requests(len(self.durations), self.saved_tokens, self.saved_ms / 1000)
        if self._traced_durations:
            self._flush_traces()
        self.slow.add(self.durations)
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
        self.saved_tokens = self.saved_ms = 0

    def _flush_traces(self) -> None:
        now = time.time()
        self._duration_exemplars.observe(self._traced_durations, now)
        self._first_token_exemplars.observe(self._traced_first_tokens, now)
        self._traced_durations, self._traced_first_tokens = [], []


class GenerationSeries:
    """The generations for one tenant at one model since the last flush.

    - `queue_times`: seconds.
    - `speeds`: tokens per second of the streamed ones. `latencies`: their mean seconds from one token to the next, and
      the number of tokens that this is the mean of.
    - `seconds` and `joules`: what they took; `joules` is None while none is known.
    - `dirty`: a flush is scheduled.
    """

    __slots__ = (
        "_completion_counter",
        "_latency_histogram",
        "_prompt_counter",
        "_queue_histogram",
        "_record_generations",
        "_speed_histogram",
        "completion_tokens",
        "dirty",
        "joules",
        "latencies",
        "prompt_tokens",
        "queue_times",
        "seconds",
        "speeds",
    )

    def __init__(
        self, *, prompt_counter: Increment, completion_counter: Increment, queue_histogram: BatchHistogram,
        speed_histogram: BatchHistogram, latency_histogram: BatchHistogram, record_generations: RecordGenerations,
    ) -> None:  # fmt: skip
        self.dirty = False
        self.prompt_tokens = self.completion_tokens = 0
        self.seconds = 0.0
        self.joules: float | None = None
        self.queue_times: list[float] = []
        self.speeds: list[float] = []
        self.latencies: list[tuple[float, int]] = []
        self._prompt_counter = prompt_counter
        self._completion_counter = completion_counter
        self._queue_histogram = queue_histogram
        self._speed_histogram = speed_histogram
        self._latency_histogram = latency_histogram
        self._record_generations = record_generations

    def add_work(self, seconds: float, joules: float | None) -> None:
        self.seconds += seconds
        if joules is not None:
            self.joules = joules + (self.joules or 0.0)

    def flush(self) -> None:
        self._prompt_counter(self.prompt_tokens)
        self._completion_counter(self.completion_tokens)
        self._queue_histogram.observe_many(self.queue_times)
        self.queue_times.clear()
        if self.speeds:
            self._speed_histogram.observe_many(self.speeds)
            self.speeds.clear()
        if self.latencies:
            self._latency_histogram.observe_weighted(self.latencies)
            self.latencies.clear()
        if self.seconds:
            self._record_generations(self.seconds, self.joules)
        self.prompt_tokens = self.completion_tokens = 0
        self.seconds, self.joules = 0.0, None
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
