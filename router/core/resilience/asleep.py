"""Whether a model sleeps: its engines are down because nobody needed them, and a request may have them started."""

from collections.abc import Iterable, Sequence
from math import ceil
from statistics import median
from typing import Final, NamedTuple

from router.core.resilience.breaker import BreakerState

DEFAULT_START: Final = 60.0
"""Assumed seconds for a start, if none has been measured."""

MAX_ADVISED_RETRY_AFTER: Final = 60
"""Maximum Retry-After in seconds; OpenAI's clients ignore a longer one."""

MAX_GAP: Final = 60.0
"""Seconds without a waiting request after which a further one belongs to another start."""


class EngineFacts(NamedTuple):
    """`up`: None before the first check."""

    up: bool | None
    drained: bool
    breaker: BreakerState


def is_asleep(engines: Iterable[EngineFacts]) -> bool:
    """Whether a request can only wait for an engine of the model to start. `engines`: the known ones, maybe none.

    - An engine that is up, or not checked yet, can be sent to.
    - An open breaker means that an engine has failed, or is overloaded; that is no sleep.
    - A drained engine gets no request when it starts. If all are drained, an operator does not want any.
    """
    known = list(engines)
    wanted = [engine for engine in known if not engine.drained]
    if known and not wanted:
        return False
    return all(engine.up is False and engine.breaker is not BreakerState.OPEN for engine in wanted)


class StartWait(NamedTuple):
    """The waiting for one start of a model's engine, in seconds of a monotonic clock.

    `since`: when the first request came. `last_left`: when the last one left; None while one waits.
    """

    since: float
    last_left: float | None = None

    def continues(self, now: float) -> bool:
        """Whether a request that comes now waits for the same start."""
        return self.last_left is None or now - self.last_left <= MAX_GAP


def start_retry_after(durations: Sequence[float], waited: float) -> int:
    """The `Retry-After` of a request that does not wait (any longer): whole seconds, 1 to 60.

    `durations`: seconds that the last starts took. `waited`: seconds since the first request for this start.
    """
    expected = median(durations) if durations else DEFAULT_START
    return max(1, min(MAX_ADVISED_RETRY_AFTER, ceil(expected - waited)))
