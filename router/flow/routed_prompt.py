"""The prompt of a request on its way: which engines hold how much of it, and what its answer says of that."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, Protocol

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recorded_response import RecordedResponse
from router.core.routing.prefill import EngineLoad, EnginePrefill, PrefillEstimate, Prefills, SentPrompt
from router.core.routing.prompt_chain import PromptChain, answered_chain, parse_answer, prompt_chain
from router.core.routing.ranking import EngineSnapshot
from router.upstream.engine import Engine


class RoutedPrompt(Protocol):
    """What a generation tells of its prompt. All times are those of time.perf_counter."""

    def on_sent(self, engine: Engine, now: float) -> None:
        """It is sent to an engine, for the first time or again."""

    def on_first_token(self, now: float) -> None: ...

    def on_answered(self, answer: RecordedResponse, now: float) -> None: ...

    def on_ended(self, now: float) -> None:
        """The engine does not work on it any more, however it has ended. More than once is fine."""


class UnroutedPrompt:
    """Of a request that has only one engine."""

    def on_sent(self, engine: Engine, now: float) -> None:
        pass

    def on_first_token(self, now: float) -> None:
        pass

    def on_answered(self, answer: RecordedResponse, now: float) -> None:
        pass

    def on_ended(self, now: float) -> None:
        pass


UNROUTED: Final = UnroutedPrompt()


class ChainedPrompt:
    """The prompt of a request that may go to several engines.

    - `estimates`: those at the last ranking, by URL.
    """

    def __init__(
        self, prefills: Prefills, request: InferenceRequest, seed: int, session_home: int, away_tokens: float
    ) -> None:
        """`seed`: of its chain. `session_home`: 0 without a session. `away_tokens`: see Prefills.estimates."""
        self._prefills = prefills
        self._request = request
        self._seed = seed
        self._session_home = session_home
        self._away_tokens = away_tokens
        self._engine: EnginePrefill | None = None
        self._sent: SentPrompt | None = None
        self.estimates: dict[str, PrefillEstimate] = {}

    @cached_property
    def chain(self) -> PromptChain:
        return prompt_chain(self._request, self._seed)

    def costs(self, engines: Sequence[EngineSnapshot], now: float) -> Sequence[float]:
        loads = [EngineLoad(engine.url, engine.load - 1, engine.waiting) for engine in engines]
        found: Mapping[str, PrefillEstimate] = self._prefills.estimates(
            self.chain, loads, now, home=self._session_home or self.chain.home, away_tokens=self._away_tokens
        )
        self.estimates.update(found)
        return [found[engine.url].cost for engine in engines]

    def on_sent(self, engine: Engine, now: float) -> None:
        self.on_ended(now)
        self._engine = self._prefills.of(engine.url)
        self._sent = self._engine.on_sent(self.chain, self._prefills.seconds_per_token(engine.url), now)

    def on_first_token(self, now: float) -> None:
        if self._engine is not None and self._sent is not None:
            self._engine.on_first_token(self._sent, now)

    def on_answered(self, answer: RecordedResponse, now: float) -> None:
        parsed = parse_answer(answer.body)
        if self._engine is None or self._sent is None or parsed is None:
            return
        self._engine.on_answered(
            self._sent, answered_chain(self.chain, self._request, self._seed, parsed), now,
            prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens,
            cached_tokens=parsed.cached_tokens,
        )  # fmt: skip

    def on_ended(self, now: float) -> None:
        if self._engine is not None and self._sent is not None:
            self._engine.on_ended(self._sent, now)
