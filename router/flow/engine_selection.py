"""Selects the engines for a request, the best first, and the fields that they cannot serve."""

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, get_args

import msgspec

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.request import without_fields
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
    """The engines for a request, and the request as they get it.

    - `order_engines` ranks the engines by their state at the time of the call. It is called right before the request is
      sent, because a request counts as load at an engine only once it is sent.
    - `adjusted_fields` are left out of the request because no engine of the model supports them. The response then
      does not match the request exactly, so it must not be shared or stored.
    """

    order_engines: Callable[[], Sequence[Engine]]
    request: InferenceRequest
    adjusted_fields: tuple[str, ...] = ()


class EngineSelector:
    """Selects engines, and measures for which task each draft pays (speculative decoding makes the engine faster).

    - A request with sampling fields that speculative decoding does not support goes to engines without a draft. If none
      of those is up, the fields are left out.
    - A share `exploration_rate` of the requests goes first to the engine that is least measured at the task.
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
        """`clock` returns monotonic seconds, as in GenerationRecord; `random` returns numbers from 0 up to 1.

        `affinity_names`: by tenant, the name of the group with which it shares prefixes, if it is in one.
        """
        self._catalog = catalog
        self._exploration_rate = exploration_rate
        self._clock = clock
        self._random = random
        self._draft_stats = draft_stats
        self._affinity_names = affinity_names

    def select(self, parsed: ParsedRequest, tenant: str, session: str | None, models: Sequence[str] = ()) -> Selection:
        """The engines of `models` in this order (by default, of the request's model).

        Raises ApiError (400) for a request that exceeds the context length of all of them.
        """
        request, min_length = parsed.request, min_context(parsed.request)
        serving = [self._catalog.engines_for(model) for model in models or (parsed.model.name,)]
        able = [
            long_enough
            for engines in serving
            if (long_enough := [e for e in engines if e.max_model_len is None or e.max_model_len >= min_length])
        ]
        if not able:
            contexts = [engine.max_model_len or 0 for engines in serving for engine in engines]
            raise context_length_error(request, token_bounds(request), max(contexts, default=0))
        adjusted = unsupported_fields(request)
        if adjusted:
            # `has_draft` is None if unknown; such an engine may well support the fields.
            without_draft = [[engine for engine in engines if engine.has_draft is not True] for engines in able]
            # The engines of the first model decide, because they are tried first.
            if any(engine.up is not False and not engine.drained for engine in without_draft[0]):
                able, adjusted = without_draft, ()
        # A session stays with its engine, whose prefix cache has the conversation so far.
        explore = session is None and self._random() < self._exploration_rate
        return Selection(
            lambda: [e for engines in able for e in self._rank(engines, parsed, tenant, session, explore)],
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
        if len(engines) < 2:  # the common case needs no ranking
            return [engine for engine in engines if not engine.drained]
        length_bounds, task, families = token_bounds(parsed.request), parsed.task, {engine.family for engine in engines}
        slow = self._draft_stats.slow_families(families, task, self._clock()) if len(families) > 1 else frozenset[str]()
        affinity = affinity_key(parsed.key.parts, session, self._affinity_names.get(tenant, tenant))
        snapshots = rank_engines(
            task,
            [engine.snapshot(slow=engine.family in slow) for engine in engines],
            bounds=length_bounds,
            affinity=affinity,
        )
        order = [self._catalog.engines[view.name] for view in snapshots]
        return self._least_known_first(order, task, length_bounds) if explore and len(order) > 1 else order

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

    def record_generation(self, record: GenerationRecord) -> None:
        if record.engine is None or record.error_reason is not None or record.dispatched_at is None:
            return
        if record.failed_attempts:
            return  # its duration includes the failed attempts at other engines
        engine, now = self._catalog.engines[record.engine], self._clock()
        seconds = now - record.dispatched_at
        self._draft_stats.record_generation(
            engine.name, engine.family, record.task, record.completion_tokens, seconds, now
        )

    def on_probe_round(self) -> None:
        now = self._clock()
        for engine in self._catalog.engines.values():
            if engine.gauges.spec_counts is not None:
                self._draft_stats.record_counters(engine.name, engine.family, engine.gauges.spec_counts, now)
        # Replicas of one engine have the same status: one log line for all of them.
        logged: set[tuple[str, Task]] = set()
        for engine in self._catalog.engines.values():
            before = engine.drafts
            engine.drafts = {task: self._draft_status(engine, task, now) for task in _TASKS}
            for task, draft in engine.drafts.items():
                if (engine.family, task) not in logged and self._log_draft_change(
                    engine, task, before.get(task), draft
                ):
                    logged.add((engine.family, task))

    def _draft_status(self, engine: Engine, task: Task, now: float) -> DraftStatus:
        draft_stats, family = self._draft_stats, engine.family
        performance = draft_stats.performance(family, task, now)
        pays = None
        if engine.has_draft:
            rivals = [other.family for other in self._catalog.engines_for(engine.model)]
            before = engine.drafts.get(task)
            pays = draft_stats.pays(family, rivals, task, now, before.pays if before is not None else None)
        return DraftStatus(
            performance.tokens_per_second, performance.tokens_per_step if engine.has_draft else None, pays
        )

    @staticmethod
    def _log_draft_change(engine: Engine, task: Task, before: DraftStatus | None, draft: DraftStatus) -> bool:
        """Logs a draft that has stopped paying or pays again. Returns whether it logged anything."""
        paid_before = before.pays if before is not None else None
        if draft.pays is False and paid_before is not False:
            # A draft that is not meant for the task need not pay for it, so that is only information.
            level = logging.WARNING if engine.task in (task, "any") else logging.INFO
            log.log(
                level, "engine %s: its draft model slows %s down: %s tokens per second, %s tokens per step",
                engine.family, task, _format_rate(draft.tokens_per_second), _format_rate(draft.tokens_per_step),
            )  # fmt: skip
            return True
        if draft.pays is True and paid_before is False:
            log.info("engine %s: its draft model speeds %s up again", engine.family, task)
            return True
        return False


def _format_rate(number: float | None) -> str:
    return f"{number:.2f}" if number is not None else "unknown"
