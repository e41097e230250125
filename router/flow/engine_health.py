"""How the engines stand with this router: whose breaker is open, who is busy, and what retries may still cost."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from router.core.resilience.breaker import BreakerState
from router.core.resilience.retry import Attempt, RetryBudget, RetrySchedule, classify_failure
from router.net.client.errors import EngineError
from router.shared.breakers import Breakers
from router.upstream.catalog import Engine

log = logging.getLogger("roundhouse.dispatch")

_DEFAULT_BUSY_TIME: Final = 1.0  # seconds for which an engine that did not say for how long is taken to be busy


class EngineHealth:
    """What attempts have shown, for the attempts to come.

    - An engine whose breaker is open is asked nothing; one whose breaker is half-open is asked one thing.
    - One that said that it is busy is asked after the others, until the time that it named is over.
    - All retries of this process come from one budget.
    """

    def __init__(
        self, breakers: Breakers, *, clock: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        """`clock` in seconds; `dice` gives 0 to 1."""
        self.breakers = breakers
        self._clock = clock
        self._rng = rng
        self._retry_budget = RetryBudget(clock())
        self._busy_until: dict[str, float] = {}

    def record_request(self) -> None:
        """A request has come."""
        self._retry_budget.on_request(self._clock())

    def attempts_for(self, engines: Sequence[Engine]) -> "EngineAttempts":
        """The turns of one model's engines, which are given in the order that was planned for them.

        A half-open one comes first: somebody has to find out. Should it fail, another one takes over.
        """
        if len(engines) > 1:
            now = self._clock()
            engines = sorted(engines, key=lambda engine: self._rank(engine, now))
        return EngineAttempts(self, engines, self._clock, self._rng)

    def is_open(self, engine: Engine) -> bool:
        return self.breakers.state(engine.name) is BreakerState.OPEN

    def _rank(self, engine: Engine, now: float) -> int:
        if engine.up is not False and self.breakers.state(engine.name) is BreakerState.HALF_OPEN:
            return 0
        return 2 if self._busy_until.get(engine.name, 0.0) > now else 1

    def permit(self, engine: Engine, *, previous_error: EngineError | None) -> "AttemptPermit | None":
        """Leave to ask an engine, if it may be asked. `after`: the request's attempt before, which failed.

        A half-open one may be asked only once the leave's `claim` says so.
        """
        state = self.breakers.state(engine.name)
        if state is BreakerState.OPEN:
            return None
        if (
            previous_error is not None
            and classify_failure(previous_error.reason, previous_error.retry_after).uses_retry_budget
            and not self._retry_budget.try_acquire(self._clock())
        ):
            log.warning("engine %s is not asked in another's place: there were too many retries of late", engine.name)
            return None
        return AttemptPermit(self, engine, probe=state is BreakerState.HALF_OPEN)

    # -- what attempts have shown -----------------------------------------------------------------------------------

    def record_failure(self, engine: Engine, error: EngineError, *, probe: bool = False) -> None:
        verdict = classify_failure(error.reason, error.retry_after)
        if verdict.counts_for_breaker:
            self.breakers.on_failure(engine.name, probe=probe)
        if verdict.engine_busy:
            self._busy_until[engine.name] = self._clock() + (error.retry_after or _DEFAULT_BUSY_TIME)
        if error.reason == "connect":
            engine.update_status(up=False)  # the probe will say when it is back

    def record_success(self, engine: Engine, *, probe: bool = False) -> None:
        self.breakers.on_success(engine.name, probe=probe)
        self._busy_until.pop(engine.name, None)


class EngineAttempts:
    """See retry.Turns; this leaves out whose breaker is open."""

    __slots__ = ("_clock", "_health", "_rng", "_schedule")

    def __init__(
        self, health: EngineHealth, engines: Sequence[Engine], clock: Callable[[], float], rng: Callable[[], float]
    ) -> None:
        self._health = health
        self._schedule = RetrySchedule(engines)
        self._clock = clock
        self._rng = rng

    def next_attempt(self) -> Attempt[Engine] | None:
        """The engines of which one may be asked, the best first, once the wait is over; None: nobody is left."""
        while (turn := self._schedule.next_attempt(self._clock(), self._rng())) is not None:
            shut = [engine for engine in turn.engines if self._health.is_open(engine)]
            if not shut:
                return turn
            for engine in shut:
                self._schedule.mark_tried(engine)
            if len(shut) < len(turn.engines):
                return Attempt(tuple(engine for engine in turn.engines if engine not in shut), turn.wait)
        return None

    def mark_tried(self, engine: Engine) -> None:
        self._schedule.mark_tried(engine)

    def record_failure(self, engine: Engine, error: EngineError) -> None:
        self._schedule.on_failure(engine, error.reason, error.retry_after, self._clock())


class AttemptPermit:
    """Leave to ask an engine once. What comes of that is noted when it is left.

    That a stream has begun is good enough for a half-open breaker; for a closed one, only a whole answer makes up for
    failures: else an engine that always stalls after its first token would never be found out. What an engine refuses
    as the client's fault, or for a client that leaves, says nothing of it.
    """

    __slots__ = ("_engine", "_health", "probe")

    def __init__(self, health: EngineHealth, engine: Engine, *, probe: bool) -> None:
        """`probe`: it holds only once `claim` has said so."""
        self._health = health
        self._engine = engine
        self.probe = probe

    async def claim_probe(self) -> bool:
        """Whether this is the one request that the half-open engine is asked."""
        return await self._health.breakers.claim_probe(self._engine.name)

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, EngineError):
            self._health.record_failure(self._engine, error, probe=self.probe)
        elif error is None and self.probe:
            self._health.record_success(self._engine, probe=True)
        if self.probe:
            self._health.breakers.release_probe(self._engine.name)
