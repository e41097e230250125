"""The energy that the requests at an engine take.

Theory of operation. The engine's power is divided equally among the requests that are at the engine, at each instant.
So the energy of all requests together is that of the engine while it has any. A request's share is not summed up for
each request. The meter has one sum instead: the joules of an imaginary request that was there all the time. It grows by
power / requests for each second, and a request took what the sum grew by between its start and its end. (Schedulers
use such a sum as virtual time for processor sharing.) An event costs the same for one request and for hundreds.

Power and the requests of other routers are known only from time to time, so a value holds until the next one.
"""

from typing import Final, NamedTuple

MAX_WATTS: Final = 1e6
"""A greater power, or none above zero, is a wrong report and counts as unknown."""

_MEMORY: Final = 0.99  # weight of the past in the mean power of a request; about the last hundred requests count


class EnergyMeter:
    """The energy of one engine's requests, in joules. Times are seconds of one monotonic clock.

    - `update` is called whenever the power or the number of requests has changed.
    - `watts_per_request`: the mean power that one request takes while it is generated, over the last hundred or so;
      None while no request was measured, or if the power is unknown.
    """

    __slots__ = ("_joules", "_known_since", "_mean_joules", "_mean_seconds", "_rate", "_updated_at")

    def __init__(self) -> None:
        self._joules = 0.0  # of a request that is there all the time
        self._rate: float | None = None  # in watts; None while the power is unknown
        self._updated_at = 0.0
        self._known_since = 0.0
        self._mean_joules = self._mean_seconds = 0.0

    def update(self, now: float, watts: float | None, requests: float) -> None:
        """`requests`: the number of requests at the engine from now on; `watts`: its power, None if it is unknown."""
        if watts is None or not 0 < watts <= MAX_WATTS:
            self._rate = None
            return
        if self._rate is None:
            self._known_since = now
        self._joules = self._joules_at(now)
        self._rate = watts / max(1.0, requests)
        self._updated_at = now

    def start(self, now: float) -> "EnergyReading":
        return EnergyReading(self, now, self._joules_at(now))

    def joules_since(self, start: "EnergyReading", now: float) -> float | None:
        """The energy of a request that started at `start`; None if the power was not known all the time."""
        if self._rate is None or start.at < self._known_since:
            return None
        return self._joules_at(now) - start.joules

    def record(self, joules: float, seconds: float) -> None:
        """Adds a generation to the mean of `watts_per_request`."""
        self._mean_joules = _MEMORY * self._mean_joules + joules
        self._mean_seconds = _MEMORY * self._mean_seconds + seconds

    @property
    def watts_per_request(self) -> float | None:
        if self._rate is None or self._mean_seconds <= 0:
            return None
        return self._mean_joules / self._mean_seconds

    def _joules_at(self, now: float) -> float:
        return self._joules if self._rate is None else self._joules + self._rate * (now - self._updated_at)


class EnergyReading(NamedTuple):
    """The meter when a request was sent to its engine."""

    meter: EnergyMeter
    at: float
    joules: float

    def take(self, now: float, seconds: float) -> float | None:
        """The joules of the request, which ends now after `seconds`; None is unknown. They count in the mean."""
        joules = self.meter.joules_since(self, now)
        if joules is not None:
            self.meter.record(joules, seconds)
        return joules
