"""`X-Max-TTFT`: decides which engines are expected to begin an answer in time, and when one will be.

    time to the first token = wait + prompt

What is in front of a prompt (`wait`) passes by itself; the time for the prompt does not. So an engine that is late now
is in time after `wait + prompt - max_ttft` seconds, unless the prompt alone takes too long.
"""

import re
from collections.abc import Mapping
from math import ceil
from typing import Final

import msgspec

from router.core.quota.fair_queue import MAX_ADVISED_RETRY_AFTER
from router.errors import MAX_TTFT_EXCEEDED, RATE_LIMIT, ApiError, bad_request

MAX_TTFT_HEADER: Final = "X-Max-TTFT"

MAX_APPOINTMENTS: Final = 512
"""Refused requests that are expected back; further ones are not counted."""

_DURATION: Final = re.compile(rb"\s*([0-9]{1,7}(?:\.[0-9]{1,6})?)(ms|s)\s*")


def parse_max_ttft(header: bytes) -> float:
    """Seconds. Raises ApiError (400)."""
    match = _DURATION.fullmatch(header)
    seconds = float(match[1]) / (1000 if match[2] == b"ms" else 1) if match is not None else 0.0
    if not seconds:
        raise bad_request(
            f"`{MAX_TTFT_HEADER}` must be a number and a unit, ms or s, as in 500ms.", param=MAX_TTFT_HEADER
        )
    return seconds


class Forecast(msgspec.Struct, frozen=True):
    """What is expected of an engine for a prompt, in seconds.

    - `wait`: until it begins with the prompt.
    - `prompt`: that it then takes to the first token; None if nothing is known of its speed.
    """

    wait: float
    prompt: float | None

    def is_in_time(self, max_ttft: float) -> bool:
        """An engine of which nothing is known counts as in time: only a request shows more."""
        return self.prompt is None or self.wait + self.prompt <= max_ttft


UNKNOWN: Final = Forecast(0.0, None)


class _Appointment(msgspec.Struct, frozen=True):
    """The engine is expected to compute the prompt from `begin` to `end`."""

    engine: str
    begin: float
    end: float


class Appointments:
    """When requests that were refused may come back: each of several gets a time of its own.

    A request that is refused is expected back at its engine, so the next one of its tenant is sent behind it. One that
    comes back too early keeps its time. Only the advice counts them: whether a request is served depends on what the
    engines have now.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], _Appointment] = {}  # by tenant and prompt, the oldest first

    def __len__(self) -> int:
        return len(self._open)

    def make(
        self, forecasts: Mapping[str, Forecast], max_ttft: float, now: float, *, tenant: str, prompt: int
    ) -> float | None:
        """Seconds until one of these engines, which are late, will be in time; None if none of them ever is.

        `prompt`: a hash of it.
        """
        self._open = {request: each for request, each in self._open.items() if each.end > now}
        candidates = {
            name: (forecast.wait, forecast.prompt)
            for name, forecast in forecasts.items()
            if forecast.prompt is not None and forecast.prompt <= max_ttft
        }
        if not candidates:
            return None
        own = self._open.get((tenant, prompt))
        if own is not None and own.engine in candidates:
            wait, seconds = candidates[own.engine]
            return max(now + wait, own.begin) + seconds - max_ttft - now
        booked_until = {each.engine: each.end for (booker, _), each in self._open.items() if booker == tenant}
        made = [
            _Appointment(name, begin := max(now + wait, booked_until.get(name, now)), begin + seconds)
            for name, (wait, seconds) in candidates.items()
        ]
        first = min(made, key=lambda each: (each.end, each.engine))
        seconds = first.end - max_ttft - now
        # With a longer time than what is advised, its client comes back earlier, and is refused again.
        if seconds <= MAX_ADVISED_RETRY_AFTER and len(self._open) < MAX_APPOINTMENTS:
            self._open[tenant, prompt] = first
        return seconds


def too_late(max_ttft: float, seconds: float | None) -> ApiError:
    """The refusal of a request. `seconds`: as Appointments.make returns it."""
    limit = f"{max_ttft:g} s"
    if seconds is None:
        message = f"No engine is expected to begin within {limit}, not even an idle one ({MAX_TTFT_HEADER})."
    else:
        message = f"No engine is expected to begin within {limit} now ({MAX_TTFT_HEADER})."
    retry_after = MAX_ADVISED_RETRY_AFTER if seconds is None else ceil(seconds)
    return ApiError(
        429, message, kind=RATE_LIMIT, code=MAX_TTFT_EXCEEDED,
        retry_after=max(1, min(MAX_ADVISED_RETRY_AFTER, retry_after)),
    )  # fmt: skip
