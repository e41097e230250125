"""Who is to do the work: the engines for one request, the best first, and what must be left out of it for them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, get_args

import msgspec

from router.core.endpoints.request import InferenceRequest, without_fields
from router.core.routing.affinity import affinity_key
from router.core.routing.context_length import TokenBounds, check_fit, context_length_error, min_context, token_bounds
from router.core.routing.draft_stats import DraftStats, unsupported_fields
from router.core.routing.ranking import rank_engines
from router.core.types import Task
from router.flow.exchange import GenerationRecord
from router.flow.parsed_request import ParsedRequest
from router.upstream.catalog import Catalog, DraftStatus, Engine

log = logging.getLogger("roundhouse.engines")

_TASKS: Final[tuple[Task, ...]] = get_args(Task)


class Selection(msgspec.Struct, frozen=True):
    """Who is to answer a request, and the request as they get it.

    - `engines`: gives the engines to try, the best first, as things stand when it is called: what is in flight counts
      only once it is sent, so the order is made right before.
    - `adjusted`: the fields that were left out of the request because no engine of the model could serve them; the
      answer is then not quite that to the request, and nobody else's.
    """

    order_engines: Callable[[], Sequence[Engine]]
    request: InferenceRequest
    adjusted_fields: tuple[str, ...] = ()


class EngineSelector:
    """Chooses engines, and learns from what becomes of it which draft pays for which task.

    - A request whose sampling an engine's speculation cannot serve goes to engines without; where there is none that is
      up, the fields are left out.
    - A share `explore` of the requests goes first to the engine of which the least is known at the task.
    """

    def __init__(
        self,
        catalog: Catalog,
        draft_stats: DraftStats,
        *,
        exploration_rate: float,
        clock: Callable[[], float],
        random: Callable[[], float],
        affinity_names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`clock` gives monotonic seconds (work's instants are of it); `random` numbers from 0 up to 1.

        `affinity_names`: by tenant, the name of those with whom it shares prefixes, where that is not its own.
        """
        self._catalog = catalog
        self._exploration_rate = exploration_rate
        self._clock = clock
        self._random = random
        self._draft_stats = draft_stats
        self._affinity_names = affinity_names

    def select(self, parsed: ParsedRequest, tenant: str, session: str | None, models: Sequence[str] = ()) -> Selection:
        """The engines of the request's model, or of these, one after the other.

        Raises ApiError (400) for a request that no engine of them could take.
        """
        request, least = parsed.request, min_context(parsed.request)
        serving = [self._catalog.engines_for(model) for model in models or (parsed.model.name,)]
        able = [
            large_enough
            for engines in serving
            if (large_enough := [e for e in engines if e.max_model_len is None or e.max_model_len >= least])
        ]
        if not able:
            contexts = [engine.max_model_len or 0 for engines in serving for engine in engines]
            raise context_length_error(request, token_bounds(request), max(contexts, default=0))
        adjusted = unsupported_fields(request)
        if adjusted:
            plain = [[engine for engine in engines if engine.has_draft is not True] for engines in able]
            if any(engine.up is not False and not engine.drained for engine in plain[0]):
                able, adjusted = plain, ()
        explores = session is None and self._random() < self._exploration_rate
        return Selection(
            lambda: [e for engines in able for e in self._rank(engines, parsed, tenant, session, explores)],
            without_fields(request, adjusted) if adjusted else request,
            adjusted,
        )

    def _rank(
        self,
        engines: Sequence[Engine],
        parsed: ParsedRequest,
        tenant: str,
        session: str | None,
        explore: bool,
    ) -> Sequence[Engine]:
        """The engines of one model, the best first."""
        if len(engines) < 2:
            return [engine for engine in engines if not engine.drained]
        length, task, families = token_bounds(parsed.request), parsed.task, {engine.family for engine in engines}
        slow = self._draft_stats.slow_families(families, task, self._clock()) if len(families) > 1 else frozenset[str]()
        affinity = affinity_key(parsed.key.text, tenant, session, self._affinity_names.get(tenant, tenant))
        views = rank_engines(
            task, [engine.snapshot(slow=engine.family in slow) for engine in engines], bounds=length, affinity=affinity
        )
        order = [self._catalog.engines[view.name] for view in views]
        return self._least_known_first(order, task, length) if explore and len(order) > 1 else order

    def _least_known_first(self, engines: list[Engine], task: Task, length: TokenBounds) -> list[Engine]:
        """The same, but that of which the least is known comes first, if it could do it as well."""
        fits = check_fit(length, engines[0].max_model_len)
        equals = [
            engine
            for engine in engines
            if engine.up and not engine.snapshot().has_backlog and check_fit(length, engine.max_model_len) is fits
        ]
        family = self._draft_stats.least_measured((engine.family for engine in equals), task, self._clock())
        other = next((engine for engine in equals if engine.family == family), None)
        return engines if other is None else [other, *(engine for engine in engines if engine is not other)]

    # -- what is learned --------------------------------------------------------------------------------------------

    def record_generation(self, record: GenerationRecord) -> None:
        """A generation is over."""
        if record.engine is None or record.error_reason is not None or record.dispatched_at is None:
            return
        if record.failed_attempts:
            return  # its time holds that of other engines
        engine, now = self._catalog.engines[record.engine], self._clock()
        seconds = now - record.dispatched_at
        self._draft_stats.record_generation(
            engine.name, engine.family, record.task, record.completion_tokens, seconds, now
        )

    def on_probe_round(self) -> None:
        """The engines have been asked how they are."""
        now = self._clock()
        for engine in self._catalog.engines.values():
            if engine.gauges.spec_counts is not None:
                self._draft_stats.record_counters(engine.name, engine.family, engine.gauges.spec_counts, now)
        told: set[tuple[str, Task]] = set()
        for engine in self._catalog.engines.values():
            before = engine.drafts
            engine.drafts = {task: self._draft_status(engine, task, now) for task in _TASKS}
            for task, draft in engine.drafts.items():
                if (engine.family, task) not in told and self._log_draft_change(engine, task, before.get(task), draft):
                    told.add((engine.family, task))

    def _draft_status(self, engine: Engine, task: Task, now: float) -> DraftStatus:
        experience, family = self._draft_stats, engine.family
        learned = experience.performance(family, task, now)
        pays = None
        if engine.has_draft:
            rivals = [other.family for other in self._catalog.engines_for(engine.model)]
            before = engine.drafts.get(task)
            pays = experience.pays(family, rivals, task, now, before.pays if before is not None else None)
        return DraftStatus(learned.tokens_per_second, learned.tokens_per_step if engine.has_draft else None, pays)

    @staticmethod
    def _log_draft_change(engine: Engine, task: Task, before: DraftStatus | None, draft: DraftStatus) -> bool:
        """Says once that a draft has stopped paying, or that it pays again; returns whether it did."""
        did = before.pays if before is not None else None
        if draft.pays is False and did is not False:
            # A draft that is not for the task need not pay; that it does not is what the routing goes by.
            level = logging.WARNING if engine.task in (task, "any") else logging.INFO
            log.log(
                level, "engine %s: its draft does not pay for %s: %s tokens a second, %s a step",
                engine.family, task, _format_rate(draft.tokens_per_second), _format_rate(draft.tokens_per_step),
            )  # fmt: skip
            return True
        if draft.pays is True and did is False:
            log.info("engine %s: its draft pays for %s again", engine.family, task)
            return True
        return False


def _format_rate(number: float | None) -> str:
    return f"{number:.2f}" if number is not None else "unknown"
