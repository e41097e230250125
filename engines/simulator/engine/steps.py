"""The time model: all requests of an engine share its steps, as in vLLM.

Theory of operation. A step decodes one token of each running sequence, and computes prompts, first come first served,
up to a budget of tokens (chunked prefill). It takes

    base + decode * decoding sequences + prompt tokens / prefill speed

seconds. The tokens of a prompt that the prefix cache holds are not computed, so the first token comes earlier. What
arrives during a step waits for the next one. A request whose client has not taken its last tokens, or that is delayed
by a fault, takes no part in steps.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from engines.simulator.engine.pace import PacedRequest, Turns
from engines.simulator.engine.scheduler import Scheduler, Sequence
from engines.simulator.settings import BLOCK_SIZE, SimulatorSettings


@dataclass(slots=True)
class Step:
    """What one step computes. `yielding`: the sequences that have a token at its end."""

    decoding: int = 0
    prompt_tokens: int = 0
    yielding: list[Sequence] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.decoding and not self.prompt_tokens

    def seconds(self, settings: SimulatorSettings) -> float:
        base = 1 / settings.tokens_per_second if settings.tokens_per_second else 0.0
        speed = settings.prefill_tokens_per_second
        return base + settings.decode * self.decoding + (self.prompt_tokens / speed if speed else 0.0)


def plan_step(scheduler: Scheduler, budget: int, takes_part: Callable[[Sequence], bool]) -> Step:
    """The next step, with at most `budget` tokens. Admits sequences while there is budget, as vLLM does."""
    step = Step()

    def compute(sequence: Sequence) -> None:
        nonlocal budget
        if not takes_part(sequence):
            return
        if not sequence.uncomputed:
            step.decoding += 1
            budget -= 1
        else:
            chunk = min(sequence.uncomputed, budget)
            sequence.uncomputed -= chunk
            step.prompt_tokens += chunk
            budget -= chunk
            if sequence.uncomputed:
                return
        step.yielding.append(sequence)

    for sequence in scheduler.running_sequences:
        if budget:
            compute(sequence)
    while budget and (admitted := scheduler.admit_next()) is not None:
        compute(admitted)
    return step


class SharedPace:
    """The steps of one engine. `clock` gives monotonic seconds."""

    rate = 0.0

    def __init__(self, scheduler: Scheduler, settings: SimulatorSettings, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._clock = clock
        self._rng = Random(settings.seed)  # noqa: S311 - the pace must be reproducible
        self._turns: dict[Sequence, _SharedTurns] = {}
        self._is_computing = False
        self._unfilled = 0

    def start(self, request: PacedRequest) -> Turns:
        turns = _SharedTurns(self, request)
        for sequence in request.sequences:
            self._turns[sequence] = turns
            self._scheduler.submit(sequence)
        # Admits them, if the engine is idle; they are computed once the request waits for its first step.
        self.begin_step(self._clock())
        return turns

    def ended(self, sequence: Sequence) -> None:
        self._turns.pop(sequence, None)
        self.begin_step(self._clock())

    def begin_step(self, start: float) -> None:
        """Begins a step, unless one is being computed or there is nothing to compute."""
        if self._is_computing:
            return
        step = plan_step(self._scheduler, self._settings.batched_tokens, self._takes_part)
        self._count_unfilled_blocks()
        if step.is_empty:
            return
        self._is_computing = True
        seconds, now = step.seconds(self._settings), self._clock()
        if self._settings.jitter:
            seconds *= 1 + self._settings.jitter * self._rng.uniform(-1, 1)
        # Count from now if the event loop was late by more than a step.
        end = max(start, now - seconds) + seconds
        asyncio.get_running_loop().call_later(max(0.0, end - now), self._end_step, step, end)

    def _end_step(self, step: Step, end: float) -> None:
        stepped = []
        for sequence in step.yielding:
            # It may have ended, or a step of another sequence may have preempted it.
            if sequence.admitted:
                turns = self._turns[sequence]
                turns.step(sequence)
                stepped.append(turns)
        # Once each, after all steps of its sequences.
        for turns in dict.fromkeys(stepped):
            turns.end_step()
        self._is_computing = False
        self.begin_step(end)

    def _takes_part(self, sequence: Sequence) -> bool:
        return self._turns[sequence].take_part

    def _count_unfilled_blocks(self) -> None:
        """vLLM allocates the blocks of a prompt chunk by chunk, the scheduler here all at once."""
        running = self._scheduler.running_sequences
        unfilled = sum(each.uncomputed // BLOCK_SIZE for each in running if self._takes_part(each))
        self._scheduler.unfilled_blocks += unfilled - self._unfilled
        self._unfilled = unfilled


class _SharedTurns:
    """The steps of one request. `take_part`: whether it takes part in the steps of the engine."""

    def __init__(self, pace: SharedPace, request: PacedRequest) -> None:
        self.take_part = False
        self._pace = pace
        self._request = request
        self._is_waiting = False
        self._stepped = asyncio.Event()

    async def next(self) -> None:
        await self._request.pacer.wait()
        self._stepped.clear()
        self._is_waiting = self.take_part = True
        self._pace.begin_step(self._request.pacer.clock())
        await self._stepped.wait()

    def step(self, sequence: Sequence) -> None:
        if self._is_waiting:
            self._request.step(sequence)

    def end_step(self) -> None:
        # What it has been given, it has to take before it takes part again; mostly it does so within the next step.
        self.take_part = self._is_waiting
        self._is_waiting = False
        self._stepped.set()
