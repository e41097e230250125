"""The health of the engines as requests see it: open breakers, busy engines, and the retry budget."""

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import Final

from router.core.resilience.breaker import BreakerState
from router.core.resilience.failover import Failover
from router.core.resilience.readiness import Readiness, engine_readiness
from router.core.resilience.retry import CONTINUATIONS_PER_SECOND, CREDENTIAL_REASONS, classify_failure
from router.core.resilience.retry_budget import RetryBudget
from router.net.client.errors import EngineError, describe_cause
from router.shared.engines.breakers import Breakers
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.dispatch")

_DEFAULT_BUSY_TIME: Final = 1.0  # seconds for which an engine counts as busy if it sent no Retry-After


class EngineHealth:
    """Records the results of attempts, and decides from them which attempts are allowed and in which order.

    - An engine that is drained, refuses the router's key, or has an open breaker gets no request; one whose breaker is
      half-open gets one, as a probe.
    - An engine that answered that it is busy comes after the others until its Retry-After has passed.
    - All retries of this process share one retry budget, all continuations of streams another.
    """

    def __init__(
        self, breakers: Breakers, *, clock: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        """`clock` returns seconds, `rng` numbers from 0 to 1 (jitter of the backoff)."""
        self.breakers = breakers
        self.clock = clock
        self.rng = rng
        self._retry_budget = RetryBudget(clock())
        self._continuation_budget = RetryBudget(clock(), CONTINUATIONS_PER_SECOND)
        self._busy_until: dict[str, float] = {}

    def record_request(self) -> None:
        now = self.clock()
        self._retry_budget.on_request(now)
        self._continuation_budget.on_request(now)

    def failover(self, engines: Sequence[Engine], require_allowed: Callable[[], None]) -> Failover[Engine]:
        """Of a request; the engines of each model stand together. `require_allowed`: see Failover."""
        models: Iterable[Sequence[Engine]] = (engines,)
        if engines and engines[0].model != engines[-1].model:
            models = (list(group) for _, group in groupby(engines, key=attrgetter("model")))
        return Failover(models, self._ranked, self._is_blocked, require_allowed)

    def _ranked(self, engines: Sequence[Engine]) -> Sequence[Engine]:
        if len(engines) < 2:
            return engines
        now = self.clock()
        # Stable: the order of selection stays among engines of the same rank.
        return sorted(engines, key=lambda engine: self._rank(engine, now))

    def _is_blocked(self, engine: Engine) -> bool:
        return self.readiness(engine) is Readiness.BLOCKED

    def readiness(self, engine: Engine) -> Readiness:
        state = self.breakers.state(engine.name)
        in_flight = engine.in_flight
        if state is BreakerState.HALF_OPEN and self.breakers.probe_is_claimed(engine.name):
            in_flight += 1  # of another process
        refused = engine.access.refused is not None
        return engine_readiness(
            up=engine.up, drained=engine.drained, breaker=state, in_flight=in_flight, refused=refused
        )

    def is_open(self, engine: Engine) -> bool:
        return self.breakers.state(engine.name) is BreakerState.OPEN

    def _rank(self, engine: Engine, now: float) -> int:
        # A half-open engine comes first, since only a request shows whether it has recovered. If the request fails,
        # another engine takes over. A busy one comes last.
        if engine.up is not False and self.breakers.state(engine.name) is BreakerState.HALF_OPEN:
            return 0
        return 2 if self._busy_until.get(engine.name, 0.0) > now else 1

    def permit(
        self, engine: Engine, *, previous_error: EngineError | None, continues: bool = False
    ) -> "AttemptPermit | None":
        """The permit for one attempt at an engine, or None. `previous_error`: that of the request's last attempt.

        `continues`: that attempt broke off a stream after its first token, and this one is to continue it.

        For a half-open engine, the permit is valid only after its `claim_probe` has returned True.
        """
        state = self.breakers.state(engine.name)
        if (
            state is BreakerState.OPEN or engine.drained or engine.access.refused is not None
        ):  # since the engines for this attempt were selected
            return None
        # A retry uses the budget only if the failed attempt may have cost its engine work; see FailureClass.
        if (
            previous_error is not None
            and classify_failure(previous_error.reason, previous_error.retry_after).uses_retry_budget
            and not (self._continuation_budget if continues else self._retry_budget).try_acquire(self.clock())
        ):
            log.warning("engine %s: no retry, the retry budget is used up", engine.name)
            return None
        return AttemptPermit(self, engine, probe=state is BreakerState.HALF_OPEN)

    # -- results of attempts ------------------------------------------------------------------------------------------

    def record_failure(self, engine: Engine, error: EngineError, *, probe: bool = False) -> None:
        failure = classify_failure(error.reason, error.retry_after)
        if failure.counts_for_breaker:
            self.breakers.on_failure(engine.name, probe=probe)
            engine.note_failure(self.clock())
        if failure.engine_busy:
            self._busy_until[engine.name] = self.clock() + (error.retry_after or _DEFAULT_BUSY_TIME)
        if error.reason == "connect":
            engine.update_status(up=False, cause=describe_cause(error))  # until the next probe finds it up
        elif error.reason in CREDENTIAL_REASONS:
            engine.note_refused(int(error.reason.removeprefix("status-")))

    def record_success(self, engine: Engine, *, probe: bool = False) -> None:
        self.breakers.on_success(engine.name, probe=probe)
        self._busy_until.pop(engine.name, None)


class AttemptPermit:
    """Permission for one attempt at an engine, as a context manager. Its exit records the result of the attempt.

    For a half-open breaker, the start of a stream is a success. For a closed one, only a complete response resets the
    failure count; otherwise an engine that always stalls after its first token would never be detected. A refusal
    (client error) and a cancellation (disconnect) are neither a success nor a failure.
    """

    __slots__ = ("_engine", "_health", "probe")

    def __init__(self, health: EngineHealth, engine: Engine, *, probe: bool) -> None:
        """`probe`: the permit is valid only after `claim_probe` has returned True."""
        self._health = health
        self._engine = engine
        self.probe = probe

    async def claim_probe(self) -> bool:
        """Whether this request is the half-open engine's one probe, among all processes."""
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
        if self.probe:  # after the result: when another process gets the claim, the result is in Redis
            self._health.breakers.release_probe(self._engine.name)
