"""The metrics of batches: their lines in this process, and how many batches are open."""

import contextlib
import math
from collections.abc import Mapping

from router.core.batches.batch_object import RequestCounts
from router.core.batches.batch_overview import OPEN_STATES, OpenState
from router.telemetry.metric_objects import MetricObjects


class BatchMetrics:
    """- Each line counts once, as what it is: `generated`, `cached` or `failed`.
    - A process without batches has no sample of them but its lines in flight, which are 0.
    """

    def __init__(self, objects: MetricObjects, *, removable: bool) -> None:
        """`removable`: this is the only process."""
        self._removable = removable
        self._lines = objects.counters["roundhouse_batch_lines_total"]
        self._in_flight = objects.gauges["roundhouse_batch_lines_in_flight"]
        self._open = objects.gauges["roundhouse_batches_open"]

    def record_lines(self, counts: RequestCounts) -> None:
        """Counts lines that have got a result; a call with none begins the counters with 0."""
        self._lines.labels("generated").inc(counts.completed - counts.cached)
        self._lines.labels("cached").inc(counts.cached)
        self._lines.labels("failed").inc(counts.failed)

    def set_in_flight(self, lines: int) -> None:
        self._in_flight.set(lines)

    def set_open(self, batches: Mapping[OpenState, int] | None) -> None:
        """None: they are unknown."""
        for state in OPEN_STATES:
            if batches is not None:
                self._open.labels(state).set(batches.get(state, 0))
            elif not self._removable:
                self._open.labels(state).set(math.nan)
            else:
                with contextlib.suppress(KeyError):  # some versions raise it if there is no such sample
                    self._open.remove(state)
