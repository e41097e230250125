"""When the sequences of a request make their next tokens, and the simplest answer: each request for itself.

An engine has one `Pace`, which makes `Turns` for each request. `engines/simulator/engine/steps.py` has the other one,
in which the requests of an engine share its steps.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from engines.simulator.engine.scheduler import Scheduler, Sequence


@dataclass(slots=True)
class Pacer:
    """Waits until the next step of one request is due. Without a rate it only yields to the event loop.

    `first` is in seconds, `rate` in steps per second, `clock` gives monotonic seconds.
    """

    first: float
    rate: float
    jitter: float
    rng: Random
    clock: Callable[[], float]
    due: float | None = None

    async def wait(self) -> None:
        if not self.rate and not self.first:
            await asyncio.sleep(0)
            return
        now = self.clock()
        if self.due is None:
            wait, self.due = self.first, now
        else:
            wait = 1 / self.rate if self.rate else 0.0
        if self.jitter:
            wait *= 1 + self.jitter * self.rng.uniform(-1, 1)
        # Count from now if a step was late, so that the following steps do not catch up in a burst.
        self.due = max(self.due, now - wait) + wait
        await asyncio.sleep(max(0.0, self.due - now))


class PacedRequest(Protocol):
    """A request while it is generated.

    - `sequences`: those that have not ended.
    - `pacer`: the delays of this request alone.
    - `admitted`: is set at each admission of one of the sequences.
    """

    pacer: Pacer
    admitted: asyncio.Event

    @property
    def sequences(self) -> list[Sequence]: ...

    def step(self, sequence: Sequence) -> None:
        """Makes the next tokens of a sequence that is admitted."""


class Turns(Protocol):
    """The steps of one request."""

    async def next(self) -> None:
        """Waits for the next step of at least one of the sequences, and makes it."""


class Pace(Protocol):
    """When the requests of an engine make their steps.

    - `rate`: steps per second of each request by itself; 0 if something else decides.
    - A sequence is submitted to the scheduler by `start`, and admitted by the pace.
    """

    rate: float

    def start(self, request: PacedRequest) -> Turns: ...

    def ended(self, sequence: Sequence) -> None:
        """A sequence has left the scheduler."""


class SeparatePace:
    """Each request has the same rate, whatever the others do; a prompt is computed with the first token."""

    def __init__(self, scheduler: Scheduler, rate: float) -> None:
        self.rate = rate
        self._scheduler = scheduler

    def start(self, request: PacedRequest) -> Turns:
        for sequence in request.sequences:
            self._scheduler.submit(sequence)
        self._scheduler.admit()
        return _SeparateTurns(request)

    def ended(self, _: Sequence) -> None:
        self._scheduler.admit()


class _SeparateTurns:
    def __init__(self, request: PacedRequest) -> None:
        self._request = request

    async def next(self) -> None:
        request = self._request
        while not (ready := [sequence for sequence in request.sequences if sequence.admitted]):
            request.admitted.clear()
            await request.admitted.wait()
        await request.pacer.wait()
        for sequence in ready:
            # A step of another sequence may have preempted this one.
            if sequence.admitted:
                request.step(sequence)
