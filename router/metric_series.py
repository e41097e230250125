"""What is counted of one kind of exchange, in plain numbers at first, and told to prometheus_client now and then.

Theory of operation. A counter of prometheus_client takes a lock for each step, and in a server of several workers a
place in a file as well; a histogram looks for its bucket besides. For a hit, that was as much work as finding it. So a
request only adds its numbers to lists, and many of them are told at once: what is sorted needs one look a bucket.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from prometheus_client import Histogram

Count = Callable[[float], None]


class Batched(Histogram):
    """A histogram that can be told many values at once."""

    def add(self, values: list[float]) -> None:
        """Observes each of the values, which it sorts."""
        values.sort()
        self._sum.inc(sum(values))
        told = 0
        for bucket, bound in zip(self._buckets, self._upper_bounds, strict=True):
            below = bisect_right(values, bound)
            if below > told:
                bucket.inc(below - told)
                told = below


class Tally:
    """What the exchanges of one kind came to since that was told last; see Telemetry for what the numbers are.

    - `at_once`: whether its first token was there when the whole answer was.
    - `line`: how its line in the log looks; see AccessLog.
    """

    __slots__ = ("_each", "_first_token", "_overhead", "_saved", "_took", "at_once", "first_token", "line", "overhead",
                 "saved", "took")  # fmt: skip

    def __init__(
        self,
        *,
        line: str,
        each: Sequence[Count],
        took: Batched,
        overhead: Batched | None,
        first_token: Batched | None,
        saved: Count | None,
        at_once: bool,
    ) -> None:
        """`each` counts exchanges, the others what the lists hold; what does not go with the kind is None."""
        self.line = line
        self.at_once = at_once
        self.took: list[float] = []
        self.overhead: list[float] = []
        self.first_token: list[float] = []
        self.saved = 0
        self._each = each
        self._took = took
        self._overhead = overhead
        self._first_token = first_token
        self._saved = saved

    def tell(self) -> None:
        """Tells all, and begins anew."""
        for count in self._each:
            count(len(self.took))
        for batched, values in (
            (self._took, self.took), (self._overhead, self.overhead), (self._first_token, self.first_token),
        ):  # fmt: skip
            if batched is not None and values:
                batched.add(values)
            values.clear()
        if self._saved is not None:
            self._saved(self.saved)
        self.saved = 0


class Generated:
    """What the generations of one tenant at one model came to since that was told last.

    `speeds`: tokens a second, of those that were streamed.
    """

    __slots__ = ("_completion", "_prompt", "_speeds", "completion", "prompt", "speeds", "untold")

    def __init__(self, *, prompt: Count, completion: Count, speeds: Batched) -> None:
        self.untold = False
        self.prompt = self.completion = 0
        self.speeds: list[float] = []
        self._prompt = prompt
        self._completion = completion
        self._speeds = speeds

    def tell(self) -> None:
        """Tells all, and begins anew."""
        self._prompt(self.prompt)
        self._completion(self.completion)
        if self.speeds:
            self._speeds.add(self.speeds)
            self.speeds.clear()
        self.prompt = self.completion = 0
        self.untold = False


class Sum:
    """What a counter is to be counted up by."""

    __slots__ = ("_count", "untold")

    def __init__(self, count: Count) -> None:
        self.untold = 0
        self._count = count

    def tell(self) -> None:
        """Tells it, and begins anew."""
        self._count(self.untold)
        self.untold = 0
