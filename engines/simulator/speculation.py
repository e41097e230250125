"""Speculative decoding as the counters show it: the number of accepted draft tokens of each step."""

from dataclasses import dataclass, field
from random import Random

from engines.simulator.settings import SimulatorSettings


@dataclass(slots=True)
class SpeculationCounts:
    """Totals since the start; `accepted_per_position[i]` counts the steps whose draft token `i` was accepted."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)


class SpeculativeDecoder:
    """The draft model of one engine. It decides how many tokens a step yields, never which."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._depth = settings.num_speculative_tokens if settings.draft else 0
        default = settings.acceptance
        # By whether the sequence is code.
        self._acceptance = {
            False: default,
            True: default if settings.code_acceptance is None else settings.code_acceptance,
        }
        self.counts = SpeculationCounts(accepted_per_position=[0] * self._depth)

    @property
    def enabled(self) -> bool:
        return self._depth > 0

    def step(self, rng: Random, *, code: bool) -> int:
        """Tokens that one step of one sequence yields: one of the target's own, and the accepted draft tokens.

        `code`: whether the sequence is code.
        """
        if not self._depth:
            return 1
        acceptance = self._acceptance[code]
        accepted = 0
        # The first rejected token ends the run: the tokens after it depend on it.
        while accepted < self._depth and rng.random() < acceptance:
            self.counts.accepted_per_position[accepted] += 1
            accepted += 1
        self.counts.drafts += 1
        self.counts.draft_tokens += self._depth
        self.counts.accepted += accepted
        return accepted + 1
