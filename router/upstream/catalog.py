"""The models of the configuration and the engines' adapters, the engines, and the engines' current state."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import Final

import msgspec

from router.core.quota.model_access import ModelAccess
from router.core.resilience.asleep import EngineFacts, is_asleep
from router.core.resilience.breaker import BreakerState
from router.core.types import AUTO, Task
from router.errors import ApiError, bad_request, unknown_model
from router.shared.engines.announcements import AnnouncedEngine
from router.upstream.adapters import Adapter, ListedAdapter, adapter_name, adapter_revision, find_adapters
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.engines")

BreakerStates = Callable[[str], BreakerState]
"""The state of an engine's breaker, by the engine's name."""

MAX_FALLBACKS: Final = 3
"""Maximum length of a fallback chain, without the requested model itself."""

MAX_REPORTED: Final = 100
"""Adapters with a label of their own in metrics; further ones have their base model's."""


MAX_NAMED: Final = 10
"""Models that an error names."""


class Model(msgspec.Struct, frozen=True):
    """A model as clients know it. `auto`: the tasks for which a request for the model `auto` may get it.

    `fallback`: the name of the model that answers if no engine of this one can. `adapter`: None for a model of the
    configuration. `reported_name`: the name in metrics and log lines. `wake`: seconds that a request waits for an
    engine to start; None: it does not. `wakes_first`: it waits although a fallback could answer.
    """

    name: str
    revision: str
    aliases: tuple[str, ...] = ()
    auto: tuple[Task, ...] = ()
    fallback: str | None = None
    adapter: Adapter | None = None
    reported_name: str = ""
    wake: float | None = None
    wakes_first: bool = False

    def __post_init__(self) -> None:
        if not self.reported_name:
            msgspec.structs.force_setattr(self, "reported_name", self.name)

    @property
    def public_name(self) -> str:
        """The name by which clients know it, besides its aliases."""
        return self.name if self.adapter is None else self.adapter.id

    @property
    def names(self) -> tuple[str, ...]:
        return (self.public_name, *self.aliases)

    @property
    def configured_name(self) -> str:
        """The model of the configuration that it is, or that it is an adapter of."""
        return self.name if self.adapter is None else self.adapter.base

    def revision_at(self, engine_revision: str | None) -> str:
        """The revision of what an engine answers with. `engine_revision`: the engine's own; None for the model's."""
        if engine_revision is None:
            return self.revision
        return engine_revision if self.adapter is None else adapter_revision(engine_revision, self.adapter)


class Catalog:
    """All models and engines, by name. Requests never add to it; engines add the adapters that they list.

    `reported_adapters`: the adapters that have a label of their own in metrics, which are MAX_REPORTED at most since
    the start of the process. `has_shares`: an engine of some model has a share.
    """

    def __init__(
        self, models: Sequence[Model], engines: Sequence[Engine], reported_adapters: set[str] | None = None, *,
        default_model: str | None = None, has_turns: bool = False, changes: Sequence[Callable[[], None]] = (),
    ) -> None:  # fmt: skip
        """`reported_adapters`: of the catalog that this one replaces. `default_model`: see `requested_name`.
        `has_turns`: engines take turns at a GPU.

        `changes`: of engines that this catalog shares with the one that it replaces; see `take_effect`.
        """
        self._changes = changes
        self._default_model = default_model
        self._has_turns = has_turns
        self.reported_adapters = reported_adapters if reported_adapters is not None else set()
        self.models = list(models)
        self.engines = {engine.name: engine for engine in engines}
        self._models_by_name = {name: model for model in models for name in (model.name, *model.aliases)}
        fallbacks = {model.name: model.fallback for model in models}
        self._fallback_chains = {model.name: _fallback_chain(model.name, fallbacks) for model in models}
        self._engines_by_model = {model.name: [e for e in engines if e.model == model.name] for model in models}
        self._families_by_model = {name: frozenset(e.family for e in es) for name, es in self._engines_by_model.items()}
        shares = {name: {e.family: e.share for e in es if e.share is not None} for name, es in
                  self._engines_by_model.items()}  # fmt: skip
        self._shares_by_model: Mapping[str, Mapping[str, int]] = {name: each for name, each in shares.items() if each}
        self.has_shares = bool(self._shares_by_model)
        self._adapters_by_id: Mapping[str, Model] = {}
        self._engines_by_adapter: Mapping[str, Sequence[Engine]] = {}
        self._adapter_problems: Set[str] = frozenset()
        self._seen_adapters: list[Sequence[ListedAdapter]] = []
        self._uncounted: Set[str] = frozenset()  # engines whose requests the workers do not count together
        self.update_adapters()

    def take_effect(self) -> None:
        """To be called when requests use this catalog, and not before: until then, its engines are another one's."""
        for change in self._changes:
            change()

    def resolve(self, name: str, task: Task | None, access: ModelAccess | None = None) -> Model:
        """The model that a client's name stands for. Raises ApiError (404) for an unknown name.

        `auto` is, among the models with this task in `auto`, the first that has an engine for exactly this task, else
        the first. If no model has the task, it is chosen the same way among all models with any task in `auto`. Only
        models with `access` count; None: all. Of models whose engines take turns at a GPU, one that is awake comes
        first. Other names ignore the task and `access`.
        """
        if name != AUTO:
            model = self._models_by_name.get(name) or self._adapters_by_id.get(name)
            if model is None:
                raise unknown_model(name)
            return model
        models = [model for model in self.models if model.auto and _is_allowed(model, access)]
        candidates = [m for m in models if task in m.auto] or models
        if not candidates:
            raise unknown_model(name)
        # What is stored for a model that sleeps is not found then: one more generation costs less than a turn.
        if self._has_turns and len(candidates) > 1:
            candidates = [m for m in candidates if not self.rests(m.name)] or candidates
        return next(
            (m for m in candidates if any(e.task == task for e in self._engines_by_model[m.name])), candidates[0]
        )

    def rests(self, model: str) -> bool:
        """Whether others have the GPUs of all its engines."""
        engines = self._engines_by_model[model]
        return bool(engines) and all(engine.rest for engine in engines)

    def requested_name(self, name: str, access: ModelAccess | None = None) -> str:
        """The name for `resolve` of a request for `name`, which is empty if the request names no model.

        That stands for the default model, if a client with `access` may use it (None: all), else for the only model of
        the configuration that it may use, or the only adapter. With several, it is an error: raises ApiError (400).
        """
        if name:
            return name
        default = self._default_model
        if access is None and default is not None:
            return default
        models = [model for model in self.models if _is_allowed(model, access)]
        if default is not None and any(model.auto if default == AUTO else default in model.names for model in models):
            return default
        adapters = [id_ for id_ in self._adapters_by_id if access is not None and access.allows(id_)]
        names = [model.name for model in models] or adapters
        if len(names) == 1:
            return names[0]
        raise _model_required(names, has_default=default is not None)

    def resolve_configured(self, name: str) -> Model | None:
        """The model of the configuration with this name or alias."""
        return self._models_by_name.get(name)

    def engines_for(self, model: str) -> Sequence[Engine]:
        """The engines of a model, or those that have an adapter; empty for an adapter that no engine has any more."""
        engines = self._engines_by_model.get(model)
        return engines if engines is not None else self._engines_by_adapter.get(model, ())

    def shares_of(self, model: str) -> Mapping[str, int] | None:
        """The shares of the families of a model of the configuration; None if no engine has one."""
        return self._shares_by_model.get(model)

    def update_adapters(self) -> None:
        """To be called after each read of a list; does nothing if no engine's `adapters` have changed."""
        # Not left to the reader: the catalog of a former configuration may have read them, for the same engine object.
        seen = [engine.adapters for engine in self.engines.values()]
        if seen == self._seen_adapters:
            return
        self._seen_adapters = seen
        listed = [(e.name, e.model, e.adapters) for e in self.engines.values() if e.model in self._engines_by_model]
        found = find_adapters(listed, self._models_by_name.keys() | {AUTO})
        problems = frozenset(found.problems)
        for problem in sorted(problems - self._adapter_problems):
            log.warning("%s", problem)
        self._adapter_problems = problems
        revisions = {model.name: model.revision for model in self.models}
        adapters: dict[str, Model] = {}
        engines: dict[str, Sequence[Engine]] = {}
        for adapter, names in found.engines.items():
            name = adapter_name(adapter.base, adapter.id)
            revision = adapter_revision(revisions[adapter.base], adapter)
            reported_name = self._adapter_label(name, adapter)
            adapters[adapter.id] = Model(name, revision, adapter=adapter, reported_name=reported_name)
            engines[name] = [self.engines[each] for each in names]
        for adapter_id in sorted(adapters.keys() ^ self._adapters_by_id.keys()):
            log.info("adapter %r is %s", adapter_id, "available" if adapter_id in adapters else "no longer available")
        self._adapters_by_id, self._engines_by_adapter = adapters, engines

    def _adapter_label(self, name: str, adapter: Adapter) -> str:
        # Engines name the adapters, so without a bound they could create any number of series.
        if name not in self.reported_adapters and len(self.reported_adapters) >= MAX_REPORTED:
            return adapter.base
        self.reported_adapters.add(name)
        return name

    def families_for(self, model: str) -> frozenset[str]:
        return self._families_by_model[model]

    def named_models(self, access: ModelAccess | None = None) -> Iterator[tuple[str, Model | None]]:
        """Every name that a client with `access` may use (None: all), with its model; None for `auto`."""
        models = [model for model in self.models if _is_allowed(model, access)]
        allowed = {model.name for model in models}
        yield from ((name, model) for name, model in self._models_by_name.items() if model.name in allowed)
        yield from ((id_, model) for id_, model in self._adapters_by_id.items() if access is None or access.allows(id_))
        if any(model.auto for model in models):
            yield AUTO, None

    def set_drained(self, names: Collection[str]) -> None:
        """Drain these engines and return all others to service."""
        for engine in self.engines.values():
            if engine.drained is not (drained := engine.name in names):
                log.info("engine %s is %s", engine.name, "drained" if drained else "resumed")
                engine.drained = drained

    def set_announced(self, announced: Mapping[str, AnnouncedEngine]) -> bool:
        """The state of announced engines, by name. Engines that are not in the catalog are ignored.

        False: the workers do not count the requests of some engine together, and it is to be called again later.
        """
        uncounted = set()
        for engine in self.engines.values():
            try:
                engine.set_announced(announced.get(engine.name))
            except OSError as error:  # the disk is full, for example
                uncounted.add(engine.name)
                if engine.name not in self._uncounted:
                    log.warning(
                        "engine %s: the workers do not count its requests together: %s", engine.name, error.strerror
                    )
        self._uncounted = uncounted
        return not uncounted

    def fallback_chain(self, model: str) -> Sequence[str]:
        """A model and its fallbacks in their order; at most MAX_FALLBACKS, none twice.

        An adapter has no fallback: its base model would answer something else.
        """
        return self._fallback_chains.get(model) or (model,)

    def unready_reason(self, breaker_state: BreakerStates) -> str | None:
        """None if each model, or a fallback of it, has an engine that is up, not drained, and takes work.

        A model whose requests may wait for an engine to start counts as well while it is asleep.
        """
        model = next((model for model in self.models if not self._can_answer(model, breaker_state)), None)
        if model is None:
            return None
        engines = self._chain_engines(model)
        if engines and all(engine.drained for engine in engines):
            return f"all engines of the model {model.name} are drained"
        return f"the model {model.name} has no available engine"

    @property
    def all_drained(self) -> bool:
        return bool(self.engines) and all(engine.drained for engine in self.engines.values())

    def _chain_engines(self, model: Model) -> Sequence[Engine]:
        return [engine for name in self.fallback_chain(model.name) for engine in self._engines_by_model[name]]

    def has_other(self, engine: Engine) -> bool:
        """Whether another engine of its model, or of a fallback, is up and may get its requests."""
        engines = (each for name in self.fallback_chain(engine.model) for each in self.engines_for(name))
        return any(each is not engine and each.up and not each.drained for each in engines)

    def _can_answer(self, model: Model, breaker_state: BreakerStates) -> bool:
        engines = self._chain_engines(model)
        return any(
            engine.up and not engine.drained and breaker_state(engine.name) is not BreakerState.OPEN
            for engine in engines
        ) or (model.wake is not None and self.is_asleep(model.name, breaker_state))

    # -- engines that are started on demand ---------------------------------------------------------------------------

    def is_asleep(self, model: str, breaker_state: BreakerStates) -> bool:
        """Whether a request for this model of the configuration could only wait for an engine to start."""
        engines = self._engines_by_model[model]
        # One that refuses the router's key runs: None, as before the first check.
        ups = (each.up if each.access.refused is None else None for each in engines)
        return is_asleep(
            EngineFacts(up, each.drained, breaker_state(each.name)) for up, each in zip(ups, engines, strict=True)
        )

    def asleep_engines(self, breaker_state: BreakerStates) -> Mapping[str, bool]:
        """The engines of the models whose requests may wait for one to start: whether the model, or it, is asleep."""
        waking = [model.name for model in self.models if model.wake is not None]
        states = {name: self.is_asleep(name, breaker_state) for name in waking}
        return {
            # One that rests is no engine that is missing, though another one of its model may be up.
            engine.name: asleep or bool(engine.rest)
            for name, asleep in states.items()
            for engine in self._engines_by_model[name]
        }

    def replace_engines(self, model: str, engines: Sequence[Engine]) -> None:
        """From now on, the model has these engines. The others are still found by name, for requests that use them."""
        self._engines_by_model[model][:] = engines
        self.engines.update((engine.name, engine) for engine in engines)
        self._families_by_model[model] = frozenset(engine.family for engine in engines)
        self.update_adapters()


def _is_allowed(model: Model, access: ModelAccess | None) -> bool:
    return access is None or access.allows(model.name, model.aliases)


def _model_required(names: Sequence[str], *, has_default: bool) -> ApiError:
    """`names`: of the models that the client may use."""
    if has_default:
        reason = "you do not have access to the default model"
    else:
        reason = "there are several models and no default (router.default_model)"
    listed = ", ".join(f"`{name}`" for name in names[:MAX_NAMED])
    more = ", …" if len(names) > MAX_NAMED else ""
    available = f" Available: {listed}{more}." if names else ""
    message = f"`model` is required: {reason}; GET /v1/models lists the available models.{available}"
    return bad_request(message, param="model", code="model_required")


def _fallback_chain(model: str, fallbacks: Mapping[str, str | None]) -> Sequence[str]:
    chain = [model]
    # `not in chain` ends a circle of fallbacks.
    while (fallback := fallbacks[chain[-1]]) is not None and fallback not in chain:
        chain.append(fallback)
    return chain[: 1 + MAX_FALLBACKS]
