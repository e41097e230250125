"""The status that an error in a response with status 200 would have had as a response of its own.

An engine finds some errors only after it has sent the head of its response: it then reports them in the stream, or in
the body. Where the error has a number, that counts, except for failures of TGI. Else its words do: the types and codes
of OpenAI, Anthropic, vLLM and TGI, and what other servers make of them. An error without a known word is a failure of
the engine.
"""

import re
from typing import Any, Final

from router.core.endpoints.errors.engine_message import error_object

ENGINE_FAILURE: Final = 500

_NUMBERS: Final = ("code", "status", "status_code", "http_status_code", "statusCode", "http_status")
_WORDS: Final = ("code", "type", "error_type", "status", "reason")

_CAMEL_CASE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MAX_WORD: Final = 128  # characters; longer ones are texts

# Parts of words in snake case, in this order: `invalid_api_key` is about the key, `server_error` not about the request.
_STATUS_OF_PARTS: Final = (
    (400, ("token_id",)),  # an invalid one is no invalid token of access
    (401, ("authentication", "unauthorized", "unauthenticated", "api_key", "invalid_token")),
    (403, ("permission", "forbidden", "access_denied")),
    (429, ("rate_limit", "overload", "too_many_requests", "quota", "slow_down", "exhausted", "capacity", "busy")),
    (
        ENGINE_FAILURE,
        ("server", "internal", "unavailable", "timeout", "timed_out", "upstream", "gateway", "generation",
         "bad_response", "invalid_response", "engine_dead", "out_of_memory", "api_error"),
    ),
    (413, ("request_too_large", "payload_too_large", "entity_too_large")),
    (404, ("not_found", "not_exist")),
    (422, ("validation", "unprocessable", "template_error", "tool_error")),
    (
        400,
        ("invalid", "unsupported", "not_supported", "bad_request", "context_length", "context_window", "context_size",
         "max_length", "too_long", "too_large", "too_short", "missing", "required", "policy", "content_filter",
         "unknown_parameter", "value_error", "out_of_range", "malformed", "too_small",
         "empty_image", "image_parse", "above_max", "below_min",
         "max_tokens", "token_limit", "tokens_limit", "tokens_exceeded", "too_many_tokens", "grammar",
         "failed_to_download"),
    ),
)  # fmt: skip

# How TGI's messages begin, where their type is missing.
_TGI_MESSAGES: Final = (
    ("Input validation error", 422), ("Template error", 422), ("Tool error", 422), ("Model is overloaded", 429),
)  # fmt: skip

# TGI 3 writes this number into each error of a stream, and it is always 422. So these count before it.
_TGI_NUMBER: Final = "http_status_code"
_TGI_FAILURES: Final = (
    ("Request failed during generation", ENGINE_FAILURE), ("Incomplete generation", ENGINE_FAILURE),
    ("Stream event serialization error", ENGINE_FAILURE), ("Model is overloaded", 429),
)  # fmt: skip


def error_status(value: Any) -> int:
    """The status for the decoded payload of an event, or the decoded body, that reports an error.

    ENGINE_FAILURE where it is not known to be another. A 429: the engine is busy. A 401 or 403: it refuses the router.
    """
    error = error_object(value)
    if error is None:
        return ENGINE_FAILURE
    if _TGI_NUMBER in error and (failure := _tgi_failure(error)) is not None:
        return failure
    holders = (error,) if error is value else (error, value)
    for holder in holders:
        for name in _NUMBERS:
            if (number := _status_number(holder.get(name))) is not None:
                return number
    for holder in holders:
        for name in _WORDS:
            if (status := _status_of_word(holder.get(name))) is not None:
                return status
    text = error.get("error")
    if not isinstance(text, str):
        return ENGINE_FAILURE
    return next((status for begin, status in _TGI_MESSAGES if text.startswith(begin)), ENGINE_FAILURE)


def _tgi_failure(error: dict[str, Any]) -> int | None:
    """The status of an error of TGI that is not the request's fault, by its type or its message; None for another."""
    status = _status_of_word(error.get("error_type"))
    if status in (ENGINE_FAILURE, 429):
        return status
    text = error.get("message") or error.get("error")
    if not isinstance(text, str):
        return None
    return next((status for begin, status in _TGI_FAILURES if text.startswith(begin)), None)


def _status_number(value: Any) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    return value if type(value) is int and 400 <= value < 600 else None


def _status_of_word(value: Any) -> int | None:
    if not isinstance(value, str) or len(value) > _MAX_WORD:
        return None
    word = _CAMEL_CASE.sub("_", value).lower().replace("-", "_").replace(" ", "_")
    return next((status for status, parts in _STATUS_OF_PARTS if any(part in word for part in parts)), None)
