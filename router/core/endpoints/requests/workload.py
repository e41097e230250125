"""What an engine has to compute for a request, as far as its fields tell it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.core.endpoints.endpoint import EncodedInput, InferenceRequest, Prompt, ScoredInput
from router.core.endpoints.requests.upload import longest_answer
from router.core.resilience.timeouts import DEFAULT_ANSWER_TOKENS, Workload

# vLLM generates `best_of` answers and returns `n` of them; of a beam search, `n` is the width.
_CHOICE_FIELDS: Final = ("n", "best_of")


def workload(request: InferenceRequest) -> Workload:
    if request.form is not None:
        return Workload(longest_answer(request.form))
    fields = request.fields
    prompts = _count_prompts(request, fields)
    choices = 1
    for name in _CHOICE_FIELDS:
        choices = max(choices, _positive(fields.get(name)))
    return Workload(_longest_answer(request), prompts * choices, request.prompt_size)


def _longest_answer(request: InferenceRequest) -> int | None:
    """In tokens; None if the request sets no limit."""
    # Embeddings and scores take as long as their prompt, which has at most as many tokens as bytes.
    if request.endpoint.streaming is None and request.prompt_size < DEFAULT_ANSWER_TOKENS:
        return request.prompt_size
    return request.max_tokens


def _count_prompts(request: InferenceRequest, fields: Mapping[str, Any]) -> int:
    match request.endpoint.input:
        case Prompt(field) | EncodedInput(field):
            return _count_texts(fields.get(field))
        case ScoredInput(query_fields, document_fields):
            # One query is compared with each document, or each query with its own document.
            return max(_count_texts(fields.get(name)) for name in (*query_fields, *document_fields))
    return 1  # one conversation


def _count_texts(value: Any) -> int:
    """`value`: a text, token ids, an object whose `content` is a list, or a list of those."""
    if isinstance(value, Mapping):
        value = value.get("content")
    if not isinstance(value, Sequence) or isinstance(value, str) or not value or isinstance(value[0], int):
        return 1
    return len(value)


def _positive(value: Any) -> int:
    return max(1, value) if isinstance(value, int) else 1
