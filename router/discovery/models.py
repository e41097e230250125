"""Reads the list of models of an engine, as a plan needs it: all of them, each with its other names."""

import msgspec

from router.settings.tables import EngineKind
from router.upstream.engine_kinds import parse_model_list


class ServedModel(msgspec.Struct, frozen=True):
    """A model that an engine serves: `name` is the engine's; `other_names` are further ones for the same weights.

    `kind` of the engine; `max_model_len`: the context in tokens. None is unknown.
    """

    name: str
    other_names: tuple[str, ...] = ()
    kind: EngineKind | None = None
    max_model_len: int | None = None


class _Listed(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None


class _Page(msgspec.Struct):
    data: list[_Listed]


_decode = msgspec.json.Decoder(_Page).decode


def read_models(page: bytes) -> list[ServedModel] | None:
    """The models of /v1/models, without the adapters of others; None if the page is no list of models.

    vLLM lists each of its --served-model-name, with the same `root`: these are names of one model.
    """
    try:
        listed = _decode(page).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    names_by_root: dict[tuple[str, str], list[str]] = {}
    for model in listed:
        if model.parent is None:
            is_vllm = model.root is not None and parse_model_list(page, model.id).kind == "vllm"
            key = ("root", model.root or "") if is_vllm else ("id", model.id)
            names = names_by_root.setdefault(key, [])
            if model.id not in names:
                names.append(model.id)
    models = []
    for first, *others in names_by_root.values():
        told = parse_model_list(page, first)
        models.append(ServedModel(first, tuple(others), told.kind, told.max_model_len))
    return models
