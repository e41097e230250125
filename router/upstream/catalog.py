"""What this router serves: the models of the configuration, their engines, and what is known of those now."""

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
"""Models that may answer in the place of one that was asked for, one after the other."""


class Model(msgspec.Struct, frozen=True):
    """A model as clients know it. `auto` are the tasks for which it may be picked when a client leaves the choice.

    `fallback`: the name of the model that answers where this one has no engine that can.
    """

    name: str
    revision: str
    aliases: tuple[str, ...] = ()
    auto: tuple[Task, ...] = ()
    fallback: str | None = None


class EngineGauges(msgspec.Struct, frozen=True):
    """What an engine's own metrics said last; None is unknown, which is never 0. Shares are 0 to 1."""

    kv_cache_usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    prefix_cache_hit_rate: float | None = None
    spec_acceptance_rate: float | None = None
    spec_tokens_per_step: float | None = None
    spec_counts: SpeculationCounters | None = None


class DraftStatus(msgspec.Struct, frozen=True):
    """What is known of an engine at one task; None is unknown. See speculation.Learned; `pays` is that of its draft."""

    tokens_per_second: float | None
    tokens_per_step: float | None
    pays: bool | None


class Engine:
    """One engine process and what this router knows of it.

    - `up`: None until it has been asked.
    - `family`: the engine of the configuration that it is a replica of.
    - `max_model_len`: its context in tokens, as configured, or as it says itself.
    - `others`: how many requests it had beside this router's when it was last asked; None is unknown.
    - `speculates`: whether it has a draft; None is unknown.
    - `drafts`: what was learned of it, by task.
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
        """`max_in_flight`: how much this process may give it to do at once; None is any amount.

        `draft`: whether the configuration gives it one; of one that roundhouse does not start, nobody can say.
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
        self.in_flight = 0
        self.on_slot_freed: Callable[[Engine], None] | None = None  # told when it has less to do
        self.up: bool | None = None
        self.drained = False
        self.gauges = EngineGauges()

    def target(self, path: str) -> RequestTarget:
        """One of the engine's pages; there are few of them, and each is made ready once."""
        page = self._targets.get(path)
        if page is None:
            page = self._targets[path] = RequestTarget(self.url + path)
        return page

    @property
    def has_free_slot(self) -> bool:
        """Whether it may be given more to do."""
        return self.max_in_flight is None or self.in_flight < self.max_in_flight

    def update_status(self, *, up: bool) -> None:
        """Somebody has asked it, or tried to."""
        if up is not self.up:
            log.info("engine %s is %s", self.name, "up" if up else "down")
        self.up = up

    def inherit_state(self, previous: "Engine") -> None:
        """It is the same engine in other settings: what is known of it is still true."""
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
        """What its own metrics say at this moment; without a page, the gauges are empty."""
        self.gauges = gauges
        known = [count for count in (gauges.running, gauges.waiting) if count is not None]
        self.external_load = max(0.0, sum(known) - self.in_flight) if known else None
        if gauges.spec_counts is not None:
            self.has_draft = True
        elif gauges.running is not None:  # a page of vLLM's, and no word of a draft
            self.has_draft = False

    @property
    def discovers_max_model_len(self) -> bool:
        """Whether it is to be asked for its context, since the configuration does not give it."""
        return not self._max_model_len_is_configured

    def snapshot(self, *, slow: bool = False) -> EngineSnapshot:
        gauges = self.gauges
        return EngineSnapshot(
            self.name, self.task, self.up, self.in_flight, external_load=self.external_load, running=gauges.running,
            waiting=gauges.waiting, kv_cache_usage=gauges.kv_cache_usage, max_model_len=self.max_model_len, slow=slow,
            drained=self.drained,
        )  # fmt: skip


class Catalog:
    """All models and engines, by name; built at start-up, and never grown by what clients ask for."""

    def __init__(self, models: Sequence[Model], engines: Sequence[Engine]) -> None:
        self.models = list(models)
        self.engines = {engine.name: engine for engine in engines}
        self._models_by_name = {name: model for model in models for name in (model.name, *model.aliases)}
        fallbacks = {model.name: model.fallback for model in models}
        self._fallback_chains = {model.name: _fallback_chain(model.name, fallbacks) for model in models}
        self._engines_by_model = {model.name: [e for e in engines if e.model == model.name] for model in models}

    def resolve(self, name: str, task: Task | None) -> Model:
        """The model that a client means. Raises ApiError (404) for a name that is none.

        `auto` means, among the models that take part in it for the task, the first that has an engine for exactly
        this task, else the first; a task that none takes part in goes to a model that takes part in any. Any other
        name needs no task.
        """
        if name != AUTO:
            model = self._models_by_name.get(name)
            if model is None:
                raise unknown_model(name)
            return model
        willing = [m for m in self.models if task in m.auto] or [m for m in self.models if m.auto]
        if not willing:
            raise unknown_model(name)
        return next((m for m in willing if any(e.task == task for e in self._engines_by_model[m.name])), willing[0])

    def engines_for(self, model: str) -> Sequence[Engine]:
        """The engines that have a model."""
        return self._engines_by_model[model]

    def named_models(self) -> Iterator[tuple[str, Model | None]]:
        """Every name that a client may ask for, with what it stands for; `auto` stands for none."""
        yield from self._models_by_name.items()
        if any(model.auto for model in self.models):
            yield AUTO, None

    def set_drained(self, names: Collection[str]) -> None:
        """From now on, these engines get no new work, and all others do."""
        for engine in self.engines.values():
            if engine.drained is not (drained := engine.name in names):
                log.info("engine %s is %s", engine.name, "drained" if drained else "back in service")
                engine.drained = drained

    def fallback_chain(self, model: str) -> Sequence[str]:
        """A model and those that may answer in its place, the nearest first; at most MOST_FALLBACKS, and none twice."""
        return self._fallback_chains[model]

    def ready(self, takes_work: Callable[[str], bool]) -> bool:
        """Whether of each model, or of a fallback of it, at least one engine is up, not drained, and takes work."""
        return all(self._can_answer(model.name, takes_work) for model in self.models)

    def _can_answer(self, model: str, takes_work: Callable[[str], bool]) -> bool:
        engines = [engine for name in self.fallback_chain(model) for engine in self._engines_by_model[name]]
        return any(engine.up and not engine.drained and takes_work(engine.name) for engine in engines)


def _fallback_chain(model: str, fallbacks: Mapping[str, str | None]) -> Sequence[str]:
    """See Catalog.chain."""
    chain = [model]
    while (following := fallbacks[chain[-1]]) is not None and following not in chain:
        chain.append(following)
    return chain[: 1 + MAX_FALLBACKS]
