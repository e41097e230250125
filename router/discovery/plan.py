"""The models and engines of a configuration for what engines serve: their names, and which are replicas."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from router.core.types import AUTO
from router.discovery.models import ServedModel
from router.settings.tables import EngineKind

MAX_MODELS: Final = 16
"""Of one engine; a hosted API lists hundreds, of which few are wanted."""

_MAX_NAME: Final = 64
_LONGEST_ID: Final = 256
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9._-]+")


class Answer(msgspec.Struct, frozen=True):
    """What an engine said: its models, or in words why it said nothing.

    `retry`: whether it may answer later; `wants_key`: whether it refused the request for want of a key.
    """

    url: str
    models: tuple[ServedModel, ...] = ()
    problem: str | None = None
    retry: bool = False
    wants_key: bool = False


class PlannedEngine(msgspec.Struct, frozen=True):
    name: str
    urls: tuple[str, ...]
    served_model: str
    kind: EngineKind | None
    max_model_len: int | None


class PlannedModel(msgspec.Struct, frozen=True):
    name: str
    aliases: tuple[str, ...]
    engines: tuple[PlannedEngine, ...]


class Plan(msgspec.Struct, frozen=True):
    """`notes`: what was left out, a line each. `unknown`: the engines whose models are not known."""

    models: tuple[PlannedModel, ...]
    unknown: tuple[Answer, ...]
    notes: tuple[str, ...]


def plan(answers: Sequence[Answer], wanted: Sequence[str] = ()) -> Plan:
    """`wanted`: the engines' names of the models to take; all, if empty.

    Engines that serve a model under the same name are its replicas, if they are of one kind.
    """
    notes: list[str] = []
    served: dict[str, list[tuple[str, ServedModel]]] = {}
    for answer in answers:
        for model in _chosen(answer, wanted, notes):
            served.setdefault(model.name, []).append((answer.url, model))
    names = _Names()
    models = []
    # A model whose name can stay as it is comes first, so that none gets it before.
    for served_model in sorted(served, key=lambda name: _slug(name) != name):
        replicas = served[served_model]
        others = [name for _, model in replicas for name in model.other_names]
        name = names.take(served_model)
        aliases = tuple(alias for alias in dict.fromkeys([served_model, *others]) if names.take_alias(alias))
        models.append(PlannedModel(name, aliases, _engines(name, served_model, replicas)))
    order = list(served)
    models.sort(key=lambda model: order.index(model.engines[0].served_model))
    missing = [name for name in wanted if name not in served]
    notes += [f"no engine serves {name!r}" for name in missing]
    return Plan(tuple(models), tuple(answer for answer in answers if answer.problem is not None), tuple(notes))


def _chosen(answer: Answer, wanted: Sequence[str], notes: list[str]) -> Iterable[ServedModel]:
    usable = [model for model in answer.models if _is_usable(model.name)]
    if len(usable) < len(answer.models):
        notes.append(f"{answer.url} serves models whose names cannot be configured; they are left out")
    chosen = [model for model in usable if not wanted or {model.name, *model.other_names} & set(wanted)]
    if len(chosen) > MAX_MODELS:
        notes.append(f"{answer.url} serves {len(chosen)} models; {MAX_MODELS} are taken: choose with --model")
    return chosen[:MAX_MODELS]


def _is_usable(name: str) -> bool:
    """A `${` would be read as a variable."""
    return 0 < len(name) <= _LONGEST_ID and name.isprintable() and "${" not in name


def _engines(model: str, served_model: str, replicas: Iterable[tuple[str, ServedModel]]) -> tuple[PlannedEngine, ...]:
    by_kind: dict[EngineKind | None, list[tuple[str, ServedModel]]] = {}
    for url, served in replicas:
        by_kind.setdefault(served.kind, []).append((url, served))
    engines = []
    for number, (kind, members) in enumerate(by_kind.items(), 1):
        name = model if number == 1 else f"{model[: _MAX_NAME - 4]}-{number}"
        lengths = {served.max_model_len for _, served in members}
        length = lengths.pop() if len(lengths) == 1 else None
        engines.append(PlannedEngine(name, tuple(url for url, _ in members), served_model, kind, length))
    return tuple(engines)


class _Names:
    """Names for models: what an engine calls a model, in the characters that a Redis key has room for.

    Each name and each alias is taken once.
    """

    def __init__(self) -> None:
        self._taken = {AUTO}

    def take(self, served_model: str) -> str:
        long = _slug(served_model.replace("/", "-"))
        numbered = (f"{long[: _MAX_NAME - 4]}-{number}" for number in range(2, 1000))
        for name in (_slug(served_model), long, *numbered):
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise AssertionError("there are fewer models than numbers")

    def take_alias(self, alias: str) -> bool:
        if alias in self._taken or not _is_usable(alias):
            return False
        self._taken.add(alias)
        return True


def _slug(served_model: str) -> str:
    """The last part of a path or a name on the Hugging Face hub: `meta-llama/Llama-3.1-8B` is `llama-3.1-8b`."""
    last = served_model.rstrip("/").rpartition("/")[2]
    return _NOT_IN_NAMES.sub("-", last.lower()).strip("-")[:_MAX_NAME] or "model"
