"""/tokenize, /detokenize and /v1/messages/count_tokens: what the tokenizer answers, without the model."""

from typing import Any

from engines.simulator.endpoints.json_endpoint import JsonApi, JsonRequest
from engines.simulator.formats.messages import anthropic_error
from engines.simulator.rejections import bad_request, prompt_too_long, unknown_model, validation_error
from engines.simulator.settings import SimulatorSettings
from engines.simulator.text.prompts import Prompt, chat_prompt, completion_prompts
from engines.simulator.text.tokens import encode_text, split_tokens
from engines.simulator.validation import fields
from engines.simulator.validation.translations import system_text

_CHAT_FIELDS = {
    "model": "text", "messages": "messages", "add_generation_prompt": "boolean", "return_token_strs": "boolean",
    "continue_final_message": "boolean", "add_special_tokens": "boolean", "chat_template": "text",
    "chat_template_kwargs": "object", "tools": "objects",
}  # fmt: skip
_TEXT_FIELDS = {"model": "text", "prompt": "text", "add_special_tokens": "boolean", "return_token_strs": "boolean"}
_COUNT_FIELDS = {
    "model": "text", "messages": "messages", "system": "text or objects", "tools": "objects", "tool_choice": "object",
    "thinking": "object", "chat_template_kwargs": "object",
}  # fmt: skip


def tokenize_request(body: fields.Body, settings: SimulatorSettings) -> JsonRequest:
    """Raises Rejection."""
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise bad_request("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    if "messages" in body and "prompt" not in body:
        body = fields.coerce(body, _CHAT_FIELDS, required=("messages",))
        _check_model(body, settings)
        prompt = _conversation(body["messages"], body.get("tools"))
        text = prompt.text + ("<|assistant|>\n" if body.get("add_generation_prompt") is not False else "")
    else:
        body = _coerce_text(body)
        _check_model(body, settings)
        text = body["prompt"]
    tokens = encode_text(text)
    pieces = [piece.replace(" ", "Ġ") for piece in split_tokens(text)] if body.get("return_token_strs") else None
    answer = {"count": len(tokens), "max_model_len": settings.context_length, "tokens": tokens, "token_strs": pieces}
    return JsonRequest(text, (), lambda _, __: answer)


def _coerce_text(body: fields.Body) -> fields.Body:
    if "prompt" not in body:
        raise fields.missing_fields(body, "prompt", "messages")
    if not isinstance(body["prompt"], str):
        # vLLM also tries the form of a conversation, and reports what that lacks.
        wrong = {"type": "string_type", "loc": "body.prompt", "msg": "Input should be a valid string"}
        lacking = {"type": "missing", "loc": "body.messages", "msg": "Field required", "input": body}
        raise validation_error({**wrong, "input": body["prompt"]}, lacking)
    return fields.coerce(body, _TEXT_FIELDS, required=("prompt",))


def detokenize_request(body: fields.Body, settings: SimulatorSettings) -> JsonRequest:
    """Raises Rejection."""
    if "tokens" not in body:
        raise fields.missing_fields(body, "tokens")
    tokens = body["tokens"]
    if not isinstance(tokens, list):
        problem = {"type": "list_type", "loc": "body.tokens", "msg": "Input should be a valid list", "input": tokens}
        raise validation_error(problem)
    if problems := [_token_problem(at, token) for at, token in enumerate(tokens) if not _is_token(token)]:
        raise validation_error(*problems)
    _check_model(body, settings)
    (prompt,) = completion_prompts(tokens) if tokens else (Prompt("", (), ""),)
    return JsonRequest(prompt.text, (), lambda _, __: {"prompt": prompt.text})


def _is_token(value: object) -> bool:
    return type(value) is int and value >= 0


def _token_problem(at: int, value: object) -> dict[str, object]:
    where = {"loc": f"body.tokens.{at}", "input": value}
    if type(value) is int:
        message = "Input should be greater than or equal to 0"
        return {"type": "greater_than_equal", "loc": where["loc"], "msg": message, "input": value, "ctx": {"ge": 0}}
    return {"type": "int_type", "loc": where["loc"], "msg": "Input should be a valid integer", "input": value}


def count_tokens_request(body: fields.Body, settings: SimulatorSettings) -> JsonRequest:
    """Raises Rejection."""
    body = fields.coerce(body, _COUNT_FIELDS, required=("model", "messages"))
    _check_model(body, settings)
    tools = body.get("tools")
    if tools and not settings.auto_tool_choice:
        message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        raise bad_request(message)
    text = system_text(body.get("system"))
    prompt = _conversation([*([{"role": "system", "content": text}] if text else ()), *body["messages"]], tools)
    count = len(prompt.tokens)
    if count > settings.context_length:
        raise prompt_too_long(settings.context_length)
    answer = {"input_tokens": count, "context_management": {"original_input_tokens": count}}
    return JsonRequest(prompt.text, (), lambda _, __: answer)


def _conversation(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Prompt:
    if not messages:
        raise bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return chat_prompt(messages, None, tools)


def _check_model(body: fields.Body, settings: SimulatorSettings) -> None:
    model = body.get("model")
    if model and model not in settings.model_names:
        raise unknown_model(model, settings.model_names)


TOKENIZER_APIS = (JsonApi("/tokenize", tokenize_request), JsonApi("/detokenize", detokenize_request))
"""What every engine has."""

COUNT_TOKENS_API = JsonApi("/v1/messages/count_tokens", count_tokens_request, anthropic_error)
