"""The prompt of a request on its way: which engines hold how much of it, and what its answer says of that."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final, Protocol

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.core.plural import pluralize
from router.core.routing.max_ttft import UNKNOWN, Forecast
from router.core.routing.prefill import (
    AWAY_TOKENS,
    SESSION_AWAY_TOKENS,
    EngineLoad,
    EnginePrefill,
    PrefillEstimate,
    Prefills,
    SentPrompt,
)
from router.core.routing.prefix_cache.affinity import conversation_home, session_home
from router.core.routing.prefix_cache.prompt_chain import (
    PromptChain,
    answered_chain,
    has_several_prompts,
    parse_answer,
    prompt_chain,
)
from router.core.routing.prefix_tokens import compare_prefix
from router.core.routing.ranking import EngineSnapshot, PromptCost
from router.core.routing.session import Session, session_of_request
from router.flow.exchange import NOT_PLACED, PromptPlacement
from router.shared.prompts.prompt_records import PromptRecords
from router.upstream.engine import Engine


class RoutedPrompt(Protocol):
    """What a generation reports of its prompt. All times are those of time.perf_counter."""

    placement: PromptPlacement

    @property
    def fingerprint(self) -> int:
        """The same for the same prompt."""

    def estimate_at(self, engine: Engine, now: float) -> PrefillEstimate | None:
        """What is expected of an engine; None if nothing is estimated for this prompt."""

    def forecast_at(self, engine: Engine, now: float, *, slot_wait: float) -> Forecast:
        """When an engine is expected to begin. `slot_wait`: seconds until it has a slot."""

    def on_sent(self, engine: Engine, now: float) -> None:
        """It is sent to an engine, for the first time or again."""

    def on_first_token(self, now: float) -> None: ...

    def on_tokenized(self, token_ids: bytes) -> None:
        """The engine has sent the ids of the prompt's tokens, as JSON has them, without the brackets."""

    def on_answered(self, answer: RecordedResponse, now: float) -> None: ...

    def on_ended(self, now: float) -> None:
        """The engine does not work on it any more, however it has ended. More than once is fine."""


class UnroutedPrompt:
    """Of a request that has only one engine."""

    placement = NOT_PLACED
    fingerprint = 0

    def estimate_at(self, engine: Engine, now: float) -> PrefillEstimate | None:
        return None

    def forecast_at(self, engine: Engine, now: float, *, slot_wait: float) -> Forecast:
        return UNKNOWN

    def on_sent(self, engine: Engine, now: float) -> None:
        pass

    def on_first_token(self, now: float) -> None:
        pass

    def on_tokenized(self, token_ids: bytes) -> None:
        pass

    def on_answered(self, answer: RecordedResponse, now: float) -> None:
        pass

    def on_ended(self, now: float) -> None:
        pass


UNROUTED: Final = UnroutedPrompt()


class ChainedPrompt:
    """The prompt of a request that may go to several engines."""

    def __init__(
        self, prefills: Prefills, records: PromptRecords, request: InferenceRequest, seed: int, tenant: str,
        session: Session | None,
    ) -> None:  # fmt: skip
        """`seed`: of its chain. `session`: see Caller."""
        self._prefills = prefills
        self._records = records
        self._request = request
        self._seed = seed
        session = session_of_request(session, request.fields)
        self._session_home = session_home(tenant, session.id) if session is not None else 0
        self._has_chosen_session = session is not None and session.is_chosen
        self._engine: EnginePrefill | None = None
        self._sent: SentPrompt | None = None
        self._number = 0  # of its records
        # By URL, what the engine was chosen by.
        self._estimates: Mapping[str, PrefillEstimate] = {}
        self._answer_seconds: dict[str, float] = {}
        self.placement = PromptPlacement()

    @cached_property
    def chain(self) -> PromptChain:
        return prompt_chain(self._request, self._seed)

    @property
    def fingerprint(self) -> int:
        return self.chain.hashes[-1] if self.chain.hashes else 0

    def costs(self, engines: Sequence[EngineSnapshot], now: float) -> Sequence[PromptCost]:
        loads = [self._load(engine) for engine in engines]
        home, away_tokens = self._home()
        found = self._prefills.estimates(self.chain, loads, now, home=home, away_tokens=away_tokens)
        self._estimates = {**self._estimates, **found}
        self._answer_seconds |= {engine.url: engine.answer_seconds for engine in engines}
        return [PromptCost(found[engine.url].cost, found[engine.url].others_delay) for engine in engines]

    def estimate_at(self, engine: Engine, now: float) -> PrefillEstimate | None:
        if engine.id not in self._estimates:  # it was not compared with others
            self.costs([engine.snapshot()], now)
        return self._estimates[engine.id]

    def forecast_at(self, engine: Engine, now: float, *, slot_wait: float) -> Forecast:
        estimate, prefill = self.estimate_at(engine, now), self._prefills.of(engine.id)
        if estimate is None or prefill.measured_seconds_per_token is None:
            return UNKNOWN
        rate = prefill.forecast_rate(estimate.seconds_per_token, now)
        return Forecast(max(slot_wait, estimate.queue), rate * estimate.uncached_tokens)

    def _home(self) -> tuple[int, float]:
        """What its home is derived from, 0 for none; and the tokens that another engine costs more."""
        session, chain = self._session_home, self.chain.home
        if not session:
            return chain, self._records.away_tokens(AWAY_TOKENS)
        if self._has_chosen_session:
            return session, self._records.away_tokens(SESSION_AWAY_TOKENS)
        # Sub-agents send the session of their parent, and some clients one `prompt_cache_key` for all their users. So
        # each conversation has a home of its own. A prompt that is too short for a chain has the session's, with the
        # smallest number of tokens.
        away_tokens = self._records.away_tokens(AWAY_TOKENS) if chain else AWAY_TOKENS
        return conversation_home(session, chain), away_tokens

    def _load(self, engine: EngineSnapshot) -> EngineLoad:
        # The engine's own count of others' requests is as old as the last probe.
        in_flight = max(engine.load - 1, engine.in_flight + self._prefills.of(engine.url).remote)
        # Those that wait are counted when the engine is probed, and what was sent by this process ends meanwhile.
        waiting = None if engine.waiting is None else min(engine.waiting, engine.external_load or 0.0)
        return EngineLoad(engine.url, in_flight, waiting)

    def on_sent(self, engine: Engine, now: float) -> None:
        self.on_ended(now)
        self._engine = self._prefills.of(engine.id)
        self._sent = self._engine.on_sent(self.chain, self._prefills.seconds_per_token(engine.id, now), now)
        self._number = self._records.on_sent(engine.id, self.chain)
        self.placement.choice = explain_choice(engine.id, self._estimates, self._answer_seconds)
        self.placement.estimate = self._estimates.get(engine.id)

    def on_first_token(self, now: float) -> None:
        if self._engine is not None and self._sent is not None:
            self._engine.on_first_token(self._sent, now)
            self._records.on_computed(self._number)

    def on_tokenized(self, token_ids: bytes) -> None:
        if self._engine is not None:
            self._engine.blocks.learn(self.chain, token_ids)

    def on_answered(self, answer: RecordedResponse, now: float) -> None:
        parsed, engine, sent = parse_answer(answer.body), self._engine, self._sent
        if engine is None or sent is None or parsed is None:
            return
        answered = answered_chain(self.chain, self._request, self._seed, parsed)
        # Of several prompts, the engine reports the sum, and the chain is of the first one.
        is_counted = not has_several_prompts(self._request)
        prompt_tokens, cached_tokens = (answer.prompt_tokens, parsed.cached_tokens) if is_counted else (0, None)
        engine.on_answered(
            sent, answered, now, prompt_tokens=prompt_tokens, completion_tokens=answer.completion_tokens,
            cached_tokens=cached_tokens,
        )  # fmt: skip
        self._records.on_answered(self._number, self.chain, answered, answer.completion_tokens)
        if (estimate := self.placement.estimate) is not None:
            self.placement.prefix_tokens = compare_prefix(estimate, prompt_tokens, cached_tokens)
        self._sent = None

    def on_ended(self, now: float) -> None:
        if self._engine is not None and self._sent is not None:
            self._engine.on_ended(self._sent, now)
            self._records.on_ended(self._number)
            self._sent = None


def explain_choice(
    url: str, estimates: Mapping[str, PrefillEstimate], answer_seconds: Mapping[str, float] = MappingProxyType({})
) -> str:
    """Why a prompt went to an engine: what it holds of it, in tokens, its queue, and the best of the others.

    `answer_seconds`: by URL. They are part of it where they differ.
    """
    chosen = estimates.get(url)
    if chosen is None:
        return ""
    others = [estimate.ttft for other, estimate in estimates.items() if other != url]
    text = f"prefix {chosen.cached_tokens:,} of {chosen.prompt_tokens:,}; queue {chosen.queue:.2f} s"
    if not others:
        return text
    text += f"; first token {chosen.ttft:.2f} s, {pluralize(len(others), 'other')} {min(others):.2f} s"
    answer = answer_seconds.get(url, 0.0)
    different = [seconds for seconds in answer_seconds.values() if seconds != answer]
    return f"{text}; answer {answer:.1f} s, elsewhere {min(different):.1f} s" if different else text
