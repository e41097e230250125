"""From a request to the key of its answer: `rh:1:{tenant}:{model}:{system}:{rag}:{query}`.

Theory. Two requests may share an answer only if an engine would have to see them as the same. So everything is part of
the key, fields that nobody here has heard of included, except what NOT_PART_OF_THE_ANSWER names with a reason. The
request is taken apart into three parts, so that a person who lists keys sees which part differs:

- `system`: the text of its system and developer messages, and of `system` (/v1/messages) or `instructions`
  (/v1/responses);
- `rag`: its `documents`, and what stands between the context markers in its system and user messages;
- `query`: all the rest, with a mark at each place that the text of another part took.

The parts are lists and maps of plain values, written as JSON with sorted names (but in JSON schemas, see
router.core.cache.json_schema), which no other list or map gives, and each with its length before it. So no part can
flow into another. xxHash finds an entry; the SHA-256 of the same bytes, tenant and model included, proves it.
"""

from typing import Any, Final

import xxhash

from router.core.cache import json_schema as schemas
from router.core.cache.key import CacheKey, ContextMarkers, RequestParts, encode_canonical
from router.core.cache.redis_keys import KEY_PREFIX
from router.core.endpoints.request import InferenceRequest
from router.core.types import Endpoint
from router.errors import bad_request

EMPTY_HASH: Final = "0" * 16
"""The system or rag part of a request that has none."""

MAX_DOCUMENTS: Final = 10_000
"""Documents and contexts of a request."""

MAX_PARTS: Final = 10_000
"""Messages of a request, and parts of their contents; with MAX_DOCUMENTS it bounds how long one may take to read."""

IGNORED_FIELDS: Final = {
    "model": "the key has the model's public name, which an alias and `auto` stand for",
    "stream": "JSON and event stream are two forms of one answer",
    "stream_options": "they shape the stream; what of them changes its events is added by _stream_shape",
    "user": "says who asked, to a provider that looks for abuse; engines ignore it",
    "safety_identifier": "the newer name of `user`",
    "metadata": "labels for the provider's own listings; engines ignore it",
    "store": "asks a provider to keep the answer for its own listings; engines ignore it",
    "service_tier": "how soon, not what",
    "prompt_cache_key": "a hint where the prompt's prefix may be cached",
    "prompt_cache_retention": "how long that prefix may be kept",
    "priority": "vLLM's scheduling order: when, not what",
    "request_id": "vLLM's name for the request in its own logs",
}
"""The request fields that are left out of the key, by name and with the reason; but see SAID_BACK."""

ECHOED_FIELDS: Final = {
    Endpoint.RESPONSES: {
        "user": "repeated in the answer",
        "metadata": "repeated in the answer",
        "service_tier": "repeated in the answer",
        "store": "repeated in the answer by OpenAI, and has the answer kept where a later request can refer to it",
        "request_id": "the answer's id",
    },
}
"""What of those fields is part of the key at these endpoints all the same, since their answer shows it."""

_IGNORED_BY_ENDPOINT: Final = {
    endpoint: IGNORED_FIELDS.keys() - ECHOED_FIELDS.get(endpoint, {}).keys() for endpoint in Endpoint
}
_CONVERSATION_FIELD: Final = {Endpoint.CHAT: "messages", Endpoint.RESPONSES: "input", Endpoint.MESSAGES: "messages"}
_TEXT_TYPES: Final = ("text", "input_text")  # the types of parts that hold text of a user or a system
_SYSTEM_ROLES: Final = ("system", "developer")
_SYSTEM_FIELD: Final = {Endpoint.RESPONSES: "instructions", Endpoint.MESSAGES: "system"}  # where it has its own
_SYSTEM_PLACEHOLDER: Final = 0  # where a piece of the system part stood
_CONTEXT_PLACEHOLDER: Final = 1  # where a piece of the rag part stood
_ABSENT: Final = object()


def split_parts(request: InferenceRequest, markers: ContextMarkers) -> RequestParts:
    """Which text of the request belongs to which part of the key. Raises ApiError where there are too many of them."""
    endpoint, fields = request.endpoint, request.fields
    system: list[Any] = []
    rag: list[Any] = []
    rest = fields.copy()
    for name in _IGNORED_BY_ENDPOINT[endpoint].intersection(fields):
        del rest[name]
    if not schemas.SCHEMA_FIELDS.isdisjoint(rest):
        for name in schemas.SCHEMA_FIELDS.intersection(rest):
            rest[name] = schemas.preserve_property_order(name, rest[name])
    question = ""
    texts_only = endpoint is not Endpoint.EMBEDDINGS
    asked: list[Any] = []
    conversation = _CONVERSATION_FIELD.get(endpoint)
    if conversation is not None:
        documents = rest.pop("documents", None)
        if documents is not None:
            _check_document_count(len(documents))
            rag.append(documents)
        place = _SYSTEM_FIELD.get(endpoint)
        if place in rest:
            rest[place], _ = _split_content(rest[place], markers, system, rag)
        messages = rest.pop(conversation)
        if isinstance(messages, str):
            asked, question = _split_content(messages, markers, None, rag)
        else:
            asked, question, texts_only = _split_messages(messages, markers, system, rag)
    elif endpoint is Endpoint.COMPLETIONS:
        prompt = fields["prompt"]
        first = prompt[0] if isinstance(prompt, list) else prompt
        question = first if isinstance(first, str) else ""
    else:  # of embeddings, nobody asks anything
        asked = [rest.pop("input", None), rest.pop("messages", None)]
    if request.stream and (shape := _event_options(fields)):
        rest["stream_options"] = shape
    return RequestParts(system, rag, [endpoint.path, asked, rest], question, texts_only)


def _split_messages(
    messages: list[dict[str, Any]], markers: ContextMarkers, system: list[Any], rag: list[Any]
) -> tuple[list[Any], str, bool]:
    """What remains of a conversation once `system` and `rag` have taken their texts; and the last text of a user.

    The third is whether each message is a role and a text; see Parts.
    """
    remains: list[Any] = []
    question = ""
    texts_only = True
    parts = len(messages)
    _check_part_count(parts)
    for message in messages:
        others = message.copy()
        content = others.pop("content", _ABSENT)
        role = others.pop("role", _ABSENT)
        if isinstance(content, list):
            parts += len(content)
            _check_part_count(parts)
        if others or not isinstance(content, str):
            texts_only = False
        if role is _ABSENT:  # an item of /v1/responses that nobody said
            remains.append(message)
        elif content is _ABSENT:  # whether it was there at all is something that a chat template can see
            remains.append([role, others])
        elif role == "user":
            pieces, text = _split_content(content, markers, None, rag)
            question = text or question
            remains.append([role, pieces, others])
        elif role in _SYSTEM_ROLES:
            remains.append([role, _split_content(content, markers, system, rag)[0], others])
        else:
            remains.append([role, content, others])
    return remains, question, texts_only


def _check_part_count(count: int) -> None:
    if count > MAX_PARTS:
        raise bad_request(f"The request has more than {MAX_PARTS} messages and parts.", code="too_many_parts")


def _check_document_count(count: int) -> None:
    if count > MAX_DOCUMENTS:
        raise bad_request(f"The request has more than {MAX_DOCUMENTS} documents and contexts.", code="too_many_parts")


def _event_options(fields: dict[str, Any]) -> dict[str, Any]:
    """The stream options that change the events themselves, as vLLM's continuous_usage_stats does."""
    options = fields.get("stream_options") or {}
    return {
        name: value
        for name, value in options.items()
        if name != "include_usage" and value is not None and value is not False
    }


def _split_content(content: Any, markers: ContextMarkers, system: list[Any] | None, rag: list[Any]) -> tuple[Any, str]:
    """What remains of a message's content once `system` (unless None) and `rag` have taken theirs; and its text.

    The first item says which form the content had, so that no client can spell what we write for another form.
    """
    if isinstance(content, str):
        pieces: list[Any] = ["text"]
        return pieces, _extract_context(content, markers, pieces, system, rag)
    if not isinstance(content, list):
        return ["none"], ""
    _check_part_count(len(content))
    parts: list[Any] = ["parts"]
    texts = []
    for part in content:
        if part.get("type") in _TEXT_TYPES and isinstance(part.get("text"), str):
            pieces = []
            others = part.copy()
            texts.append(_extract_context(others.pop("text"), markers, pieces, system, rag))
            parts.append([pieces, others])
        else:
            parts.append(part)
    return parts, "\n".join(texts)


def _extract_context(
    text: str, markers: ContextMarkers, pieces: list[Any], system: list[Any] | None, rag: list[Any]
) -> str:
    """Cuts the context out of a text, and puts what remains where it belongs; gives the text without the context."""
    own: list[str] = []
    at = 0
    # Most texts have none, and one character is found far faster than a word.
    start = text.find(markers.open) if markers.open[0] in text else -1
    while start >= 0:
        start += len(markers.open)
        end = text.find(markers.close, start)
        if end < 0:
            break
        _check_document_count(len(rag) + 1)
        own.append(text[at:start])
        rag.append(text[start:end])
        pieces += (_SYSTEM_PLACEHOLDER if system is not None else own[-1], _CONTEXT_PLACEHOLDER)
        at = end
        start = text.find(markers.open, at)
    rest = text[at:]
    if system is None:
        pieces.append(rest)
    else:
        pieces.append(_SYSTEM_PLACEHOLDER)
        system += (*own, rest)
    return "".join((*own, rest)) if own else rest


def derive_cache_key(parts: RequestParts, *, tenant: str, model: str, revision: str) -> CacheKey:
    """The key of the answer that `model` at `revision` gives to `tenant`. Raises ApiError for what is too deep."""
    try:
        system = encode_canonical(parts.system) if parts.system else b""
        rag = encode_canonical(parts.rag) if parts.rag else b""
        query = encode_canonical([revision, *parts.query])
    except RecursionError:  # a part may lie deeper here than it lay in the body
        raise bad_request("The body is nested too deeply.", code="invalid_json") from None
    system_hash = xxhash.xxh3_64_hexdigest(system) if system else EMPTY_HASH
    rag_hash = xxhash.xxh3_64_hexdigest(rag) if rag else EMPTY_HASH
    return CacheKey(
        f"{KEY_PREFIX}{tenant}:{model}:{system_hash}:{rag_hash}:{xxhash.xxh3_128_hexdigest(query)}",
        (tenant, model, system, rag, query),
    )
