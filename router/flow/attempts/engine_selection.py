"""Selects the engines for a request, the best first, and the fields that they cannot serve."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import NormalDist
from types import MappingProxyType
from typing import Final

from router.core.endpoints.requests.request import without_fields
from router.core.routing.context_length import check_fit, context_length_error, context_need, token_bounds
from router.core.routing.draft_models.answer_time import FamilyLoad
from router.core.routing.draft_models.counted_steps import SpeculationCounters
from router.core.routing.draft_models.draft_performance import DraftStatus, MeasuredGeneration
from router.core.routing.draft_models.draft_stats import DraftStats, unsupported_fields
from router.core.routing.draft_models.score_bins import TASKS, score_bin
from router.core.routing.draft_models.step_rates import load_level
from router.core.routing.prefill import Prefills
from router.core.routing.prefix_cache.prompt_chain import chain_seed
from router.core.routing.ranking import EngineSnapshot, rank_with_seconds, task_distance
from router.core.routing.session import Session
from router.core.routing.token_bounds import TokenBounds
from router.core.routing.traffic_share import REST
from router.core.types import Task
from router.errors import unknown_model
from router.flow.attempts.cohorts import split_by_cohort
from router.flow.attempts.eligibility import has_endpoint, supports_fields
from router.flow.attempts.routed_prompt import ChainedPrompt
from router.flow.exchange import GenerationRecord
from router.flow.parsed_request import ParsedRequest
from router.flow.selection import ExplainedSelection, RankedEngine, Selection
from router.shared.prompts.prompt_records import PromptRecords
from router.upstream.catalog import Catalog
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.engines")

_MIN_PROBABILITY: Final = 1e-6  # 0 and 1 have no normal deviation


class EngineSelector:
    """Selects engines, and measures what each draft is worth (speculative decoding makes the engine faster).

    - A request with sampling fields that speculative decoding does not support goes to engines without a draft. If none
      of those is up, the fields are left out.
    - Between drafts, requests without X-Session-ID decide by Thompson sampling: the less is known of a draft, the more
      often it is tried. In addition, a share `exploration_rate` of the requests goes first to the engine that is least
      measured at the task. If it is 0, nothing is tried, and the best known draft is always used.
    """

    def __init__(
        self,
        catalog: Catalog,
        draft_stats: DraftStats,
        prefills: Prefills,
        prompt_records: PromptRecords,
        *,
        exploration_rate: float,
        clock: Callable[[], float],
        random: Callable[[], float],
        affinity_names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`clock` returns monotonic seconds, as in GenerationRecord; `random` returns numbers from 0 up to 1.

        `affinity_names`: by tenant, the name of the group with which it shares prefixes, if it is in one.
        """
        self._catalog = catalog
        self._exploration_rate = exploration_rate
        self._clock = clock
        self._random = random
        self._draft_stats = draft_stats
        self._prefills = prefills
        self._prompt_records = prompt_records
        self._affinity_names = affinity_names

    def select(
        self, parsed: ParsedRequest, tenant: str, session: Session | None, models: Sequence[str] = (), *,
        needs_estimates: bool = False,
    ) -> Selection:  # fmt: skip
        """The engines of `models` in this order (by default, of the request's model).

        `needs_estimates`: also where there is no choice.

        Raises ApiError (400) for a request that exceeds the context length of all of them.
        """
        request = parsed.request
        able, adjusted, max_engines = self._able_engines(parsed, models)
        if adjusted:
            request = without_fields(request, adjusted)
        if not needs_estimates and all(len(engines) == 1 for engines in able):  # the common case needs no ranking
            return Selection(
                lambda: [engine for engines in able for engine in engines if not engine.drained][:max_engines],
                request,
                adjusted,
            )
        # Who chooses a session wants to stay with its engine. That of an agent only says where its home is.
        may_draw = session is None or not session.is_chosen
        explore = may_draw and self._random() < self._exploration_rate
        deviations = self._draw_deviations(able) if may_draw and self._exploration_rate > 0 else {}
        prompt = self._prompt(parsed, tenant, session)
        return Selection(
            lambda: [
                engine
                for engines in able
                for cohort in self._cohorts(engines, parsed)
                for engine in self._rank(cohort, parsed, prompt, explore, deviations)
            ][:max_engines],
            request,
            adjusted,
            prompt,
        )

    def explain(
        self, parsed: ParsedRequest, tenant: str, session: Session | None, models: Sequence[str] = ()
    ) -> ExplainedSelection:
        """The ranking that `select` would give now, without anything left to chance. Raises ApiError as it does."""
        able, adjusted, max_engines = self._able_engines(parsed, models)
        prompt, now = self._prompt(parsed, tenant, session), self._clock()
        cohorts: list[Sequence[RankedEngine]] = []
        for cohort in [cohort for engines in able for cohort in self._cohorts(engines, parsed)]:
            ranked = []
            for view, seconds in self._ranking(cohort, parsed, prompt, now, {}):
                engine = self._catalog.engines[view.name]
                ranked.append(RankedEngine(engine, view, seconds, prompt.estimate_at(engine, now)))
            cohorts.append(ranked)
        if max_engines is not None:
            cohorts = [cohorts[0][:max_engines]]
        return ExplainedSelection(cohorts, adjusted, token_bounds(parsed.request))

    def _able_engines(
        self, parsed: ParsedRequest, models: Sequence[str]
    ) -> tuple[Sequence[Sequence[Engine]], tuple[str, ...], int | None]:
        """By model, the engines that may be able to serve the request; the fields that are left out for them; and how
        many of them may be asked (None: all). Raises ApiError.
        """
        request, need = parsed.request, context_need(parsed.request)
        serving = [self._catalog.engines_for(model) for model in models or (parsed.model.name,)]
        if not any(serving):  # an adapter that its last engine has lost since the request was parsed
            raise unknown_model(request.model)
        max_engines = None
        if any(engine.unserved_paths for engines in serving for engine in engines):
            having = self._with_endpoint(serving, request.endpoint.path)
            # If none has it, one is asked: its 404 is the answer, unless it has the endpoint by now.
            serving, max_engines = (having, None) if having else (serving, 1)
        able = [
            long_enough
            for engines in serving
            if (long_enough := [engine for engine in engines if engine.has_room_for(need)])
        ]
        if not able:
            contexts = [engine.max_model_len or 0 for engines in serving for engine in engines]
            raise context_length_error(request, token_bounds(request), max(contexts, default=0))
        adjusted = unsupported_fields(request)
        if adjusted:
            without_draft = [[engine for engine in engines if supports_fields(engine, adjusted)] for engines in able]
            # The engines of the first model decide, because they are tried first. Where no engine has a draft, all of
            # them support the fields, up or not.
            if without_draft == able or any(
                engine.up is not False and not engine.drained for engine in without_draft[0]
            ):
                able, adjusted = without_draft, ()
        return able, adjusted, max_engines

    def _with_endpoint(self, serving: Sequence[Sequence[Engine]], path: str) -> list[Sequence[Engine]]:
        """Without the engines that are known not to have the endpoint, and without models that have no others."""
        now = self._clock()
        having = [[engine for engine in engines if has_endpoint(engine, path, now)] for engines in serving]
        return [engines for engines in having if engines]

    def _cohorts(self, engines: Sequence[Engine], parsed: ParsedRequest) -> Sequence[Sequence[Engine]]:
        """The engines of one model, those that the request is for first; each part is ranked on its own."""
        model = engines[0].model
        shares = self._catalog.shares_of(model)
        if shares is None:
            return (engines,)
        # A fallback has cohorts of its own.
        cohort = parsed.cohort if model == parsed.model.configured_name else None
        return split_by_cohort(engines, shares, REST if cohort is None else cohort)

    def _draw_deviations(self, serving: Sequence[Sequence[Engine]]) -> Mapping[str, float]:
        """By family, a number of the standard normal distribution."""
        families = {engine.family: None for engines in serving for engine in engines}
        if len({engine.family for engines in serving for engine in engines if engine.has_draft}) < 2:
            return {}
        # Also for engines without a draft: a probe can find one before they are ranked.
        return {family: _normal_deviation(self._random()) for family in families}

    def _rank(
        self,
        engines: Sequence[Engine],
        parsed: ParsedRequest,
        prompt: ChainedPrompt,
        explore: bool,
        deviations: Mapping[str, float],
    ) -> Sequence[Engine]:
        if len(engines) < 2:
            return [engine for engine in engines if not engine.drained]
        ranking = self._ranking(engines, parsed, prompt, self._clock(), deviations)
        order = [self._catalog.engines[view.name] for view, _ in ranking]
        if explore and len(order) > 1:
            return self._least_known_first(order, parsed.task, token_bounds(parsed.request))
        return order

    def _ranking(
        self,
        engines: Sequence[Engine],
        parsed: ParsedRequest,
        prompt: ChainedPrompt,
        now: float,
        deviations: Mapping[str, float],
    ) -> Sequence[tuple[EngineSnapshot, float | None]]:
        seconds = self._answer_seconds(engines, parsed, now, deviations)
        return rank_with_seconds(
            [engine.snapshot(answer_seconds=seconds.get(engine.family, 0.0)) for engine in engines],
            bounds=token_bounds(parsed.request),
            costs=partial(prompt.costs, now=now),
        )

    def _prompt(self, parsed: ParsedRequest, tenant: str, session: Session | None) -> ChainedPrompt:
        adapter = parsed.model.adapter
        # What an engine does not share with others in its prefix cache; see core.endpoints.requests.cache_salt.
        names = self._affinity_names.get(tenant, tenant), adapter.id if adapter is not None else ""
        seed = chain_seed(*names, str(parsed.request.fields.get("cache_salt", "")))
        return ChainedPrompt(self._prefills, self._prompt_records, parsed.request, seed, tenant, session)

    def _answer_seconds(
        self, engines: Sequence[Engine], parsed: ParsedRequest, now: float, deviations: Mapping[str, float]
    ) -> Mapping[str, float]:
        """By family; empty if there is only one."""
        by_family: dict[str, list[Engine]] = {}
        usable = [engine for engine in engines if not engine.drained]
        for engine in [engine for engine in usable if engine.up is not False] or usable:
            by_family.setdefault(engine.family, []).append(engine)
        if len(by_family) < 2:
            return {}
        request, task = parsed.request, parsed.task
        tokens = 1.0
        if request.endpoint.samples:
            tokens = self._draft_stats.expected_tokens(engines[0].model, task, request.max_tokens)
        loads = [_family_load(family, task, members) for family, members in by_family.items()]
        return self._draft_stats.answer_seconds(loads, score_bin(parsed.log_odds), tokens, now, deviations)

    def _least_known_first(self, engines: list[Engine], task: Task, bounds: TokenBounds) -> list[Engine]:
        """Moves the least measured engine to the front, if it could serve the request as well as the best one."""
        best_fit = check_fit(bounds, engines[0].max_model_len)
        equals = [
            engine
            for engine in engines
            if engine.up and not engine.snapshot().has_backlog and check_fit(bounds, engine.max_model_len) is best_fit
        ]
        family = self._draft_stats.least_measured((engine.family for engine in equals), task, self._clock())
        least_known = next((engine for engine in equals if engine.family == family), None)
        return (
            engines
            if least_known is None
            else [least_known, *(engine for engine in engines if engine is not least_known)]
        )

    # -- measurements -------------------------------------------------------------------------------------------------

    def learn(self, record: GenerationRecord) -> None:
        name, origin = record.engine, record.origin
        if name is None or record.error_reason is not None or record.dispatched_at is None:
            return
        if any(attempt.has_failed and attempt.concerns_engine for attempt in record.attempts):
            return  # its duration includes the failed attempts at other engines
        engine, now, speculation = self._catalog.engines[name], self._clock(), record.speculation
        self._draft_stats.record_generation(
            MeasuredGeneration(
                engine=engine.name,
                family=engine.family,
                model=engine.model,
                rivals=self._catalog.families_for(engine.model),
                bin_=score_bin(origin.log_odds),
                tokens=record.completion_tokens,
                seconds=now - record.dispatched_at,
                level=load_level(engine.load + 1),
                speculation=SpeculationCounters(speculation.steps, speculation.accepted) if speculation else None,
                has_draft=engine.has_draft,
                choices=origin.choices,
            ),
            now,
        )

    def on_probe_round(self) -> None:
        now = self._clock()
        self._prompt_records.say_hello()
        for engine in self._catalog.engines.values():
            prefill = self._prefills.of(engine.id)
            prefill.set_capacity_tokens(engine.gauges.kv_cache_tokens)
            prefill.index.mark(now)
            if engine.up is False:
                prefill.forget()
        for engine in self._catalog.engines.values():
            if engine.gauges.spec_counts is not None:
                self._draft_stats.record_counters(
                    engine.name, engine.family, self._catalog.families_for(engine.model), engine.gauges.spec_counts, now
                )
        for engine in self._catalog.engines.values():
            engine.drafts = {task: self._draft_status(engine, task, now) for task in TASKS}
            if engine.has_draft:
                engine.tokens_per_step_by_bin = self._draft_stats.tokens_per_step_by_bin(engine.family, now)
            for task, draft in engine.drafts.items():
                self._log_verdict(engine, task, draft)

    def _draft_status(self, engine: Engine, task: Task, now: float) -> DraftStatus:
        draft_stats, family = self._draft_stats, engine.family
        performance = draft_stats.performance(family, task, now)
        pays = None
        if engine.has_draft:
            level = _level_of_running(engine)
            previously = False if level in self._draft_stats.failing_levels.get((family, task), ()) else None
            pays = draft_stats.pays(family, engine.baseline, task, level, now, previously)
        return DraftStatus(
            performance.tokens_per_second, performance.tokens_per_step if engine.has_draft else None, pays
        )

    def _log_verdict(self, engine: Engine, task: Task, draft: DraftStatus) -> None:
        """Logs a draft that has stopped paying or pays again; once for all replicas and loads."""
        if draft.pays is None:
            return
        failing = self._draft_stats.failing_levels.setdefault((engine.family, task), set())
        level = _level_of_running(engine)
        was_failing = bool(failing)
        if draft.pays:
            failing -= set(range(level + 1))  # it pays at lower loads too; see step_rates
        else:
            failing.add(level)
        if failing and not was_failing:
            # A draft that is not meant for the task need not pay for it, so that is only information.
            severity = logging.WARNING if engine.task in (task, "any") else logging.INFO
            log.log(
                severity, "engine %s: its draft model slows %s down: %s tokens per second, %s tokens per step",
                engine.family, task, _format_rate(draft.tokens_per_second), _format_rate(draft.tokens_per_step),
            )  # fmt: skip
        elif was_failing and not failing:
            log.info("engine %s: its draft model speeds %s up again", engine.family, task)


def _family_load(family: str, task: Task, engines: Sequence[Engine]) -> FamilyLoad:
    snapshots = [engine.snapshot() for engine in engines]
    return FamilyLoad(
        family,
        task_distance(engines[0].task, task),
        engines[0].has_draft,
        sum(snapshot.load for snapshot in snapshots) / len(snapshots),
        min(snapshot.backlog for snapshot in snapshots),
    )


def _level_of_running(engine: Engine) -> int:
    return load_level(max(1.0, engine.load))


def _normal_deviation(probability: float) -> float:
    return NormalDist().inv_cdf(min(max(probability, _MIN_PROBABILITY), 1 - _MIN_PROBABILITY))


def _format_rate(number: float | None) -> str:
    return f"{number:.2f}" if number is not None else "unknown"
