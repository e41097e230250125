"""The models of the configuration, their engines, and the engines' current state."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from router.core.quota.model_access import ModelAccess
from router.core.types import AUTO, Task
from router.errors import bad_request, unknown_model
from router.shared.announcements import AnnouncedEngine
from router.upstream.engine import Engine

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


class Catalog:
    """All models and engines, by name. Built at start-up; requests never add to it."""

    def __init__(self, models: Sequence[Model], engines: Sequence[Engine]) -> None:
        self.models = list(models)
        self.engines = {engine.name: engine for engine in engines}
        self._models_by_name = {name: model for model in models for name in (model.name, *model.aliases)}
        fallbacks = {model.name: model.fallback for model in models}
        self._fallback_chains = {model.name: _fallback_chain(model.name, fallbacks) for model in models}
        self._engines_by_model = {model.name: [e for e in engines if e.model == model.name] for model in models}
        self._families_by_model = {name: frozenset(e.family for e in es) for name, es in self._engines_by_model.items()}

    def resolve(self, name: str, task: Task | None, access: ModelAccess | None = None) -> Model:
        """The model that a client's name stands for. Raises ApiError (404) for an unknown name.

        The empty name, for a request without a model, is the only model of the configuration; with several, it is an
        error (400).

        `auto` is, among the models with this task in `auto`, the first that has an engine for exactly this task, else
        the first. If no model has the task, it is chosen the same way among all models with any task in `auto`. Only
        models with `access` count; None: all. Other names ignore the task and `access`.
        """
        if name != AUTO:
            model = self._models_by_name.get(name)
            if model is None:
                return self._only_model(name)
            return model
        models = [m for m in self.models if m.auto and (access is None or access.allows(m.name, m.aliases))]
        candidates = [m for m in models if task in m.auto] or models
        if not candidates:
            raise unknown_model(name)
        return next(
            (m for m in candidates if any(e.task == task for e in self._engines_by_model[m.name])), candidates[0]
        )

    def _only_model(self, name: str) -> Model:
        if name:
            raise unknown_model(name)
        if len(self.models) > 1:
            message = "`model` is required, since there are several models; GET /v1/models lists them."
            raise bad_request(message, param="model", code="model_required")
        return self.models[0]

    def engines_for(self, model: str) -> Sequence[Engine]:
        return self._engines_by_model[model]

    def families_for(self, model: str) -> frozenset[str]:
        return self._families_by_model[model]

    def named_models(self, access: ModelAccess | None = None) -> Iterator[tuple[str, Model | None]]:
        """Every name that a client with `access` may use (None: all), with its model; None for `auto`."""
        models = [model for model in self.models if access is None or access.allows(model.name, model.aliases)]
        allowed = {model.name for model in models}
        yield from ((name, model) for name, model in self._models_by_name.items() if model.name in allowed)
        if any(model.auto for model in models):
            yield AUTO, None

    def set_drained(self, names: Collection[str]) -> None:
        """Drain these engines and return all others to service."""
        for engine in self.engines.values():
            if engine.drained is not (drained := engine.name in names):
                log.info("engine %s is %s", engine.name, "drained" if drained else "resumed")
                engine.drained = drained

    def set_announced(self, announced: Mapping[str, AnnouncedEngine]) -> None:
        """The state of announced engines, by name. Engines that are not in the catalog are ignored."""
        for engine in self.engines.values():
            engine.set_announced(announced.get(engine.name))

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
