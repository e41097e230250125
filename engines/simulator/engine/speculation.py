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


@dataclass(slots=True)
class RequestSpeculation:
    """The steps with a draft of one sequence; `accepted[j]` counts those in which `j` draft tokens were accepted.

    `per_step` has the accepted tokens of each step; None if they are not recorded.
    """

    drafted_per_step: int
    accepted: list[int] = field(init=False)
    per_step: list[int] | None = None

    def __post_init__(self) -> None:
        self.accepted = [0] * (self.drafted_per_step + 1)

    def add(self, accepted: int) -> None:
        self.accepted[accepted] += 1
        if self.per_step is not None:
            self.per_step.append(accepted)

    def report(self) -> dict[str, object]:
        """vLLM's SpeculativeDecodingMetrics."""
        steps = sum(self.accepted)
        accepted = sum(tokens * count for tokens, count in enumerate(self.accepted))
        drafted = steps * self.drafted_per_step
        report: dict[str, object] = {
            "mean_acceptance_length": 1.0 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_histogram": self.accepted,
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": self.drafted_per_step,
        }
        if self.per_step:
            report["per_step_accepted"] = self.per_step
            report["per_step_drafted"] = [self.drafted_per_step] * len(self.per_step)
        return report


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
        self._level = settings.per_request_spec_decode_metrics
        self.counts = SpeculationCounts(accepted_per_position=[0] * self._depth)

    @property
    def enabled(self) -> bool:
        return self._depth > 0

    def new_request(self) -> RequestSpeculation | None:
        """What is to be recorded of a new sequence."""
        if self._level == "none":
            return None
        return RequestSpeculation(self._depth, per_step=[] if self._level == "detailed" else None)

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
