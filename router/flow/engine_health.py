"""How the engines stand with this router: whose breaker is open, who is busy, and what retries may still cost."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from router.core.resilience.breaker import State
from router.core.resilience.retry import Budget, Turn, Turns, judge
from router.net.client.errors import EngineError
from router.shared.breakers import Breakers
from router.upstream.catalog import Engine

log = logging.getLogger("roundhouse.dispatch")

_BUSY: Final = 1.0  # seconds for which an engine that did not say for how long is taken to be busy


class Standing:
    """What attempts have shown, for the attempts to come.

    - An engine whose breaker is open is asked nothing; one whose breaker is half-open is asked one thing.
    - One that said that it is busy is asked after the others, until the time that it named is over.
    - All retries of this process come from one budget.
    """

    def __init__(
        self, breakers: Breakers, *, clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        """`clock` in seconds; `dice` gives 0 to 1."""
        self.breakers = breakers
        self._clock = clock
        self._dice = dice
        self._budget = Budget(clock())
        self._busy: dict[str, float] = {}

    def asked(self) -> None:
        """A request has come."""
        self._budget.asked(self._clock())

    def turns(self, engines: Sequence[Engine]) -> "EngineTurns":
        """The turns of one model's engines, which are given in the order that was planned for them.

        A half-open one comes first: somebody has to find out. Should it fail, another one takes over.
        """
        if len(engines) > 1:
            now = self._clock()
            engines = sorted(engines, key=lambda engine: self._rank(engine, now))
        return EngineTurns(self, engines, self._clock, self._dice)

    def is_shut(self, engine: Engine) -> bool:
        return self.breakers.state(engine.name) is State.OPEN

    def _rank(self, engine: Engine, now: float) -> int:
        if engine.up is not False and self.breakers.state(engine.name) is State.HALF_OPEN:
            return 0
        return 2 if self._busy.get(engine.name, 0.0) > now else 1

    def admit(self, engine: Engine, *, after: EngineError | None) -> "Pass | None":
        """Leave to ask an engine, if it may be asked. `after`: the request's attempt before, which failed.

        A half-open one may be asked only once the leave's `claim` says so.
        """
        state = self.breakers.state(engine.name)
        if state is State.OPEN:
            return None
        if after is not None and judge(after.reason, after.retry_after).cost and not self._budget.take(self._clock()):
            log.warning("engine %s is not asked in another's place: there were too many retries of late", engine.name)
            return None
        return Pass(self, engine, probe=state is State.HALF_OPEN)

    # -- what attempts have shown -----------------------------------------------------------------------------------

    def failed(self, engine: Engine, error: EngineError, *, probe: bool = False) -> None:
        verdict = judge(error.reason, error.retry_after)
        if verdict.counts:
            self.breakers.failed(engine.name, probe=probe)
        if verdict.busy:
            self._busy[engine.name] = self._clock() + (error.retry_after or _BUSY)
        if error.reason == "connect":
            engine.note(up=False)  # the probe will say when it is back

    def succeeded(self, engine: Engine, *, probe: bool = False) -> None:
        self.breakers.succeeded(engine.name, probe=probe)
        self._busy.pop(engine.name, None)


class EngineTurns:
    """See retry.Turns; this leaves out whose breaker is open."""

    __slots__ = ("_clock", "_dice", "_standing", "_turns")

    def __init__(
        self, standing: Standing, engines: Sequence[Engine], clock: Callable[[], float], dice: Callable[[], float]
    ) -> None:
        self._standing = standing
        self._turns = Turns(engines)
        self._clock = clock
        self._dice = dice

    def next(self) -> Turn[Engine] | None:
        """The engines of which one may be asked, the best first, once the wait is over; None: nobody is left."""
        while (turn := self._turns.next(self._clock(), self._dice())) is not None:
            shut = [engine for engine in turn.engines if self._standing.is_shut(engine)]
            if not shut:
                return turn
            for engine in shut:
                self._turns.took(engine)
            if len(shut) < len(turn.engines):
                return Turn(tuple(engine for engine in turn.engines if engine not in shut), turn.wait)
        return None

    def took(self, engine: Engine) -> None:
        self._turns.took(engine)

    def failed(self, engine: Engine, error: EngineError) -> None:
        self._turns.failed(engine, error.reason, error.retry_after, self._clock())


class Pass:
    """Leave to ask an engine once. What comes of that is noted when it is left.

    That a stream has begun is good enough for a half-open breaker; for a closed one, only a whole answer makes up for
    failures: else an engine that always stalls after its first token would never be found out. What an engine refuses
    as the client's fault, or for a client that leaves, says nothing of it.
    """

    __slots__ = ("_engine", "_standing", "probe")

    def __init__(self, standing: Standing, engine: Engine, *, probe: bool) -> None:
        """`probe`: it holds only once `claim` has said so."""
        self._standing = standing
        self._engine = engine
        self.probe = probe

    async def claim(self) -> bool:
        """Whether this is the one request that the half-open engine is asked."""
        return await self._standing.breakers.claim_probe(self._engine.name)

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, EngineError):
            self._standing.failed(self._engine, error, probe=self.probe)
        elif error is None and self.probe:
            self._standing.succeeded(self._engine, probe=True)
        if self.probe:
            self._standing.breakers.release_probe(self._engine.name)
