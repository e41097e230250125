"""Derives the cache key of a request: `rh:1:{tenant}:{model}:{system}:{rag}:{query}`.

Theory. Two requests may share a response only if an engine cannot tell them apart. So the key covers the whole request,
unknown fields included; IGNORED_FIELDS lists the exceptions, each with its reason. The request is split into three
parts, so that a person who lists keys sees which part differs:

- `system`: the text of the system and developer messages, and of `system` (/v1/messages) or `instructions`
  (/v1/responses);
- `rag`: `documents`, and the text between the context markers in system and user messages;
- `query`: everything else, with a placeholder where the text of another part was cut out.

Each part is encoded as canonical JSON with sorted names (except in JSON schemas, see router.core.cache.json_schema), so
different values give different bytes. The digest puts the length before each part, so text cannot move from one part to
another without changing it. xxHash locates an entry; the SHA-256 over the same bytes, tenant and model included,
verifies it. See docs/decisions/0003-key-parts.md.
"""

from typing import Any, Final, assert_never

import xxhash

from router.core.cache import json_schema as schemas
from router.core.cache.cache_key import CacheKey
from router.core.cache.key import ContextMarkers, RequestParts, encode_canonical
from router.core.cache.redis_keys import EMPTY_HASH, entry_key
from router.core.endpoints.endpoint import (
    Conversation,
    EncodedInput,
    FileUpload,
    InferenceRequest,
    Prompt,
    ScoredInput,
    TokenizedInput,
)
from router.core.endpoints.requests.request_fields import wants_usage
from router.core.endpoints.table import ENDPOINTS
from router.errors import bad_request

# Both limits bound the time that one request keeps the event loop busy while its key is derived.
MAX_DOCUMENTS: Final = 10_000
"""Maximum number of documents and marked contexts in a request."""

MAX_PARTS: Final = 10_000
"""Maximum number of messages and content parts in a request."""

IGNORED_FIELDS: Final = {
    "model": "the key has the model's public name instead, after aliases and `auto` are resolved",
    "stream": "a stored response can be replayed as JSON or as a stream",
    "stream_options": "usage is added on replay; options that change the stored events are added by _event_options",
    "user": "identifies the end user for abuse detection; engines ignore it",
    "safety_identifier": "the newer name of `user`",
    "client_metadata": "labels of Codex, such as its turn; engines ignore it",
    "metadata": "labels for the provider's dashboard; engines ignore it",
    "store": "asks the provider to store the response for its dashboard; engines ignore it",
    "service_tier": "affects latency, not the content",
    "prompt_cache_key": "a routing hint for the provider's prefix cache",
    "prompt_cache_retention": "the retention of the provider's prefix cache",
    "priority": "vLLM's scheduling order; affects latency, not the content",
    "request_id": "the request's id in vLLM's logs",
}
"""Request fields that are not part of the key, each with the reason; Endpoint.echoed_fields has the exceptions."""

_IGNORED_BY_ENDPOINT: Final = {
    endpoint: IGNORED_FIELDS.keys() - endpoint.echoed_fields.keys() for endpoint in ENDPOINTS
}
_TEXT_TYPES: Final = ("text", "input_text")  # content part types that hold user or system text
_SYSTEM_ROLES: Final = ("system", "developer")
# Placeholders for text that was cut out of a message. They are numbers, so that no text in a request can imitate one.
_SYSTEM_PLACEHOLDER: Final = 0
_CONTEXT_PLACEHOLDER: Final = 1
_ABSENT: Final = object()  # tells a missing field from one that is null


def split_parts(request: InferenceRequest, markers: ContextMarkers) -> RequestParts:
    """Splits a request into the parts of its key. Raises ApiError (400) above MAX_DOCUMENTS or MAX_PARTS."""
    endpoint, fields = request.endpoint, request.fields
    if isinstance(endpoint.input, FileUpload):
        # Without the file: nothing is looked up or stored under this key.
        return RequestParts([], [], [endpoint.path, fields], "", texts_only=True)
    system: list[Any] = []
    rag: list[Any] = []
    other_fields = fields.copy()
    for name in _IGNORED_BY_ENDPOINT[endpoint].intersection(fields):
        del other_fields[name]
    if not schemas.SCHEMA_FIELDS.isdisjoint(other_fields):
        for name in schemas.SCHEMA_FIELDS.intersection(other_fields):
            other_fields[name] = schemas.preserve_property_order(name, other_fields[name])
    question = ""
    texts_only = True
    rest: list[Any] = []
    layout = endpoint.input
    if isinstance(layout, Conversation):
        documents = other_fields.pop("documents", None)
        if documents is not None:
            _check_document_count(len(documents))
            rag.append(documents)
        system_field = layout.system_field
        if system_field is not None and system_field in other_fields:
            other_fields[system_field], _ = _split_content(other_fields[system_field], markers, system, rag)
        messages = other_fields.pop(layout.field)
        if isinstance(messages, str):
            rest, question = _split_content(messages, markers, None, rag)
        else:
            rest, question, texts_only = _split_messages(messages, markers, system, rag)
    elif isinstance(layout, Prompt):
        prompt = fields.get(layout.field)
        first = prompt[0] if isinstance(prompt, list) and prompt else prompt
        question = first if isinstance(first, str) else ""
    elif isinstance(layout, EncodedInput):
        rest = [other_fields.pop(layout.field, None), other_fields.pop(layout.messages_field, None)]
        texts_only = False  # the messages may have images
    elif isinstance(layout, TokenizedInput):
        rest, texts_only = _split_tokenized(other_fields, layout, markers, system, rag)
    elif isinstance(layout, ScoredInput):
        rest, texts_only = _split_scored(other_fields, layout, rag)
    else:
        assert_never(layout)
    if request.stream and (event_options := _event_options(fields)):
        other_fields["stream_options"] = event_options
    return RequestParts(system, rag, [endpoint.key_path, rest, other_fields], question, texts_only)


def _split_tokenized(
    fields: dict[str, Any], layout: TokenizedInput, markers: ContextMarkers, system: list[Any], rag: list[Any]
) -> tuple[list[Any], bool]:
    """Moves the input out of `fields`, into `system` and `rag`. Returns the rest of it, and `texts_only`."""
    value = fields.pop(layout.field, None)
    pieces, _ = _split_content(value, markers, None, rag) if isinstance(value, str) else (["other", value], "")
    messages_field = layout.messages_field
    messages = fields.pop(messages_field, None) if messages_field is not None else None
    if not isinstance(messages, list):
        return [pieces, messages], True
    rest, _, texts_only = _split_messages(messages, markers, system, rag)
    return [pieces, rest], texts_only


def _split_scored(fields: dict[str, Any], layout: ScoredInput, rag: list[Any]) -> tuple[list[Any], bool]:
    """Moves the input out of `fields`, and the documents into `rag`. Returns the rest of it, and `texts_only`."""
    # Its fields have several names, and so the name of each is in the key.
    rest: list[Any] = []
    texts_only = True
    for names, is_documents in ((layout.query_fields, False), (layout.document_fields, True)):
        for name in names:
            value = fields.pop(name, None)
            if value is None:
                continue
            items = value if isinstance(value, list) else [value]
            _check_document_count(len(items))
            texts_only = texts_only and all(isinstance(item, str) for item in items)
            if is_documents:
                rag.append(value)
                rest.append([name])
            else:
                rest.append([name, value])
    return rest, texts_only


def _split_messages(
    messages: list[dict[str, Any]], markers: ContextMarkers, system: list[Any], rag: list[Any]
) -> tuple[list[Any], str, bool]:
    """Moves text into `system` and `rag`. Returns the rest, the last user text, and `texts_only` (see RequestParts)."""
    rest: list[Any] = []
    question = ""
    texts_only = True
    part_count = len(messages)
    _check_part_count(part_count)
    for message in messages:
        other_fields = message.copy()
        content = other_fields.pop("content", _ABSENT)
        role = other_fields.pop("role", _ABSENT)
        if isinstance(content, list):
            part_count += len(content)
            _check_part_count(part_count)
        if other_fields or not isinstance(content, str):
            texts_only = False
        if role is _ABSENT:  # an item of /v1/responses that is no message, such as a function call
            rest.append(message)
        elif content is _ABSENT:  # a chat template can tell missing content from null, so the key must differ too
            rest.append([role, other_fields])
        elif role == "user":
            pieces, text = _split_content(content, markers, None, rag)
            question = text or question
            rest.append([role, pieces, other_fields])
        elif role in _SYSTEM_ROLES:
            rest.append([role, _split_content(content, markers, system, rag)[0], other_fields])
        else:
            rest.append([role, content, other_fields])
    return rest, question, texts_only


def _check_part_count(count: int) -> None:
    if count > MAX_PARTS:
        raise bad_request(f"The request has more than {MAX_PARTS} messages and parts.", code="too_many_parts")


def _check_document_count(count: int) -> None:
    if count > MAX_DOCUMENTS:
        raise bad_request(f"The request has more than {MAX_DOCUMENTS} documents and contexts.", code="too_many_parts")


def _event_options(fields: dict[str, Any]) -> dict[str, Any]:
    """The stream options that change the events themselves, such as vLLM's continuous_usage_stats."""
    options = fields.get("stream_options") or {}
    # `include_usage` is left out: the usage is stored with every stream, and replayed only to clients that want it.
    # Without it, `continuous_usage_stats` has no effect; see endpoints.requests.request.
    ignored = ("include_usage",) if wants_usage(options) else ("include_usage", "continuous_usage_stats")
    return {
        name: value
        for name, value in options.items()
        if name not in ignored and value is not None and value is not False
    }


def _split_content(content: Any, markers: ContextMarkers, system: list[Any] | None, rag: list[Any]) -> tuple[Any, str]:
    """Moves text of a message into `system` (unless None) and `rag`. Returns the rest of the content, and its text."""
    # The first item names the form of the content, so that no content of another form gives the same bytes.
    if isinstance(content, str):
        pieces: list[Any] = ["text"]
        return pieces, _extract_context(content, markers, pieces, system, rag)
    if not isinstance(content, list):
        return ["none"], ""
    _check_part_count(len(content))
    parts: list[Any] = ["parts"]
    texts = []
    for part in content:
        if isinstance(part, str):  # vLLM takes it for a part with this text
            pieces = []
            texts.append(_extract_context(part, markers, pieces, system, rag))
            parts.append([pieces])
        elif part.get("type") in _TEXT_TYPES and isinstance(part.get("text"), str):
            pieces = []
            other_fields = part.copy()
            texts.append(_extract_context(other_fields.pop("text"), markers, pieces, system, rag))
            parts.append([pieces, other_fields])
        else:
            parts.append(part)
    return parts, "\n".join(texts)


def _extract_context(
    text: str, markers: ContextMarkers, pieces: list[Any], system: list[Any] | None, rag: list[Any]
) -> str:
    """Moves marked context into `rag` and the rest into `system` or `pieces`. Returns the text without the context."""
    plain: list[str] = []
    at = 0
    # Most texts have no context, and a search for one character is much faster than one for the whole marker.
    start = text.find(markers.open) if markers.open[0] in text else -1
    while start >= 0:
        start += len(markers.open)
        end = text.find(markers.close, start)
        if end < 0:  # an open marker that is never closed is ordinary text
            break
        _check_document_count(len(rag) + 1)
        plain.append(text[at:start])
        rag.append(text[start:end])
        pieces += (_SYSTEM_PLACEHOLDER if system is not None else plain[-1], _CONTEXT_PLACEHOLDER)
        at = end
        start = text.find(markers.open, at)
    rest = text[at:]
    if system is None:
        pieces.append(rest)
    else:
        pieces.append(_SYSTEM_PLACEHOLDER)
        system += (*plain, rest)
    return "".join((*plain, rest)) if plain else rest


def derive_cache_key(parts: RequestParts, *, tenant: str, model: str, revision: str) -> CacheKey:
    """The key of a request by `tenant` to `model` at `revision`. Raises ApiError (400) if it is nested too deeply."""
    try:
        system = encode_canonical(parts.system) if parts.system else b""
        rag = encode_canonical(parts.rag) if parts.rag else b""
        query = encode_canonical([revision, *parts.query])
    except RecursionError:  # splitting wraps values in lists, so a part can be nested deeper than the body was
        raise bad_request("The body is nested too deeply.", code="invalid_json") from None
    system_hash = xxhash.xxh3_64_hexdigest(system) if system else EMPTY_HASH
    rag_hash = xxhash.xxh3_64_hexdigest(rag) if rag else EMPTY_HASH
    return CacheKey(
        entry_key(tenant, model, system_hash, rag_hash, xxhash.xxh3_128_hexdigest(query)),
        (tenant, model, system, rag, query),
    )
