"""The models of the configuration, their engines, and the engines' current state."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from router.core.routing.draft_stats import SpeculationCounters
from router.core.routing.ranking import EngineSnapshot
from router.core.types import AUTO, EngineTask, Task
from router.errors import unknown_model
from router.net.client.target import RequestTarget

log = logging.getLogger("roundhouse.engines")

MAX_FALLBACKS: Final = 3
"""Maximum length of a fallback chain, without the requested model itself."""


class Model(msgspec.Struct, frozen=True):
    """A model as clients know it. `auto`: the tasks for which a request for the model `auto` may get it.

    `fallback`: the name of the model that answers if no engine of this one can.
    """

    name: str
    revision: str
    aliases: tuple[str, ...] = ()
    auto: tuple[Task, ...] = ()
    fallback: str | None = None


class EngineGauges(msgspec.Struct, frozen=True):
    """The last values of an engine's own metrics; None is unknown, which is never 0. Ratios are 0 to 1."""

    kv_cache_usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    prefix_cache_hit_rate: float | None = None
    spec_acceptance_rate: float | None = None
    spec_tokens_per_step: float | None = None
    spec_counts: SpeculationCounters | None = None


class DraftStatus(msgspec.Struct, frozen=True):
    """What is known of an engine's draft model at one task; None is unknown. See draft_stats.DraftPerformance.

    `pays`: whether the draft is worth using; see DraftStats.pays.
    """

    tokens_per_second: float | None
    tokens_per_step: float | None
    pays: bool | None


class Engine:
    """One engine process and its state as this router knows it.

    - `up`: None before the first check.
    - `family`: the engine of the configuration that it is a replica of.
    - `max_model_len`: its context length in tokens, from the configuration or from the engine itself.
    - `external_load`: requests of others than this router process at the last check; None is unknown.
    - `has_draft`: whether it has a draft model; None is unknown.
    - `drafts`: measurements of the draft, by task.
    - `drained`: it gets no new work; see router.shared.drains.
    """

    __slots__ = (
        "_max_model_len_is_configured",
        "_targets",
        "drafts",
        "drained",
        "external_load",
        "family",
        "gauges",
        "has_draft",
        "in_flight",
        "max_in_flight",
        "max_model_len",
        "model",
        "name",
        "on_slot_freed",
        "served_model",
        "task",
        "up",
        "url",
    )  # fmt: skip

    def __init__(
        self,
        *,
        name: str,
        model: str,
        task: EngineTask,
        url: str,
        served_model: str,
        max_model_len: int | None = None,
        max_in_flight: int | None = None,
        family: str | None = None,
        has_draft: bool = False,
    ) -> None:
        """`max_in_flight`: maximum number of concurrent requests from this process; None is no limit.

        `has_draft`: whether the configuration gives the engine a draft; unknown for an engine that roundhouse did not
        start.
        """
        self.name = name
        self.family = family if family is not None else name
        self.has_draft: bool | None = has_draft or None
        self.external_load: float | None = None
        self.drafts: Mapping[Task, DraftStatus] = {}
        self._max_model_len_is_configured = max_model_len is not None
        self.model = model
        self.task: EngineTask = task
        self.url = url
        self._targets: dict[str, RequestTarget] = {}
        self.served_model = served_model
        self.max_model_len = max_model_len
        self.max_in_flight = max_in_flight
        self.in_flight = 0  # requests of this router process
        self.on_slot_freed: Callable[[Engine], None] | None = None  # called when a slot becomes free
        self.up: bool | None = None
        self.drained = False
        self.gauges = EngineGauges()

    def target(self, path: str) -> RequestTarget:
        # There are few paths, so the dictionary stays small.
        target = self._targets.get(path)
        if target is None:
            target = self._targets[path] = RequestTarget(self.url + path)
        return target

    @property
    def address(self) -> str:
        """Its host and port, which clients must not see."""
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def has_free_slot(self) -> bool:
        return self.max_in_flight is None or self.in_flight < self.max_in_flight

    def update_status(self, *, up: bool) -> None:
        if up is not self.up:
            log.info("engine %s is %s", self.name, "up" if up else "down")
        self.up = up

    def inherit_state(self, previous: "Engine") -> None:
        # After a reload of the settings: the same engine process, so its state is still true.
        self.up, self.drained, self.gauges, self.external_load = (
            previous.up,
            previous.drained,
            previous.gauges,
            previous.external_load,
        )
        self.drafts, self.has_draft = previous.drafts, self.has_draft or previous.has_draft
        if self.discovers_max_model_len:
            self.max_model_len = previous.max_model_len

    def update_gauges(self, gauges: EngineGauges) -> None:
        self.gauges = gauges
        known = [count for count in (gauges.running, gauges.waiting) if count is not None]
        # The engine's metrics and `in_flight` are not read at the same instant, so the difference may be negative.
        self.external_load = max(0.0, sum(known) - self.in_flight) if known else None
        if gauges.spec_counts is not None:
            self.has_draft = True
        elif gauges.running is not None:  # a vLLM metrics page without speculation metrics
            self.has_draft = False

    @property
    def discovers_max_model_len(self) -> bool:
        return not self._max_model_len_is_configured

    def snapshot(self, *, slow: bool = False) -> EngineSnapshot:
        gauges = self.gauges
        return EngineSnapshot(
            self.name, self.task, self.up, self.in_flight, external_load=self.external_load, running=gauges.running,
            waiting=gauges.waiting, kv_cache_usage=gauges.kv_cache_usage, max_model_len=self.max_model_len, slow=slow,
            drained=self.drained,
        )  # fmt: skip


class Catalog:
    """All models and engines, by name. Built at start-up; requests never add to it."""

    def __init__(self, models: Sequence[Model], engines: Sequence[Engine]) -> None:
        self.models = list(models)
        self.engines = {engine.name: engine for engine in engines}
        self._models_by_name = {name: model for model in models for name in (model.name, *model.aliases)}
        fallbacks = {model.name: model.fallback for model in models}
        self._fallback_chains = {model.name: _fallback_chain(model.name, fallbacks) for model in models}
        self._engines_by_model = {model.name: [e for e in engines if e.model == model.name] for model in models}

    def resolve(self, name: str, task: Task | None) -> Model:
        """The model that a client's name stands for. Raises ApiError (404) for an unknown name.

        `auto` is, among the models with this task in `auto`, the first that has an engine for exactly this task, else
        the first. If no model has the task, it is chosen the same way among all models with any task in `auto`. Other
        names ignore the task.
        """
        if name != AUTO:
            model = self._models_by_name.get(name)
            if model is None:
                raise unknown_model(name)
            return model
        candidates = [m for m in self.models if task in m.auto] or [m for m in self.models if m.auto]
        if not candidates:
            raise unknown_model(name)
        return next(
            (m for m in candidates if any(e.task == task for e in self._engines_by_model[m.name])), candidates[0]
        )

    def engines_for(self, model: str) -> Sequence[Engine]:
        return self._engines_by_model[model]

    def named_models(self) -> Iterator[tuple[str, Model | None]]:
        """Every name that a client may use, with its model; None for `auto`."""
        yield from self._models_by_name.items()
        if any(model.auto for model in self.models):
            yield AUTO, None

    def set_drained(self, names: Collection[str]) -> None:
        """Drain these engines and return all others to service."""
        for engine in self.engines.values():
            if engine.drained is not (drained := engine.name in names):
                log.info("engine %s is %s", engine.name, "drained" if drained else "resumed")
                engine.drained = drained

    def fallback_chain(self, model: str) -> Sequence[str]:
        """A model and its fallbacks in their order; at most MAX_FALLBACKS, none twice."""
        return self._fallback_chains[model]

    def ready(self, takes_work: Callable[[str], bool]) -> bool:
        """Whether each model, or a fallback of it, has an engine that is up, not drained, and takes work."""
        return all(self._can_answer(model.name, takes_work) for model in self.models)

    def _can_answer(self, model: str, takes_work: Callable[[str], bool]) -> bool:
        engines = [engine for name in self.fallback_chain(model) for engine in self._engines_by_model[name]]
        return any(engine.up and not engine.drained and takes_work(engine.name) for engine in engines)


def _fallback_chain(model: str, fallbacks: Mapping[str, str | None]) -> Sequence[str]:
    chain = [model]
    # `not in chain` ends a circle of fallbacks.
    while (fallback := fallbacks[chain[-1]]) is not None and fallback not in chain:
        chain.append(fallback)
    return chain[: 1 + MAX_FALLBACKS]
