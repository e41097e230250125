"""The catalog that the settings describe."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import msgspec

from router.settings import Settings
from router.settings.replicas import Replica, replicas
from router.settings.tables import EngineSettings, LaunchSettings
from router.upstream.catalog import Catalog, Model
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from router.upstream.engine_kinds import stated_traits
from router.upstream.process_slots import ProcessSlots
from router.upstream.shared_slots import SharedSlots

_DEFAULT_WAKE: Final = 600.0
"""Seconds that a request waits for an engine that takes turns with others at a GPU."""

# The memory belongs to them, because a draft needs some of it.
_DRAFT_SETTINGS: Final = (
    "speculation", "draft", "num_speculative_tokens", "speculation_max_batch", "heterogeneous_vocab",
    "prompt_lookup_min", "prompt_lookup_max", "gpu_memory_utilization",
)  # fmt: skip


def build_catalog(
    settings: Settings, old: tuple[Settings, Catalog] | None = None, slots: SharedSlots | ProcessSlots | None = None
) -> Catalog:
    """The configured models and engines; each replica becomes an engine of its own.

    `slots`: see Engine.
    An engine is identified by its table and its id. If its name and its settings are as in `old`, it is the same
    object, so its in-flight count continues; else it inherits the state of the old one.
    """
    models = _models(settings)
    engines: list[Engine] = []
    created: list[Engine] = []
    changes: list[Callable[[], None]] = []
    try:
        _add_engines(settings, old, slots, engines, created, changes)
    except OSError:  # no room for the file of an engine's slots; those of the others would stay open
        for engine in created:
            engine.close()
        raise
    # One that has left its group is on its own, awake or not.
    members = {name for gpu in settings.gpu for name in gpu.engines}
    changes += [engine.leave_gpu for engine in engines if engine.config.family not in members]
    reported_adapters = old[1].reported_adapters if old is not None else None
    return Catalog(
        models, engines, reported_adapters, default_model=settings.router.default_model,
        has_turns=bool(settings.gpu), changes=changes,
    )  # fmt: skip


def _models(settings: Settings) -> list[Model]:
    groups = {name: gpu for gpu in settings.gpu for name in gpu.engines}
    turns = {engine.model: groups[engine.name] for engine in settings.engine if engine.name in groups}
    return [
        Model(
            m.name, m.revision, tuple(m.aliases), tuple(m.auto), m.fallback,
            wake=_DEFAULT_WAKE if m.wake is None and m.name in turns else m.wake,
            wakes_first=m.name in turns and turns[m.name].wake_before_fallback,
        )
        for m in settings.model
    ]  # fmt: skip


def _add_engines(
    settings: Settings, old: tuple[Settings, Catalog] | None, slots: SharedSlots | ProcessSlots | None,
    engines: list[Engine], created: list[Engine], changes: list[Callable[[], None]],
) -> None:  # fmt: skip
    """Adds all to `engines`, those that did not exist before to `created`, too; `changes` gets those of the others."""
    revisions = {model.name: model.revision for model in settings.model}
    before = {(each.family, each.id): each for each in old[1].engines.values()} if old is not None else {}
    for engine in settings.engine:
        unchanged = (
            old is not None and settings.breaker == old[0].breaker
            and any(_without_addresses(engine) == _without_addresses(each) for each in old[0].engine)
        )  # fmt: skip
        for replica in replicas(engine):
            previous = before.get((engine.name, replica.id))
            # Its place among the URLs of its table, and so its name, may be another one.
            if previous is not None and unchanged and previous.name == replica.name:
                baseline, revision = _baseline(engine, settings.engine), _own_revision(engine, revisions)
                changes.append(partial(previous.change, baseline=baseline, revision=revision))
                engines.append(previous)
                continue
            announced = previous.announced if previous is not None else None
            new = Engine(_config(engine, replica, settings.engine, revisions), slots=slots, announced=announced)
            created.append(new)
            if previous is not None:
                new.inherit_state(previous)
            engines.append(new)


def _config(
    engine: EngineSettings, replica: Replica, engines: Sequence[EngineSettings], revisions: Mapping[str, str]
) -> EngineConfig:
    launch = engine.launch
    return EngineConfig(
        name=replica.name,
        model=engine.model,
        task=engine.task,
        url=replica.url,
        rank=replica.rank,
        served_model=engine.served_model or engine.model,
        max_model_len=engine.max_model_len,
        family=engine.name,
        has_draft=launch is not None and launch.speculation_method is not None,
        draft=(launch.draft or launch.speculation_method) if launch is not None else None,
        baseline=_baseline(engine, engines),
        max_in_flight=engine.max_in_flight,
        headers={**engine.request_headers, **replica.headers},
        ca_file=engine.ca_file or "",
        kind="vllm" if launch is not None else engine.kind,
        stated_traits=stated_traits(engine),
        share=engine.share,
        revision=_own_revision(engine, revisions),
    )


def _without_addresses(engine: EngineSettings) -> EngineSettings:
    """Replicas come and go without a change of the others."""
    return msgspec.structs.replace(engine, url=None, urls=[], data_parallel=1)


def _own_revision(engine: EngineSettings, revisions: Mapping[str, str]) -> str | None:
    return engine.revision if engine.revision != revisions[engine.model] else None


def _baseline(engine: EngineSettings, engines: Sequence[EngineSettings]) -> str | None:
    """The name of the engine that is the same without a draft; None if there is none, or this one has no draft.

    It has the same `[engine.launch]` but for the draft, on the same hosts. Of an engine that roundhouse does not start,
    the router knows too little.
    """
    launch = engine.launch
    if launch is None or launch.speculation_method is None:
        return None
    return next(
        (
            other.name
            for other in engines
            if other.model == engine.model
            and other.launch is not None
            and other.launch.speculation_method is None
            and _without_draft(other.launch) == _without_draft(launch)
            and _hosts(other) == _hosts(engine)
        ),
        None,
    )


def _without_draft(launch: LaunchSettings) -> LaunchSettings:
    """The settings that the time of a step depends on, except for the draft; the GPUs count by their number."""
    defaults = LaunchSettings(target=launch.target)
    varying = {name: getattr(defaults, name) for name in _DRAFT_SETTINGS}
    return msgspec.structs.replace(launch, gpus=list(range(len(launch.gpus))), **varying)


def _hosts(engine: EngineSettings) -> frozenset[str | None]:
    return frozenset(urlsplit(address).hostname for address in engine.addresses)
