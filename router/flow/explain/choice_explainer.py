"""Explains to people which engine a request would get, and why, without sending it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

import msgspec

from router.core.endpoints.chat import CHAT
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.core.resilience.breaker import BreakerState
from router.core.routing.draft_models.draft_stats import unsupported_fields
from router.core.routing.ranking_criteria import Criterion, deciding_criteria
from router.core.routing.session import SESSION_ID, Session
from router.core.types import DEFAULT_TENANT, Task
from router.errors import bad_request
from router.flow.attempts.engine_selection import EngineSelector
from router.flow.request_resolver import RequestResolver
from router.flow.selection import ExplainedSelection, RankedEngine
from router.flow.tenant_rules import TenantRules
from router.upstream.catalog import Catalog
from router.upstream.engine import Engine

LeftOutReason = Literal["drained", "endpoint", "fields", "context"]
"""Why an engine would not be tried: an operator has drained it; it does not have the endpoint; it has a draft, with
which it cannot apply some fields of the request; its context is too small."""


class ChoiceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request to explain: its tenant, path and X-Session-ID, and its body as JSON."""

    body: msgspec.Raw
    tenant: str = DEFAULT_TENANT
    path: str = CHAT.path
    session: str | None = None


class EngineChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that would be tried. None is unknown.

    - `behind_by`: why it comes after the engine before it: another model (a fallback), another share, or a Criterion;
      None for the first.
    - `prefix_tokens`: those of the prompt that it is believed to hold. `queue_seconds`: until it has worked off what
      was sent. `ttft_seconds`: the expected time to the first token.
    - `cost_seconds`: that time with what it takes from others; `answer_seconds`: the answer, where engines differ in
      that; `total_seconds`: both, and how long others there are delayed where answers differ. Engines are ranked by it;
      None if it was compared with no other.
    - `in_flight`: requests of this router process; `max_in_flight`: the limit of all its workers.
    """

    engine: str
    model: str
    behind_by: Criterion | Literal["model", "share"] | None
    state: str
    breaker: str
    task: str
    max_model_len: int | None
    draft: bool | None
    in_flight: int
    max_in_flight: int | None
    waiting: float | None
    prefix_tokens: int | None = None
    queue_seconds: float | None = None
    seconds_per_token: float | None = None
    ttft_seconds: float | None = None
    cost_seconds: float | None = None
    answer_seconds: float = 0.0
    total_seconds: float | None = None


class LeftOut(msgspec.Struct, frozen=True):
    engine: str
    model: str
    reason: LeftOutReason


class ChoiceExplanation(msgspec.Struct, frozen=True):
    """`engines`: in the order in which they would be tried. `router`: the process that answers, as `host:pid`.

    `prompt_tokens`: an estimate. `adjusted_fields`: those that would be left out of the request.
    """

    router: str
    model: str
    task: Task
    prompt_tokens: int | None
    engines: Sequence[EngineChoice]
    left_out: Sequence[LeftOut]
    adjusted_fields: Sequence[str]


class ChoiceExplainer:
    """Explains choices as this router process would make them now.

    - Nothing is sent to an engine, stored, logged or counted.
    - Nothing is left to chance: no engine is tried in order to measure it.
    - A request that the router would refuse is refused here with the same ApiError.
    """

    def __init__(
        self, *, router: str, resolver: RequestResolver, selector: EngineSelector, catalog: Catalog, rules: TenantRules,
        tenants: Collection[str], breaker_state: Callable[[str], BreakerState], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """`router`: what the process is called. `breaker_state`: by the engine's name. `clock`: as EngineSelector's."""
        self._router = router
        self._resolver = resolver
        self._selector = selector
        self._catalog = catalog
        self._rules = rules
        self._tenants = tenants
        self._breaker_state = breaker_state
        self._clock = clock

    def explain(self, request: ChoiceRequest) -> ChoiceExplanation:
        """Raises ApiError."""
        if request.tenant not in self._tenants:
            raise bad_request(f"Unknown tenant {request.tenant[:64]!r}.", param="tenant")
        endpoint = ENDPOINT_BY_PATH.get(request.path)
        if endpoint is None:
            raise bad_request(f"`path` must be one of {', '.join(ENDPOINT_BY_PATH)}.", param="path")
        if request.session is not None and not SESSION_ID.fullmatch(request.session.encode()):
            raise bad_request("`session` cannot be an X-Session-ID.", param="session")
        session = None if request.session is None else Session(request.session)
        parsed = self._resolver.resolve(endpoint, request.tenant, bytes(request.body), session=session)
        name = parsed.model.name
        models = self._catalog.fallback_chain(name) if endpoint.may_fall_back else [name]
        models = self._rules.allowed_models(request.tenant, models)
        explained = self._selector.explain(parsed, request.tenant, session, models)
        engines = list(self._choices(explained))
        tried = {choice.engine for choice in engines}
        others = [one for model in models for one in self._catalog.engines_for(model) if one.name not in tried]
        estimates = (one.estimate for cohort in explained.cohorts for one in cohort if one.estimate is not None)
        first = next(estimates, None)
        return ChoiceExplanation(
            router=self._router,
            model=parsed.model.reported_name,
            task=parsed.task,
            prompt_tokens=first.prompt_tokens if first is not None else None,
            engines=engines,
            left_out=[
                LeftOut(one.name, one.model, self._why_left_out(one, parsed.request, explained)) for one in others
            ],
            adjusted_fields=explained.adjusted_fields,
        )

    def _choices(self, explained: ExplainedSelection) -> Iterator[EngineChoice]:
        model: str | None = None
        for cohort in explained.cohorts:
            seconds = {one.engine.name: one.total_seconds for one in cohort if one.total_seconds is not None}
            criteria = deciding_criteria([one.snapshot for one in cohort], seconds, explained.bounds)
            for one, criterion in zip(cohort, criteria, strict=True):
                behind_by: Criterion | Literal["model", "share"] | None = criterion
                if criterion is None and model is not None:
                    behind_by = "share" if one.engine.model == model else "model"
                model = one.engine.model
                yield self._choice(one, behind_by)

    def _choice(self, one: RankedEngine, behind_by: Criterion | Literal["model", "share"] | None) -> EngineChoice:
        engine, estimate = one.engine, one.estimate
        choice = EngineChoice(
            engine=engine.name,
            model=engine.model,
            behind_by=behind_by,
            state=engine.state,
            breaker=self._breaker_state(engine.name).value,
            task=engine.task,
            max_model_len=engine.max_model_len,
            draft=engine.has_draft,
            in_flight=engine.in_flight,
            max_in_flight=engine.max_in_flight,
            waiting=engine.gauges.waiting,
            answer_seconds=one.snapshot.answer_seconds,
        )
        if estimate is None:
            return choice
        return msgspec.structs.replace(
            choice,
            prefix_tokens=estimate.cached_tokens,
            queue_seconds=estimate.queue,
            seconds_per_token=estimate.seconds_per_token,
            ttft_seconds=estimate.ttft,
            cost_seconds=estimate.cost,
            total_seconds=one.total_seconds,
        )

    def _why_left_out(self, engine: Engine, request: InferenceRequest, explained: ExplainedSelection) -> LeftOutReason:
        if engine.drained:
            return "drained"
        if engine.unserved_paths.has(request.endpoint.path, self._clock()):
            return "endpoint"
        has_unsupported_fields = unsupported_fields(request) and not explained.adjusted_fields
        return "fields" if has_unsupported_fields and engine.has_draft else "context"
