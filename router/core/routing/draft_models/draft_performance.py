"""What a generation says of its engine's draft model, and what is known of the draft; see DraftStats."""

import msgspec

from router.core.routing.draft_models.counted_steps import SpeculationCounters


class MeasuredGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """A generation that ended well.

    - `rivals`: the families that could have served it.
    - `bin_`: that of its prompt's score; see score_bins.
    - `seconds`: its whole duration at the engine. `level`: the load of the engine at its end; see step_rates.
    - `speculation`: as the engine reported it with the response; None is unknown.
    - `has_draft`: whether the engine has a draft; None is unknown.
    - `choices`: those that were generated at the same time; `tokens` are those of all.
    """

    engine: str
    family: str
    model: str
    rivals: frozenset[str]
    bin_: int
    tokens: int
    seconds: float
    level: int = 1
    speculation: SpeculationCounters | None = None
    has_draft: bool | None = None
    choices: int = 1

    @property
    def steps(self) -> float | None:
        """Each step yields one token of the target model; accepted draft tokens come on top."""
        if self.speculation is not None:
            return max(1.0, self.tokens - self.speculation.accepted)
        return self.tokens if self.has_draft is False else None


class DraftPerformance(msgspec.Struct, frozen=True):
    """The measured performance of a family at a task; None is unknown.

    - `tokens_per_second`: of one request, from dispatch to its last token.
    - `tokens_per_step`: one token of the target model, plus the accepted draft tokens.
    """

    tokens_per_second: float | None = None
    tokens_per_step: float | None = None


class DraftStatus(msgspec.Struct, frozen=True):
    """What is known of an engine's draft model at one task; None is unknown. See DraftPerformance.

    `pays`: whether the draft makes the engine faster at its present load; see DraftStats.pays.
    """

    tokens_per_second: float | None
    tokens_per_step: float | None
    pays: bool | None
