"""Which engines can take a prompt of this length.

The router does not count tokens, which would cost more than it gains and needs each model's vocabulary. It knows two
bounds: a token stands for at least one byte, so a prompt has at most as many tokens as bytes; and what a client counted
itself (`max_tokens`, a prompt of token ids) is certain. Between the two, the engine decides.
"""

from enum import IntEnum
from typing import Any, Final

import msgspec

from router.core.endpoints.request import InferenceRequest
from router.core.types import Endpoint
from router.errors import ApiError, bad_request

TEMPLATE_OVERHEAD: Final = 256
"""Tokens that a chat template may add of its own, beside what it writes for each message."""

_TEXT_TYPES: Final = (
    "text",
    "input_text",
    "output_text",
    "refusal",
    "tool_use",
    "tool_result",
    "thinking",
    "function_call",
)
_REFERENCE_FIELDS: Final = frozenset(("previous_response_id", "conversation", "prompt_embeds"))
_PROMPT_FIELD: Final = {
    Endpoint.COMPLETIONS: "prompt",
    Endpoint.EMBEDDINGS: "input",
    Endpoint.RESPONSES: "input",
}


class TokenBounds(msgspec.Struct, frozen=True):
    """What a request takes of a context, in tokens; vLLM's context holds prompt and answer together.

    - `prompt`: what the prompt has for certain.
    - `answer`: how many tokens of an answer are asked for; vLLM refuses one that the context could not even hold alone.
    - `most`: prompt and answer cannot have more; None where nobody can say, as with images.
    """

    min_prompt: int
    completion: int
    max_total: int | None


class Fit(IntEnum):
    """Whether a request fits into an engine's context."""

    FITS = 0
    MAY_FIT = 1
    TOO_LONG = 2


def token_bounds(request: InferenceRequest) -> TokenBounds:
    """The bounds of a request."""
    prompt, answer = _known_token_counts(request)
    most = None if _has_non_text(request.fields) else len(request.body) + TEMPLATE_OVERHEAD + max(answer, 1)
    return TokenBounds(prompt, answer, most)


def min_context(request: InferenceRequest) -> int:
    """The tokens that a context must have at the least: to one with fewer, the request is Fit.NEVER."""
    return max(_known_token_counts(request))


def _known_token_counts(request: InferenceRequest) -> tuple[int, int]:
    """How many tokens the prompt and the answer have for certain."""
    fields, answer = request.fields, max(request.max_tokens or 0, 0)
    place = _PROMPT_FIELD.get(request.endpoint)
    # Whoever has his prompt cut to fit can send one of any length.
    if place is None or fields.get("truncate_prompt_tokens") is not None:
        return 0, answer
    return _token_id_count(fields.get(place)), answer


def check_fit(bounds: TokenBounds, max_model_len: int | None) -> Fit:
    """`max_model_len`: the engine's; None is unknown, and then it may well fit."""
    if max_model_len is None:
        return Fit.MAY_FIT
    if max(bounds.min_prompt, bounds.completion) > max_model_len:
        return Fit.TOO_LONG
    return Fit.FITS if bounds.max_total is not None and bounds.max_total <= max_model_len else Fit.MAY_FIT


def context_length_error(request: InferenceRequest, bounds: TokenBounds, max_context: int) -> ApiError:
    """What a client is told whose request no engine could take, in OpenAI's words; `longest` is the largest context."""
    place = "messages" if "messages" in request.fields else _PROMPT_FIELD.get(request.endpoint, "messages")
    return bad_request(
        f"This model's maximum context length is {max_context} tokens. However, you requested at least "
        f"{bounds.min_prompt + bounds.completion} tokens ({bounds.min_prompt} in the {place}, "
        f"{bounds.completion} in the completion; `max_tokens`). Please reduce the length of the {place} or completion.",
        param=place,
        code="context_length_exceeded",
    )


def _token_id_count(prompt: Any) -> int:
    """How many tokens the longest prompt of ids has; 0 for a text, of which nothing is certain."""
    if not isinstance(prompt, list) or not prompt:
        return 0
    if isinstance(prompt[0], list):
        return max((_token_id_count(one) for one in prompt), default=0)
    return len(prompt) if isinstance(prompt[0], int) else 0


def _has_non_text(fields: dict[str, Any]) -> bool:
    """Whether a request has images or the like, of which a short address can be many tokens, or refers to a text."""
    if any(map(fields.get, _REFERENCE_FIELDS)) or isinstance(fields.get("prompt"), dict):
        return True
    said = fields.get("messages") or fields.get("input")
    for item in said if isinstance(said, list) else ():
        if isinstance(item, dict):
            kind = item.get("type", "message" if "role" in item else "item_reference")
            content = item.get("content")
            if kind == "item_reference" or (isinstance(content, list) and not _is_text_only(content)):
                return True
    return False


def _is_text_only(content: Any) -> bool:
    """Whether all parts of a message's content are text, those in the results of tools too."""
    parts = content if isinstance(content, list) else ()
    return all(
        part.get("type", "text") in _TEXT_TYPES and _is_text_only(part.get("content"))
        for part in parts
        if isinstance(part, dict)
    )
