"""The fields of a request that make an engine open a connection or a file, or that name memory of one engine.

A client that sends `kv_transfer_params` chooses the host and port that the engine connects to, and the blocks that it
loads. So such fields are for tenants with `kv_transfer = true` alone, and others get 400. A response to such a request
names blocks of one engine, which exist for seconds: it is neither stored nor shared.

A `uuid` beside an image, audio or video is the key of vLLM's media cache, which has no salt: with the ID of another
tenant, an engine uses that tenant's image, or gives it the client's own. So it is a field for tenants with the right,
too, where engines are shared by tenants that are isolated from each other.

Source: the request models of vLLM 0.32 (`protocol.py` in the folders of its `entrypoints`), and the fields of SGLang
and TensorRT-LLM for the same purpose.
"""

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from router.errors import ApiError, bad_request


class Handling(StrEnum):
    """What happens to a field of ENGINE_FIELDS."""

    NEEDS_RIGHT = "needs-right"  # 400, unless the tenant has `kv_transfer = true`
    NEEDS_RIGHT_IF_SHARED = "needs-right-if-shared"  # the same, where isolated tenants share engines
    BY_NAMES = "by-names"  # its own fields may be ones that need the right
    CHECKED = "checked"  # passed on with a value that the router has checked or made
    ENGINE_REFUSES = "engine-refuses"  # passed on; the engine refuses it unless its operator has turned it on
    PASSED_ON = "passed-on"


_CONNECTOR_HOST: Final = "a connector connects to the host and port in it, and loads or frees the blocks that it names"

ENGINE_FIELDS: Final[Mapping[str, tuple[Handling, str]]] = {
    "kv_transfer_params": (Handling.NEEDS_RIGHT, _CONNECTOR_HOST),
    "ec_transfer_params": (Handling.NEEDS_RIGHT, "the same for the encoder's cache"),
    "disaggregated_params": (Handling.NEEDS_RIGHT, "of TensorRT-LLM; the same as kv_transfer_params"),
    "bootstrap_host": (Handling.NEEDS_RIGHT, "of SGLang; the host that the engine connects to for blocks"),
    "bootstrap_port": (Handling.NEEDS_RIGHT, "of SGLang; the port of bootstrap_host"),
    "bootstrap_room": (Handling.NEEDS_RIGHT, "of SGLang; names the blocks of another request"),
    "custom_logit_processor": (Handling.NEEDS_RIGHT, "of SGLang; a serialized function that the engine runs"),
    "uuid": (Handling.NEEDS_RIGHT_IF_SHARED, "of a content part; the key of the media cache that all tenants share"),
    "vllm_xargs": (Handling.BY_NAMES, "vLLM reads the transfer parameters from here, too; a form has it as JSON"),
    "model": (Handling.CHECKED, "a LoRA resolver loads the folder of this name; the router puts the served model here"),
    "request_id": (Handling.CHECKED, "P2pNcclConnector reads addresses from ids; see request_fields.EngineId"),
    "cache_salt": (Handling.CHECKED, "hashed with the tenant's; see cache_salt"),
    "chat_template": (Handling.ENGINE_REFUSES, "a program, in a sandbox; --trust-request-chat-template"),
    "chat_template_kwargs": (Handling.ENGINE_REFUSES, "its chat_template as above; the rest are variables of it"),
    "mm_processor_kwargs": (Handling.ENGINE_REFUSES, "arguments of the model's processor; --trust-request-mm-kwargs"),
    "media_io_kwargs": (Handling.ENGINE_REFUSES, "arguments of media loaders; --trust-request-mm-kwargs"),
    "prompt_embeds": (Handling.ENGINE_REFUSES, "tensors, read without code in them; --enable-prompt-embeds"),
    "image_embeds": (Handling.ENGINE_REFUSES, "of a content part, as prompt_embeds; --enable-mm-embeds"),
    "audio_embeds": (Handling.ENGINE_REFUSES, "as image_embeds"),
    "data": (Handling.PASSED_ON, "of /pooling; what it means is up to the plugin that the engine's operator installed"),
    "image_url": (Handling.PASSED_ON, "the engine fetches it; --allowed-media-domains, --allowed-local-media-path"),
    "audio_url": (Handling.PASSED_ON, "as image_url"),
    "video_url": (Handling.PASSED_ON, "as image_url"),
    "tools": (
        Handling.PASSED_ON,
        "engines connect to those of --tool-server alone, and read no server_url of a client",
    ),
    "structured_outputs": (Handling.PASSED_ON, "a schema or grammar that is compiled; nothing is opened for it"),
    "mm_payload": (Handling.PASSED_ON, "of endpoints that the router does not have; elsewhere ignored"),
    "return_mm_kwargs": (Handling.PASSED_ON, "as mm_payload"),
    "session_id": (Handling.PASSED_ON, "a label that related requests share; nothing is opened for it"),
    "previous_response_id": (Handling.PASSED_ON, "memory of the engine, but no address; see server_state"),
}
"""Each field that may reach beyond the prompt, what happens to it, and why."""

_NEED_RIGHT: Final = frozenset(
    name for name, (handling, _) in ENGINE_FIELDS.items() if handling is Handling.NEEDS_RIGHT
)
_NESTING: Final = frozenset(name for name, (handling, _) in ENGINE_FIELDS.items() if handling is Handling.BY_NAMES)
_LOOKED_AT: Final = _NEED_RIGHT | _NESTING

_NO_VALUE: Final[tuple[Any, ...]] = (None, {})  # clients send null for every field that they do not set

# A name in quotes is a field: in a text, the quotes would be escaped. Engines send null where they transfer nothing.
# The pattern begins with a text that is rare, since this is searched for in each response that may be stored.
_TRANSFER_VALUE: Final = re.compile(rb'_params"\s*:(?!\s*(?:null|\{\s*\}))')
_TRANSFER_NAMES: Final = (b'"kv_transfer', b'"ec_transfer', b'"disaggregated')


def has_engine_field(fields: Mapping[str, Any]) -> bool:
    """Whether one of the names is there, with a value that needs the right or not; see find_engine_field."""
    return not _LOOKED_AT.isdisjoint(fields)


def find_engine_field(fields: Mapping[str, Any]) -> str | None:
    """The first field that needs the right, as `vllm_xargs.kv_transfer_params` where it is nested; None if none does.

    `fields`: of a body, or the texts of a form.
    """
    if not has_engine_field(fields):
        return None
    for name in fields:
        if name in _NEED_RIGHT and fields[name] not in _NO_VALUE:
            return name
        if name in _NESTING and (nested := _find_nested(fields[name])) is not None:
            return f"{name}.{nested}"
    return None


def _find_nested(value: Any) -> str | None:
    if isinstance(value, str):
        try:
            # As vLLM reads it: the router's own decoder takes less, and so would overlook some.
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None  # vLLM refuses it
    return next((name for name in value if name in _NEED_RIGHT), None) if isinstance(value, dict) else None


def names_cached_media(fields: Mapping[str, Any]) -> bool:
    """Whether a content part has a `uuid`. To be asked for requests with other parts than text."""
    return any(_has_named_part(value) for value in fields.values() if isinstance(value, list | dict))


def _has_named_part(value: Any) -> bool:
    """`value`: a message, an item or a document with parts as `content` or `output`, or a list of these."""
    if isinstance(value, list):
        return any(_has_named_part(item) for item in value)
    if not isinstance(value, dict):
        return False
    for parts in (value.get("content"), value.get("output")):
        if isinstance(parts, list) and any(isinstance(part, dict) and part.get("uuid") is not None for part in parts):
            return True
    return False


def cached_media_error() -> ApiError:
    return bad_request(
        "`uuid` of a content part names media that other tenants may have sent; this tenant may not send it "
        "(kv_transfer).",
        param="uuid",
        code="field_not_allowed",
    )


def engine_field_error(field: str) -> ApiError:
    return bad_request(
        f"`{field}` makes an engine connect to another host or run code; this tenant may not send it (kv_transfer).",
        param=field,
        code="field_not_allowed",
    )


def names_engine_memory(body: bytes) -> bool:
    """Whether a response, as JSON or as events, names blocks or hosts of one engine."""
    if body.find(b'_params"') < 0:
        return False
    return any(body.endswith(_TRANSFER_NAMES, 0, match.start()) for match in _TRANSFER_VALUE.finditer(body))
