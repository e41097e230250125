"""Whether a request fits into the context of an engine.

The router does not tokenize: that would cost more than it gains, and needs the vocabulary of each model. It knows two
bounds. A token is at least one byte, so a prompt has at most as many tokens as bytes. What the client has counted
itself (`max_tokens`, a prompt of token ids) is a lower bound. In between, the engine decides.
"""

from typing import Any, Final

from router.core.endpoints.endpoint import InferenceRequest, ScoredInput
from router.core.routing.token_bounds import Fit, TokenBounds
from router.errors import ApiError, bad_request

TEMPLATE_OVERHEAD: Final = 256
"""Tokens that a chat template may add, in addition to those for each message."""

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


def token_bounds(request: InferenceRequest) -> TokenBounds:
    min_prompt, completion = _known_token_counts(request)
    max_total = None if _has_non_text(request.fields) else len(request.body) + TEMPLATE_OVERHEAD + max(completion, 1)
    return TokenBounds(min_prompt, completion, max_total)


class ContextNeed:
    """What the context of an engine must have room for: the prompt, and alone the `completion`; see TokenBounds."""

    def __init__(self, min_prompt: int, completion: int) -> None:
        self.min_prompt = min_prompt
        self.completion = completion

    def exceeds(self, max_model_len: int | None, *, shortens: bool) -> bool:
        """`max_model_len`: the engine's; None is unknown. `shortens`: see EngineTraits.shortens_answers."""
        if max_model_len is None:
            return False
        # max, not the sum: `completion` is only asked for. vLLM refuses it only if it exceeds the context by itself.
        return (self.min_prompt if shortens else max(self.min_prompt, self.completion)) > max_model_len


def context_need(request: InferenceRequest) -> ContextNeed:
    return ContextNeed(*_known_token_counts(request))


def _known_token_counts(request: InferenceRequest) -> tuple[int, int]:
    """`min_prompt` and `completion` of TokenBounds."""
    fields, completion, layout = request.fields, max(request.max_tokens or 0, 0), request.endpoint.input
    # A scored text has no token ids, and each pair of texts is a prompt of its own.
    if not request.endpoint.runs_model or isinstance(layout, ScoredInput):
        return 0, 0
    # With truncate_prompt_tokens, vLLM cuts the prompt to fit, so any length is fine.
    if fields.get("truncate_prompt_tokens") is not None:
        return 0, completion
    return _token_id_count(fields.get(layout.field)), completion


def check_fit(bounds: TokenBounds, max_model_len: int | None, *, shortens: bool = False) -> Fit:
    """`max_model_len`, `shortens`: as in ContextNeed; a context that is unknown gives Fit.MAY_FIT."""
    if max_model_len is None:
        return Fit.MAY_FIT
    if ContextNeed(bounds.min_prompt, bounds.completion).exceeds(max_model_len, shortens=shortens):
        return Fit.TOO_LONG
    return Fit.FITS if bounds.max_total is not None and bounds.max_total <= max_model_len else Fit.MAY_FIT


def context_length_error(request: InferenceRequest, bounds: TokenBounds, max_context: int) -> ApiError:
    """The 400 for a request that fits no engine, in OpenAI's words; `max_context` is the largest context."""
    layout = request.endpoint.input
    # No engine is too short for scored texts, whose length is not known.
    field = "messages" if "messages" in request.fields or isinstance(layout, ScoredInput) else layout.field
    return bad_request(
        f"This model's maximum context length is {max_context} tokens. However, you requested at least "
        f"{bounds.min_prompt + bounds.completion} tokens ({bounds.min_prompt} in the {field}, "
        f"{bounds.completion} in the completion; `max_tokens`). Please reduce the length of the {field} or completion.",
        param=field,
        code="context_length_exceeded",
    )


def _token_id_count(prompt: Any) -> int:
    """The length of the longest prompt of token ids; 0 for text, whose tokens are not known."""
    if not isinstance(prompt, list) or not prompt:
        return 0
    if isinstance(prompt[0], list):
        return max((_token_id_count(item) for item in prompt), default=0)
    return len(prompt) if isinstance(prompt[0], int) else 0


def _has_non_text(fields: dict[str, Any]) -> bool:
    """Whether a request has images or the like, or refers to stored text: a short URL or id can be many tokens."""
    if any(map(fields.get, _REFERENCE_FIELDS)) or isinstance(fields.get("prompt"), dict):
        return True
    items = fields.get("messages") or fields.get("input")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            # In /v1/responses, an item with neither a type nor a role is a reference to a stored item.
            kind = item.get("type", "message" if "role" in item else "item_reference")
            content = item.get("content")
            if kind == "item_reference" or (isinstance(content, list) and not _is_text_only(content)):
                return True
    return False


def _is_text_only(content: Any) -> bool:
    parts = content if isinstance(content, list) else ()
    return all(
        part.get("type", "text") in _TEXT_TYPES and _is_text_only(part.get("content"))
        for part in parts
        if isinstance(part, dict)
    )
