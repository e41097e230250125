"""What the kinds of inference servers do differently, and how a kind is recognized.

A setting of the engine decides; where none is given, the server is asked. What no server tells has a value that is
right for a server that implements OpenAI's API.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from router.settings.tables import EngineKind, EngineSettings
from router.upstream.adapters import MAX_ADAPTERS, ListedAdapter, is_valid


class EngineTraits(msgspec.Struct, frozen=True):
    """What the router must know of a server.

    - `health`: the path that gives 200 while the server can generate.
    - `has_metrics`: it has a /metrics page.
    - `stream_usage`: it takes `stream_options.include_usage`; without it, tokens are estimated.
    - `ends_without_done`: a stream whose choices all have a finish reason is complete without `[DONE]`.
    - `cache_salt`: it takes the field `cache_salt`, which isolates tenants in its prefix cache.
    - `priority`: it runs vLLM's priority scheduler, so it takes the field `priority`.
    - `lists_adapters`: its /v1/models lists LoRA adapters, with their base model as `parent`.
    - `token_ids`: its streams have the ids of tokens where `return_token_ids` asks for them.
    - `parses_tokens`: it has an endpoint that makes a chat of ids; None is unknown.
    - `continues_messages`: it goes on with a chat's last message where `continue_final_message` asks for it.
    - `keeps_responses`: it continues a response that `previous_response_id` names, or refuses such a request.
    - `shortens_answers`: it takes a `max_tokens` that exceeds its context, and generates what has room.
    - `completion_limit`: the tokens of a completion without `max_tokens`, at most; UNLIMITED: as many as there is room
      for; None is unknown.
    - `check_interval`: the least time between two checks in seconds; a hosted API counts them as requests.
    """

    health: str = "/health"
    has_metrics: bool = True
    stream_usage: bool = True
    ends_without_done: bool = True
    cache_salt: bool = True
    priority: bool = False
    lists_adapters: bool = True
    token_ids: bool = False
    parses_tokens: bool | None = False
    continues_messages: bool = False
    keeps_responses: bool = True
    shortens_answers: bool = False
    completion_limit: int | None = None
    check_interval: float = 0.0


UNKNOWN: Final = EngineTraits()
UNLIMITED: Final = 0
MODELS_PATH: Final = "/v1/models"
_OPENAI_LIMIT: Final = 16

_TRAITS: Final[Mapping[EngineKind, EngineTraits]] = MappingProxyType(
    {
        "vllm": EngineTraits(
            ends_without_done=False,
            token_ids=True,
            parses_tokens=None,
            continues_messages=True,
            completion_limit=_OPENAI_LIMIT,
        ),
        "sglang": EngineTraits(
            ends_without_done=False, cache_salt=False, continues_messages=True, completion_limit=_OPENAI_LIMIT
        ),
        "llama.cpp": EngineTraits(
            cache_salt=False,
            lists_adapters=False,
            keeps_responses=False,
            shortens_answers=True,
            completion_limit=UNLIMITED,
        ),
        "ollama": EngineTraits(
            health=MODELS_PATH,
            has_metrics=False,
            cache_salt=False,
            lists_adapters=False,
            keeps_responses=False,  # it ignores the id
            shortens_answers=True,
            completion_limit=UNLIMITED,
        ),
        "tgi": EngineTraits(cache_salt=False, lists_adapters=False),
        "openai": EngineTraits(
            health=MODELS_PATH,
            has_metrics=False,
            cache_salt=False,
            lists_adapters=False,
            check_interval=30.0,
            completion_limit=_OPENAI_LIMIT,
        ),
    }
)
# Sources: `owned_by` of the models in vLLM's and SGLang's protocol.py, llama.cpp's server, Ollama's OpenAI API.
_KIND_BY_OWNER: Final[Mapping[str, EngineKind]] = MappingProxyType(
    {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "library": "ollama"}
)


def stated_traits(settings: EngineSettings) -> dict[str, Any]:
    """The traits that the engine's settings state, by name."""
    stated = {
        "health": settings.health,
        "stream_usage": settings.stream_usage,
        "ends_without_done": settings.ends_without_done,
        "priority": settings.scheduling == "priority" if settings.scheduling is not None else None,
    }
    return {name: value for name, value in stated.items() if value is not None}


def traits_of(kind: EngineKind | None, stated: Mapping[str, Any]) -> EngineTraits:
    """The traits of a kind; None is an unknown one. Those that are stated count more."""
    return msgspec.structs.replace(UNKNOWN if kind is None else _TRAITS[kind], **stated)


class _ModelMeta(msgspec.Struct):
    n_ctx: int | None = None


class _ModelInfo(msgspec.Struct):
    id: str
    owned_by: str | None = None
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    meta: _ModelMeta | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelInfo]


_decode_model_list = msgspec.json.Decoder(_ModelList).decode


class ListedModel(msgspec.Struct, frozen=True):
    """What /v1/models says about a model and its server; None is unknown.

    `max_model_len`: the context in tokens. `adapters`: those of the model; `ignored_adapters` counts further ones,
    which are beyond the bounds of router.upstream.adapters.
    """

    kind: EngineKind | None = None
    max_model_len: int | None = None
    adapters: tuple[ListedAdapter, ...] = ()
    ignored_adapters: int = 0


def parse_model_list(page: bytes, served_model: str) -> ListedModel:
    """Reads /v1/models. Never raises: the server may answer anything."""
    try:
        models = _decode_model_list(page).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ListedModel()
    model = next((model for model in models if model.id == served_model), None)
    if model is None:
        return ListedModel()
    length = model.max_model_len or (model.meta.n_ctx if model.meta is not None else None)
    kind = _KIND_BY_OWNER.get(model.owned_by or "")
    # An engine whose own model is an adapter has no others: they belong to that one's base model.
    listed = [] if model.parent else [ListedAdapter(each.id, each.root or "") for each in models if each.parent]
    valid = {adapter.id: adapter for adapter in listed if is_valid(adapter)}
    adapters = tuple(valid.values())[:MAX_ADAPTERS]
    return ListedModel(
        kind, length if length is not None and length > 0 else None, adapters, len(listed) - len(adapters)
    )
