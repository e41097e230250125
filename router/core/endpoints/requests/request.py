"""Parses the body of a request, and makes the body that an engine gets.

A body is decoded up to twice, both times by msgspec: into plain values, from which the cache key is derived; and, for
an engine only, into its top-level fields. These are forwarded byte for byte, except for those that the router sets:
`model`, `stream_options`, `cache_salt` and `priority`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from router.core.endpoints.endpoint import Endpoint, InferenceRequest
from router.core.endpoints.requests.cache_salt import combine_salts
from router.core.endpoints.requests.request_fields import ENGINE_ID_FORM, wants_usage
from router.core.json_values import is_deeper, is_integer, normalize_numbers
from router.core.quota.priority import DEFAULT_PRIORITY
from router.errors import ApiError, bad_request

MAX_MODEL_NAME: Final = 256
"""Characters. No name in a configuration is longer."""


# Each object or list takes far more time to decode than a byte of text, and the event loop has one thread.
MAX_CONTAINERS: Final = 250_000
"""Objects and lists in a body. Braces and brackets inside of texts count too, since the body is not parsed for it."""

# A JSON schema takes two levels for each of its own, and no API here needs more than some dozen. Code that recurses
# over a request needs two or three calls for each level, so the limit is far below Python's recursion limit.
MAX_DEPTH: Final = 100
"""Levels of nested objects and lists, the body itself included."""

# Each float is parsed once, and written twice for the cache key.
MAX_FLOATS: Final = 250_000
"""Numbers with a fraction or an exponent in a body of more than _LARGE_BODY bytes."""

MAX_FIELDS: Final = 1000
"""Top-level fields of a body. The APIs of OpenAI and vLLM together have about a hundred."""

# Bytes. In a larger body, floats are normalized after decoding, in a compiled loop: the decoder's hook is a call of
# Python for each float, and 1 million floats in 4 MiB took 350 ms with it, and take 40 ms without.
_LARGE_BODY: Final = 64 * 1024


def _number(text: str) -> int | float:
    """1, 1.0 and 1e0 are one number, so that they give the same cache key."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]} is out of range")
    return int(value) if is_integer(value) else value


_decode = msgspec.json.Decoder(float_hook=_number).decode
_decode_large = msgspec.json.Decoder().decode
_split_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_REMOVED: Final = b""
_USAGE_OPTIONS: Final = b'{"include_usage":true}'


def parse_request(endpoint: Endpoint, body: bytes) -> InferenceRequest:
    """Parses the body of a request. Unknown fields are accepted.

    Raises ApiError with status 400 if the body is not a JSON object or over a limit, or if a known field is missing or
    has a wrong type; `param` names the field as OpenAI does (`messages[0].role`).
    """
    # A body of fewer bytes cannot have so many containers. This check comes before decoding, which is what takes long.
    if len(body) > MAX_CONTAINERS and body.count(b"{") + body.count(b"[") > MAX_CONTAINERS:
        raise bad_request(f"The body has more than {MAX_CONTAINERS} objects and lists.", code="too_many_parts")
    is_large = len(body) > _LARGE_BODY
    try:
        fields = _decode_large(body) if is_large else _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise _too_deep_error() from None
    if not isinstance(fields, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    # Checked after decoding: visiting the containers costs less than counting brackets, since most of a body is text
    # (0.5 us against 1.9 us for a usual body). msgspec itself stops at Python's recursion limit, see above.
    if is_deeper(fields, MAX_DEPTH):
        raise _too_deep_error()
    if is_large and not normalize_numbers(fields, MAX_FLOATS):
        raise bad_request(f"The body has more than {MAX_FLOATS} fractional numbers.", code="too_many_parts")
    if len(fields) > MAX_FIELDS:
        raise bad_request(f"The body has more than {MAX_FIELDS} fields.", code="too_many_parts")
    try:
        known = msgspec.convert(fields, endpoint.fields_type)
    except msgspec.ValidationError as invalid:
        raise wrong_type_error(invalid) from None
    if (lacking := known.validate()) is not None:
        raise lacking
    model = known.model or ""
    if len(model) > MAX_MODEL_NAME:
        raise too_long_model_error()
    return InferenceRequest(
        endpoint=endpoint,
        fields=fields,
        model=model,
        stream=bool(known.stream) and endpoint.streaming is not None,
        include_usage=bool(known.stream) and wants_usage(fields.get("stream_options")),
        temperature=known.temperature,
        seed=known.seed,
        max_tokens=known.max_answer_tokens(),
        body=body,
        priority=known.priority,
    )


def too_long_model_error() -> ApiError:
    return bad_request(f"`model` must have at most {MAX_MODEL_NAME} characters.", param="model")


def _too_deep_error() -> ApiError:
    return bad_request(f"The body is nested more than {MAX_DEPTH} levels deep.", code="invalid_json")


def without_fields(request: InferenceRequest, names: Iterable[str]) -> InferenceRequest:
    """The request without these top-level fields. They must be ones that InferenceRequest has no attribute for."""
    removed = set(names)
    rest = {name: value for name, value in _split_fields(request.body).items() if name not in removed}
    fields = {name: value for name, value in request.fields.items() if name not in removed}
    return msgspec.structs.replace(request, fields=fields, body=_encode(rest))


def with_fields_once(request: InferenceRequest) -> InferenceRequest:
    """The request with a body that has each top-level field once, with its last value, which is the one in `fields`."""
    return msgspec.structs.replace(request, body=_encode(_split_fields(request.body)))


def wrong_type_error(error: msgspec.ValidationError) -> ApiError:
    """The 400 for a field that is missing or has a wrong type."""
    # msgspec's messages: "Expected `bool`, got `str` - at `$.stream`" and "Object missing required field `model`",
    # the latter with the path of the object that lacks it.
    text = str(error)
    what, _, location = text.partition(" - at `")
    path = location.removesuffix("`").removeprefix("$").removeprefix(".")
    if "missing required field" in what:
        field = what.rpartition("field ")[2].strip("`")
        path = f"{path}.{field}" if path else field
        return bad_request(f"`{path}` is missing.", param=path)
    if "matching regex" in what:  # the only texts with a form are ids for an engine
        return bad_request(f"`{path}` {ENGINE_ID_FORM}.", param=path)
    return bad_request(f"`{path}`: {what[0].lower()}{what[1:]}.", param=path or None)


def engine_body(
    request: InferenceRequest,
    served_model: str,
    salt: str | None = None,
    *,
    stream_usage: bool = True,
    priority: int | None = None,
    token_ids: bool = False,
) -> bytes:
    """The body that an engine gets: the client's fields byte for byte, with the engine's name of the model.

    A stream always has the usage, by which tokens are counted, also where an engine sends it only if it is requested; a
    client that does not want it never gets it.

    `salt`: the tenant's `cache_salt` where tenants are isolated; see requests.cache_salt. Raises ApiError for an
    invalid `cache_salt` of the client. `stream_usage`: whether the engine takes `stream_options`. `priority`: the one
    that the engine gets, in place of the client's; None for an engine that must not get any. `token_ids`: whether the
    engine is asked for the ids of tokens, see router.core.endpoints.continuation.stream_so_far.
    """
    edits = _edits(request, served_model, salt, stream_usage=stream_usage, priority=priority, token_ids=token_ids)
    if not edits:
        return request.body
    if not any(name in request.fields for name in edits):
        # Appended after the last field, in place of the closing brace: this costs far less than splitting the body.
        # There is a field before it: `model`.
        more = b"".join([b',"%b":%b' % (name.encode(), raw) for name, raw in edits.items()])
        return request.body.rstrip()[:-1] + more + b"}"
    fields = _split_fields(request.body)
    for name, raw in edits.items():
        if raw is _REMOVED:
            del fields[name]
        else:
            fields[name] = msgspec.Raw(raw)
    return _encode(fields)


def _edits(
    request: InferenceRequest, served_model: str, salt: str | None, *, stream_usage: bool, priority: int | None,
    token_ids: bool,
) -> dict[str, bytes]:  # fmt: skip
    """By field, the JSON that an engine gets in its place, or _REMOVED for one that the request has."""
    fields = request.fields
    edits = {} if fields.get("model") == served_model else {"model": _encode(served_model)}
    if salt is not None:
        # A client's salt only counts beside the tenant's; where tenants are not isolated, it is forwarded as it is.
        edits["cache_salt"] = _encode(combine_salts(salt, fields["cache_salt"]) if "cache_salt" in fields else salt)
    has_priority = "priority" in fields
    if not has_priority or priority is None or request.priority != priority:
        if priority not in (None, DEFAULT_PRIORITY):
            edits["priority"] = _encode(priority)
        elif has_priority:
            edits["priority"] = _REMOVED
    if token_ids:  # the client's is false or null, if it has one
        edits["return_token_ids"] = b"true"
    options = fields.get("stream_options")
    if not stream_usage:
        if "stream_options" in fields:
            edits["stream_options"] = _REMOVED
    elif _needs_usage_option(request) and not (options or {}).get("include_usage"):
        edits["stream_options"] = _usage_options(options, in_every_event=request.include_usage)
    return edits


def _needs_usage_option(request: InferenceRequest) -> bool:
    streaming = request.endpoint.streaming if request.stream else None
    return streaming is not None and streaming.needs_usage_option


def _usage_options(options: Mapping[str, Any] | None, *, in_every_event: bool) -> bytes:
    if not options:
        return _USAGE_OPTIONS
    # vLLM ignores `continuous_usage_stats` in a request without `include_usage`, so it must not apply now.
    kept = {name: value for name, value in options.items() if in_every_event or name != "continuous_usage_stats"}
    return _encode({**kept, "include_usage": True})
