"""What this router serves: the models of the configuration, their engines, and what is known of those now."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from router.core.routing.draft_stats import Counts
from router.core.routing.ranking import EngineView
from router.core.types import AUTO, EngineTask, Task
from router.errors import unknown_model
from router.net.client.target import Page

log = logging.getLogger("roundhouse.engines")

MOST_FALLBACKS: Final = 3
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


class Gauges(msgspec.Struct, frozen=True):
    """What an engine's own metrics said last; None is unknown, which is never 0. Shares are 0 to 1."""

    kv_cache_usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    prefix_cache_hit_rate: float | None = None
    spec_acceptance_rate: float | None = None
    spec_tokens_per_step: float | None = None
    spec_counts: Counts | None = None


class Draft(msgspec.Struct, frozen=True):
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
        "_length_is_configured", "_pages", "drafts", "drained", "family", "freed", "gauges", "in_flight",
        "max_in_flight", "max_model_len", "model", "name", "others", "served_model", "speculates", "task", "up", "url",
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
        draft: bool = False,
    ) -> None:
        """`max_in_flight`: how much this process may give it to do at once; None is any amount.

        `draft`: whether the configuration gives it one; of one that roundhouse does not start, nobody can say.
        """
        self.name = name
        self.family = family if family is not None else name
        self.speculates: bool | None = draft or None
        self.others: float | None = None
        self.drafts: Mapping[Task, Draft] = {}
        self._length_is_configured = max_model_len is not None
        self.model = model
        self.task: EngineTask = task
        self.url = url
        self._pages: dict[str, Page] = {}
        self.served_model = served_model
        self.max_model_len = max_model_len
        self.max_in_flight = max_in_flight
        self.in_flight = 0
        self.freed: Callable[[Engine], None] | None = None  # told when it has less to do
        self.up: bool | None = None
        self.drained = False
        self.gauges = Gauges()

    def at(self, path: str) -> Page:
        """One of the engine's pages; there are few of them, and each is made ready once."""
        page = self._pages.get(path)
        if page is None:
            page = self._pages[path] = Page(self.url + path)
        return page

    @property
    def has_room(self) -> bool:
        """Whether it may be given more to do."""
        return self.max_in_flight is None or self.in_flight < self.max_in_flight

    def note(self, *, up: bool) -> None:
        """Somebody has asked it, or tried to."""
        if up is not self.up:
            log.info("engine %s is %s", self.name, "up" if up else "down")
        self.up = up

    def inherit(self, known: "Engine") -> None:
        """It is the same engine in other settings: what is known of it is still true."""
        self.up, self.drained, self.gauges, self.others = known.up, known.drained, known.gauges, known.others
        self.drafts, self.speculates = known.drafts, self.speculates or known.speculates
        if self.tells_its_length:
            self.max_model_len = known.max_model_len

    def observe(self, gauges: Gauges) -> None:
        """What its own metrics say at this moment; without a page, the gauges are empty."""
        self.gauges = gauges
        known = [count for count in (gauges.running, gauges.waiting) if count is not None]
        self.others = max(0.0, sum(known) - self.in_flight) if known else None
        if gauges.spec_counts is not None:
            self.speculates = True
        elif gauges.running is not None:  # a page of vLLM's, and no word of a draft
            self.speculates = False

    @property
    def tells_its_length(self) -> bool:
        """Whether it is to be asked for its context, since the configuration does not give it."""
        return not self._length_is_configured

    def view(self, *, slow: bool = False) -> EngineView:
        gauges = self.gauges
        return EngineView(
            self.name, self.task, self.up, self.in_flight, others=self.others, running=gauges.running,
            waiting=gauges.waiting, kv_cache_usage=gauges.kv_cache_usage, max_model_len=self.max_model_len, slow=slow,
            drained=self.drained,
        )  # fmt: skip


class Catalog:
    """All models and engines, by name; built at start-up, and never grown by what clients ask for."""

    def __init__(self, models: Sequence[Model], engines: Sequence[Engine]) -> None:
        self.models = list(models)
        self.engines = {engine.name: engine for engine in engines}
        self._named = {name: model for model in models for name in (model.name, *model.aliases)}
        fallbacks = {model.name: model.fallback for model in models}
        self._chains = {model.name: _chain(model.name, fallbacks) for model in models}
        self._serving = {model.name: [e for e in engines if e.model == model.name] for model in models}

    def resolve(self, asked: str, task: Task | None) -> Model:
        """The model that a client means. Raises ApiError (404) for a name that is none.

        `auto` means, among the models that take part in it for the task, the first that has an engine for exactly
        this task, else the first; a task that none takes part in goes to a model that takes part in any. Any other
        name needs no task.
        """
        if asked != AUTO:
            model = self._named.get(asked)
            if model is None:
                raise unknown_model(asked)
            return model
        willing = [m for m in self.models if task in m.auto] or [m for m in self.models if m.auto]
        if not willing:
            raise unknown_model(asked)
        return next((m for m in willing if any(e.task == task for e in self._serving[m.name])), willing[0])

    def serving(self, model: str) -> Sequence[Engine]:
        """The engines that have a model."""
        return self._serving[model]

    def names(self) -> Iterator[tuple[str, Model | None]]:
        """Every name that a client may ask for, with what it stands for; `auto` stands for none."""
        yield from self._named.items()
        if any(model.auto for model in self.models):
            yield AUTO, None

    def drain(self, names: Collection[str]) -> None:
        """From now on, these engines get no new work, and all others do."""
        for engine in self.engines.values():
            if engine.drained is not (drained := engine.name in names):
                log.info("engine %s is %s", engine.name, "drained" if drained else "back in service")
                engine.drained = drained

    def chain(self, model: str) -> Sequence[str]:
        """A model and those that may answer in its place, the nearest first; at most MOST_FALLBACKS, and none twice."""
        return self._chains[model]

    def ready(self, takes_work: Callable[[str], bool]) -> bool:
        """Whether of each model, or of a fallback of it, at least one engine is up, not drained, and takes work."""
        return all(self._can_answer(model.name, takes_work) for model in self.models)

    def _can_answer(self, model: str, takes_work: Callable[[str], bool]) -> bool:
        engines = [engine for name in self.chain(model) for engine in self._serving[name]]
        return any(engine.up and not engine.drained and takes_work(engine.name) for engine in engines)


def _chain(model: str, fallbacks: Mapping[str, str | None]) -> Sequence[str]:
    """See Catalog.chain."""
    chain = [model]
    while (following := fallbacks[chain[-1]]) is not None and following not in chain:
        chain.append(following)
    return chain[: 1 + MOST_FALLBACKS]
