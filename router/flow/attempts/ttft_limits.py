"""Leaves out the engines that are not expected to begin an answer in the time that its request allows."""

import time
from collections.abc import Callable, Sequence

from router.core.resilience.readiness import Readiness
from router.core.routing.max_ttft import Appointments, too_late
from router.flow.selection import Selection
from router.upstream.engine import Engine


class TtftLimits:
    """Decides at the moment of the choice, as the estimates do.

    - Of the engines that take work, those of the model that are in time are tried, then those of its fallbacks.
    - If none is in time, the request is refused at once: ApiError 429 with a Retry-After, `max_ttft_exceeded`.
    - If none takes work, nothing changes: the request ends as it would without a limit.
    """

    def __init__(
        self, *, readiness: Callable[[Engine], Readiness], slot_wait: Callable[[Engine], float],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        """`readiness` of an engine, now. `slot_wait`: the seconds until it has a slot. `clock`: as EngineSelector's."""
        self._readiness = readiness
        self._slot_wait = slot_wait
        self._clock = clock
        self._appointments = Appointments()

    def order_engines(self, selection: Selection, tenant: str, max_ttft: float) -> Sequence[Engine]:
        """The engines of a selection that are in time. Raises ApiError."""
        order = selection.order_engines()
        now = self._clock()
        ready = [engine for engine in order if self._readiness(engine) is Readiness.READY]
        if not ready:
            return order
        forecasts = {
            engine.name: selection.prompt.forecast_at(engine, now, slot_wait=self._slot_wait(engine))
            for engine in ready
        }
        in_time = [engine for engine in ready if forecasts[engine.name].is_in_time(max_ttft)]
        if not in_time:
            fingerprint = selection.prompt.fingerprint
            seconds = self._appointments.make(forecasts, max_ttft, now, tenant=tenant, prompt=fingerprint)
            raise too_late(max_ttft, seconds)
        return in_time
