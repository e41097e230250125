"""The request with which another engine goes on with a stream; see router.core.endpoints.continuation.stream_so_far."""

from typing import Any, Final

import msgspec

from router.core.endpoints.chat import CHAT
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.continuation.stream_so_far import MAX_REPEATED, StreamSoFar
from router.core.endpoints.endpoint import InferenceRequest

_SHARED_FIELDS: Final = frozenset(
    (
        "model", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "seed", "stop",
        "frequency_penalty",
        "presence_penalty", "repetition_penalty", "length_penalty", "logit_bias", "stop_token_ids", "ignore_eos",
        "skip_special_tokens", "spaces_between_special_tokens", "allowed_token_ids", "bad_words", "cache_salt",
        "priority", "user", "request_id", "session_id", "vllm_xargs", "watermarking",
    )
)  # fmt: skip
"""Fields that mean the same for a chat and for a completion of vLLM."""

_PROMPT_FIELDS: Final = frozenset(
    (
        "messages", "prompt", "documents", "chat_template", "chat_template_kwargs", "add_generation_prompt",
        "continue_final_message", "add_special_tokens", "reasoning_effort", "mm_processor_kwargs", "media_io_kwargs",
    )
)  # fmt: skip
"""Fields from which the prompt is made, whose ids are known."""

_LIMIT_FIELDS: Final = ("max_tokens", "max_completion_tokens")

_IDLE_FIELDS: Final = frozenset(
    (
        "max_tokens", "max_completion_tokens", "min_tokens", "include_stop_str_in_output", "tools",
        "tool_choice", "functions", "function_call", "parallel_tool_calls", "response_format", "structured_outputs",
        "n", "best_of", "use_beam_search", "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "echo",
        "suffix", "modalities", "audio", "include_reasoning", "metadata", "store", "service_tier", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention", "prediction", "verbosity",
    )
)  # fmt: skip
"""Fields that are set anew, or that have no effect: any other value of theirs is an obstacle."""

_split_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_split_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def remaining_tokens(request: InferenceRequest, generated: int) -> int | None:
    """How many tokens the rest of the response may have; None without a limit.

    `request`: its `max_tokens` is the limit of the client or, without one, the default of the engine that it began at.
    """
    return None if request.max_tokens is None else max(0, request.max_tokens - generated)


def may_be_asked_by_ids(request: InferenceRequest) -> bool:
    """Whether a completion of ids can be the same request, as far as it is known without them."""
    fields = request.fields
    if request.endpoint is CHAT and not _is_text_only(fields["messages"]):
        return False
    return fields.keys() <= _SHARED_FIELDS | _PROMPT_FIELDS | _IDLE_FIELDS


def request_by_ids(
    request: InferenceRequest, so_far: StreamSoFar, max_model_len: int | None, *, parsed: bool = False
) -> InferenceRequest | None:
    """A completion of the ids of the prompt and of the settled text. None if it would not be the same request.

    `max_model_len`: the engine's context in tokens; None if unknown. `parsed`: see router.core.endpoints.continuation.
    derendered_chat.
    """
    fields = request.fields
    if not parsed and fields.get("tools"):
        return None  # a completion has no calls: the client would get them as text
    if so_far.prompt_ids is None or not may_be_asked_by_ids(request):
        return None
    # With another temperature, it would not be generated again.
    if so_far.unsettled and (request.temperature != 0 or len(so_far.unsettled) > MAX_REPEATED):
        return None
    limit = remaining_tokens(request, so_far.settled_tokens)
    if limit is None:
        # vLLM's completions have no way to ask for as many tokens as the context has room for.
        if max_model_len is None:
            return None
        limit = max(1, max_model_len - so_far.prompt_ids.count(b",") - 1)
    body = _split_fields(request.body)
    kept: dict[str, Any] = {name: body[name] for name in body if name in _SHARED_FIELDS}
    kept["max_tokens"] = limit
    _set_min_tokens(kept, fields, so_far.settled_tokens)
    kept["prompt"] = msgspec.Raw(b"[%b]" % so_far.prompt_ids)
    return _replaced(request, kept, limit, COMPLETIONS)


def request_by_text(request: InferenceRequest, so_far: StreamSoFar) -> InferenceRequest | None:
    """The client's request with what has been said at its end. None if it cannot be put there."""
    fields = request.fields
    if so_far.has_reasoning:
        return None  # the model would begin its answer anew, or reason again
    body: dict[str, Any] = dict(_split_fields(request.body))
    streaming = request.endpoint.streaming
    if streaming is not None and streaming.choices_format is not None and streaming.choices_format.has_messages:
        messages = _continued_messages(fields, body["messages"], so_far.text)
        if messages is None:
            return None
        body["messages"] = messages
        body["add_generation_prompt"] = False
        body["continue_final_message"] = True
    else:
        prompt = fields["prompt"]
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str):
            return None  # ids; the text's are not known
        body["prompt"] = prompt + so_far.text
    limit = remaining_tokens(request, so_far.text_tokens)
    if limit is not None:  # also if it was a default: the next engine would begin to count at zero
        for name in [name for name in _LIMIT_FIELDS if fields.get(name) is not None] or _LIMIT_FIELDS[:1]:
            body[name] = limit
    _set_min_tokens(body, fields, so_far.text_tokens)
    body.pop("return_token_ids", None)
    return _replaced(request, body, limit, request.endpoint)


def _continued_messages(fields: dict[str, Any], messages: msgspec.Raw, text: str) -> list[Any] | None:
    items: list[Any] = list(_split_list(messages))
    if not fields.get("continue_final_message"):
        if fields.get("add_generation_prompt") is False:
            return None  # the response is not a message of the assistant
        return [*items, {"role": "assistant", "content": text}]
    last = fields["messages"][-1]
    if not isinstance(last.get("content"), str):
        return None
    items[-1] = {**last, "content": last["content"] + text}
    return items


def _set_min_tokens(body: dict[str, Any], fields: dict[str, Any], generated: int) -> None:
    least = fields.get("min_tokens")
    if isinstance(least, int) and least > 0:
        body["min_tokens"] = max(0, least - generated)


def _is_text_only(messages: list[dict[str, Any]]) -> bool:
    """Whether the ids of the prompt say all of it: an image is more than its ids."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and not all(
            isinstance(part, str) or part.get("type") == "text" for part in content
        ):
            return False
    return True


def _replaced(request: InferenceRequest, body: dict[str, Any], limit: int | None, endpoint: Any) -> InferenceRequest:
    # The fields of the continuation are read only for what `engine_body` sets, so the input is left out of them.
    names = request.fields.keys() & body.keys() - {"messages", "prompt"}
    fields = {name: request.fields[name] for name in names}
    return msgspec.structs.replace(request, endpoint=endpoint, body=_encode(body), fields=fields, max_tokens=limit)
