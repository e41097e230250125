"""Which engine a request is sent to next: among the models that may answer it, past engines that get no request."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from router.core.resilience.retry import ScheduledAttempt
from router.core.resilience.retry_schedule import RetrySchedule

T = TypeVar("T")


class Failover(Generic[T]):
    """The attempts of one request, without a clock: `now` is in seconds of a monotonic one.

    - The engines of one model are tried as RetrySchedule says, then those of the next one, which is a fallback.
    - An engine that is blocked when its turn comes gets no attempt.

    After `next`, the caller calls `tried` with the engine that was chosen, and `failed` if it failed; or `leave_model`.
    """

    def __init__(
        self, models: Iterable[Sequence[T]], rank: Callable[[Sequence[T]], Sequence[T]],
        is_blocked: Callable[[T], bool], require_allowed: Callable[[], None],
    ) -> None:  # fmt: skip
        """`models`: the engines of each. `rank` sorts those of a model when its turn comes.

        `require_allowed` is called before the engines of a model are looked at, and raises if no engine may get the
        request any more.
        """
        self._models: Iterator[Sequence[T]] = iter(models)
        self._rank = rank
        self._is_blocked = is_blocked
        self._require_allowed = require_allowed
        self._schedule: RetrySchedule[T] | None = None

    def next(self, now: float, random: float) -> ScheduledAttempt[T] | None:
        """The engines for the next attempt, the best first, and the wait before it; None: no attempt is left.

        `random`: from 0 to 1.
        """
        while True:
            if self._schedule is not None and (attempt := self._of_model(self._schedule, now, random)) is not None:
                return attempt
            engines = next(self._models, None)
            if engines is None:
                return None
            self._schedule = RetrySchedule(self._rank(engines))

    def _of_model(self, schedule: RetrySchedule[T], now: float, random: float) -> ScheduledAttempt[T] | None:
        self._require_allowed()
        while (attempt := schedule.next_attempt(now, random)) is not None:
            blocked = [engine for engine in attempt.engines if self._is_blocked(engine)]
            if not blocked:
                return attempt
            for engine in blocked:
                schedule.mark_tried(engine)  # else the schedule would return it again
            if len(blocked) < len(attempt.engines):
                free = tuple(engine for engine in attempt.engines if engine not in blocked)
                return ScheduledAttempt(free, attempt.wait)
        return None

    def tried(self, engine: T) -> None:
        if self._schedule is not None:
            self._schedule.mark_tried(engine)

    def failed(self, engine: T, reason: str, retry_after: float | None, now: float) -> None:
        """`reason`: EngineError.reason; `retry_after`: the engine's Retry-After in seconds."""
        if self._schedule is not None:
            self._schedule.on_failure(engine, reason, retry_after, now)

    def leave_only(self, is_left: Callable[[T], bool]) -> None:
        """The other engines of this model get no attempt any more."""
        if self._schedule is not None:
            self._schedule.leave_only(is_left)

    def leave_model(self) -> None:
        """The engines of this model have no room: the next attempt is at the next model."""
        self._schedule = None
