"""Converts requests of /v1/responses and /v1/messages to chat requests, as vLLM does."""

import json
from dataclasses import replace
from typing import Any

from engines.simulator.rejections import Rejection, bad_request, validation_error
from engines.simulator.settings import SimulatorSettings
from engines.simulator.validation import fields
from engines.simulator.validation.requests import GenerationRequest, chat_request

_RESPONSES_FIELDS = {
    "background": "boolean",
    "input": "text or objects",
    "instructions": "text",
    "max_output_tokens": "integer",
    "metadata": "object",
    "model": "text",
    "previous_response_id": "text",
    "reasoning": "object",
    "store": "boolean",
    "stream": "boolean",
    "temperature": "number",
    "text": "object",
    "tools": "objects",
    "top_p": "number",
    "user": "text",
    "chat_template_kwargs": "object",
    "cache_salt": "text",
}
_MESSAGES_FIELDS = {
    "model": "text",
    "messages": "messages",
    "max_tokens": "integer",
    "metadata": "object",
    "stop_sequences": "stop",
    "stream": "boolean",
    "system": "text or objects",
    "temperature": "number",
    "tool_choice": "object",
    "tools": "tools with a schema",
    "top_k": "integer",
    "top_p": "number",
    "thinking": "object",
    "chat_template_kwargs": "object",
    "cache_salt": "text",
}
# Fields that both pass on unchanged; /v1/messages has no other sampling parameters.
_SAMPLING = ("model", "stream", "temperature", "top_p", "top_k", "cache_salt", "chat_template_kwargs")
_RESPONSES_SAMPLING = (
    *_SAMPLING, "seed", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "stop",
    "ignore_eos", "include_stop_str_in_output",
)  # fmt: skip
_ITEM_TYPES = (
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
)  # fmt: skip
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def responses_request(body: fields.Body, settings: SimulatorSettings) -> GenerationRequest:
    """Parses a body of /v1/responses.

    Raises Rejection with vLLM's error.
    """
    if not body.get("tools") and body.get("tool_choice", "auto") == "auto":
        body = {**body, "tool_choice": "none"}
    original = fields.coerce(body, _RESPONSES_FIELDS, required=("input",))
    if original.get("background"):
        raise Rejection(
            400,
            "This vLLM engine does not support `store=True` and therefore does not support the background mode. To "
            "enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching "
            "the vLLM server.",
            kind="invalid_request_error",
            param="background",
        )
    if (previous := original.get("previous_response_id")) is not None:
        message = f"Response with id '{previous}' not found."
        raise Rejection(404, message, kind="invalid_request_error", param="response_id")
    request_input = original["input"]
    items = [{"role": "user", "content": request_input}] if isinstance(request_input, str) else request_input
    system = [{"role": "system", "content": original["instructions"]}] if original.get("instructions") else []
    chat: fields.Body = {name: original[name] for name in _RESPONSES_SAMPLING if original.get(name) is not None}
    chat["messages"] = [*system, *map(_chat_message, items)]
    chat["max_completion_tokens"] = original.get("max_output_tokens")
    tools = [tool for tool in original.get("tools") or () if tool.get("type") == "function"]
    if tools:
        chat["tools"] = [{"type": "function", "function": tool} for tool in tools]
        choice = original.get("tool_choice", "auto")
        chat["tool_choice"] = {"function": choice} if isinstance(choice, dict) else choice
    if ((original.get("reasoning") or {}).get("effort") or "none") != "none":
        chat["chat_template_kwargs"] = {"enable_thinking": True, **(original.get("chat_template_kwargs") or {})}
    output_format = (original.get("text") or {}).get("format") or {}
    if output_format.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": output_format}
    elif output_format:
        chat["response_format"] = output_format
    return replace(chat_request(chat, settings), original=original)


def _chat_message(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind not in _ITEM_TYPES:
        raise bad_request(f"Unsupported input item type: {kind}", "input")
    if item.get("encrypted_content"):
        raise bad_request("Encrypted content is not supported.", "input")
    if kind == "message" and "id" in item and item.get("content") == []:
        raise Rejection(500, "list index out of range", kind="InternalServerError")
    if "role" in item:
        return {"role": item["role"], "content": item.get("content")}
    if item.get("type") == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    return {"role": "assistant", "content": json.dumps(item, ensure_ascii=False)}


def system_text(system: Any) -> str:
    """Without the block of Claude Code that changes with each request, which vLLM leaves out, too."""
    if isinstance(system, str):
        return system
    texts = (str(block.get("text") or "") for block in system or ())
    return "".join(text for text in texts if not text.startswith("x-anthropic-billing-header:"))


def messages_request(body: fields.Body, settings: SimulatorSettings) -> GenerationRequest:
    """Parses a body of /v1/messages.

    Raises Rejection with vLLM's error.
    """
    coerced = fields.coerce(body, _MESSAGES_FIELDS, required=("model", "messages", "max_tokens"))
    if coerced["max_tokens"] <= 0:
        error = ValueError("max_tokens must be positive")
        where = {"loc": "body.max_tokens", "msg": f"Value error, {error}", "input": coerced["max_tokens"]}
        raise validation_error({"type": "value_error", **where, "ctx": {"error": error}})
    if ((coerced.get("thinking") or {}).get("budget_tokens") or 0) >= coerced["max_tokens"]:
        error = ValueError("thinking.budget_tokens must be less than max_tokens")
        where = {"loc": "body", "msg": f"Value error, {error}", "input": body}
        raise validation_error({"type": "value_error", **where, "ctx": {"error": error}})
    chat: fields.Body = {name: coerced[name] for name in _SAMPLING if coerced.get(name) is not None}
    text = system_text(coerced.get("system"))
    chat["messages"] = [*([{"role": "system", "content": text}] if text else ()), *coerced["messages"]]
    chat["max_completion_tokens"] = coerced["max_tokens"]
    chat["stop"] = coerced.get("stop_sequences")
    if coerced.get("tools"):
        chat["tools"] = [
            {"type": "function", "function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
            for tool in coerced["tools"]
        ]
    if choice := coerced.get("tool_choice"):
        named_tool = {"function": {"name": choice.get("name")}}
        chat["tool_choice"] = named_tool if choice.get("type") == "tool" else _CHOICES.get(str(choice.get("type")))
    if (coerced.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
        chat["chat_template_kwargs"] = {"enable_thinking": True, **(coerced.get("chat_template_kwargs") or {})}
    return chat_request(chat, settings)
