"""A generation request, validated in vLLM's order: first `mode="before"` validators, then types, then values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from engines.simulator.kv_cache.kv_events import BlockOrigin
from engines.simulator.rejections import Rejection, bad_request, prompt_too_long, validation_error
from engines.simulator.settings import SimulatorSettings
from engines.simulator.text.prompts import Prompt, chat_prompt, completion_prompts
from engines.simulator.text.tokens import VOCABULARY_SIZE
from engines.simulator.text.tool_script import next_step
from engines.simulator.validation import fields
from engines.simulator.validation.checks import check_before_types, check_model, check_values

_SAMPLING = {
    "model": "text",
    "frequency_penalty": "number",
    "logit_bias": "object",
    "max_tokens": "integer",
    "n": "integer",
    "presence_penalty": "number",
    "response_format": "object",
    "seed": "integer",
    "stop": "stop",
    "stream": "boolean",
    "stream_options": "object",
    "temperature": "number",
    "top_p": "number",
    "top_k": "integer",
    "min_p": "number",
    "repetition_penalty": "number",
    "min_tokens": "integer",
    "ignore_eos": "boolean",
    "include_stop_str_in_output": "boolean",
    "cache_salt": "text",
    "priority": "integer",
    "return_token_ids": "boolean",
}
CHAT_FIELDS = {
    "messages": "messages",
    **_SAMPLING,
    "logprobs": "boolean",
    "top_logprobs": "integer",
    "max_completion_tokens": "integer",
    "tools": "objects",
    "documents": "objects",
    "chat_template_kwargs": "object",
    "include_reasoning": "boolean",
    "echo": "boolean",
    "add_generation_prompt": "boolean",
    "continue_final_message": "boolean",
}
COMPLETION_FIELDS = {"prompt": "prompt", **_SAMPLING, "echo": "boolean", "logprobs": "integer", "suffix": "text"}

_INCOMPATIBLE_PROMPTS = (
    "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you want the "
    "model to continue the final message, and add_generation_prompt when you want to add a header that will prompt it "
    "to start a new assistant message instead."
)

# The fields that select the generated text. max_tokens, stop and stream only decide how much of it is sent, and how.
_OUTPUT_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "response_format",
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    "suffix",
)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One accepted request; `limits` holds the maximum number of tokens per choice for each prompt."""

    chat: bool
    prompts: tuple[Prompt, ...]
    limits: tuple[int, ...]
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    stop: tuple[str, ...]
    include_stop: bool
    min_tokens: int
    ignore_eos: bool
    logprobs: int | None
    """Alternatives to return with each token; None for no logprobs at all."""
    echo: bool
    echo_only: bool
    """A completion with `max_tokens` 0 and `echo`: only the prompt is returned."""
    return_token_ids: bool
    thinking: bool
    role: str
    """Of the message that a chat generates or continues."""
    tool_calls: tuple[tuple[str, object], ...]
    """Names and argument schemas of the tools to call."""
    names_tool: bool
    forces_tool: bool
    """The client has left the model no choice: it named the tool, or requires one."""
    has_parser: bool
    """The engine looks for tool calls or reasoning in what the model generates."""
    thought: str
    text_before_calls: str
    """What the answer says before its calls, if a script decides."""
    json_schema: object | None
    sampling_hash: int
    """Hash of the model and of the other fields that select the generated text, without the prompt."""
    origin: BlockOrigin
    """What separates its KV blocks from others."""
    served_name: str = ""
    """The model's name in the response."""
    prompt_tokens_details: bool = False
    """Whether the usage says how many prompt tokens were cached."""
    original: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the body, for an API whose response repeats them."""

    @property
    def text(self) -> str:
        """Everything the client wrote, in which markers are searched."""
        return "\n".join(prompt.text for prompt in self.prompts)


class ChatTurn(NamedTuple):
    """What a chat generates: fields of its GenerationRequest."""

    tool_calls: tuple[tuple[str, object], ...] = ()
    names_tool: bool = False
    forces_tool: bool = False
    thinking: bool = False
    role: str = "assistant"
    thought: str = ""
    text_before_calls: str = ""


def chat_request(body: fields.Body, settings: SimulatorSettings) -> GenerationRequest:
    """Parses a body of /v1/chat/completions.

    Raises Rejection with vLLM's error.
    """
    check_before_types(body, chat=True)
    body = fields.coerce(body, CHAT_FIELDS, required=("messages",))
    check_model(body, settings)
    if not body["messages"]:
        raise bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    generation_prompt = body.get("add_generation_prompt") is not False
    continue_final = bool(body.get("continue_final_message"))
    if generation_prompt and continue_final:
        raise Rejection(400, _INCOMPATIBLE_PROMPTS)
    prompt = chat_prompt(
        body["messages"],
        body.get("documents"),
        body.get("tools"),
        generation_prompt=generation_prompt,
        continue_final=continue_final,
    )
    calls, named = _tools_to_call(body, settings)
    forced = bool(calls) and body.get("tool_choice", "auto") != "auto"
    script = settings.tool_script if calls and not forced else None
    thought, text = ("", "") if script is None else script.before_call(next_step(body["messages"]))
    logprobs = (body.get("top_logprobs") or 0) if body.get("logprobs") else None
    limit_name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    kwargs = body.get("chat_template_kwargs") or {}
    return _build_request(
        body,
        settings,
        (prompt,),
        limit_name,
        body.get(limit_name),
        logprobs,
        ChatTurn(
            tool_calls=calls,
            names_tool=named,
            forces_tool=forced,
            thinking=bool(thought if thought or text else kwargs.get("enable_thinking", kwargs.get("thinking"))),
            thought=thought,
            text_before_calls=text,
            # vLLM names the role of the message that it continues, whichever that is.
            role="assistant" if generation_prompt else body["messages"][-1]["role"],
        ),
    )


def completion_request(body: fields.Body, settings: SimulatorSettings) -> GenerationRequest:
    """Parses a body of /v1/completions.

    Raises Rejection with vLLM's error.
    """
    check_before_types(body, chat=False)
    body = fields.coerce(body, COMPLETION_FIELDS)
    check_model(body, settings)
    prompts = completion_prompts(body["prompt"])
    if not prompts:
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    for prompt in prompts:
        if prompt.from_ids and (largest := max(prompt.tokens)) >= VOCABULARY_SIZE:
            raise bad_request(f"Token id {largest} is out of vocabulary")
    # OpenAI's default for completions.
    limit = 16 if body.get("max_tokens") is None else body["max_tokens"]
    return _build_request(body, settings, prompts, "max_tokens", limit, body.get("logprobs"))


def _tools_to_call(body: fields.Body, settings: SimulatorSettings) -> tuple[tuple[tuple[str, object], ...], bool]:
    """The tools to call, with their argument schemas, and whether the client named the tool."""
    tools = body.get("tools")
    choice = body.get("tool_choice", "auto" if tools else "none")
    if choice is None or choice == "none":
        return (), False
    if not tools:
        raise bad_request("When using `tool_choice`, `tools` must be set.", "tool_choice")
    functions = dict(_function(at, tool) for at, tool in enumerate(tools))
    if isinstance(choice, dict):
        named = choice.get("function")
        name = named.get("name") if isinstance(named, dict) else None
        if isinstance(name, str) and name in functions:
            return ((name, functions[name]),), True
        raise bad_request(
            "The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice"
        )
    if choice == "auto" and not settings.auto_tool_choice:
        raise Rejection(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    if choice not in ("auto", "required"):
        message = (
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.'
        )
        raise bad_request(message, "tool_choice")
    if choice == "auto" and settings.tool_script is not None:
        return settings.tool_script.next_call(body["messages"], functions), False
    return (next(iter(functions.items())),), False


def _function(at: int, tool: dict[str, Any]) -> tuple[str, object]:
    where = f"body.tools.{at}.function"
    function = tool.get("function")
    if not isinstance(function, dict):
        raise validation_error({"type": "missing", "loc": where, "msg": "Field required", "input": tool})
    if not isinstance(name := function.get("name"), str):
        message = "Input should be a valid string"
        raise validation_error({"type": "string_type", "loc": f"{where}.name", "msg": message, "input": name})
    return name, function.get("parameters")


def _build_request(
    body: fields.Body,
    settings: SimulatorSettings,
    prompts: tuple[Prompt, ...],
    limit_name: str,
    limit: int | None,
    logprobs: int | None,
    turn: ChatTurn | None = None,
) -> GenerationRequest:
    """`turn`: None for a completion."""
    chat, turn = turn is not None, turn or ChatTurn()
    echo = bool(body.get("echo"))
    echo_only = echo and limit == 0 and not chat
    check_values(body, settings, limit_name, limit, logprobs, echo_only=echo_only)
    limits = []
    for prompt in prompts:
        remaining = settings.context_length - len(prompt.tokens)
        if remaining < 0:
            raise prompt_too_long(settings.context_length)
        if remaining == 0 and not echo_only:
            raise bad_request("max_tokens must be at least 1, got 0.", "max_tokens", 0)
        # With `echo_only` the engine generates one token, which is not sent.
        limits.append(1 if echo_only else remaining if limit is None else min(limit, remaining))
    options = fields.coerce(
        body.get("stream_options") or {}, {"include_usage": "boolean", "continuous_usage_stats": "boolean"}
    )
    usage = bool(options.get("include_usage"))
    return GenerationRequest(
        chat=chat,
        prompts=prompts,
        limits=tuple(limits),
        n=body.get("n") or 1,
        stream=bool(body.get("stream")),
        include_usage=usage,
        continuous_usage=usage and bool(options.get("continuous_usage_stats")),
        stop=tuple(body.get("stop") or ()),
        include_stop=bool(body.get("include_stop_str_in_output")),
        min_tokens=body.get("min_tokens") or 0,
        ignore_eos=bool(body.get("ignore_eos")),
        logprobs=logprobs,
        echo=echo and not chat,
        echo_only=echo_only,
        return_token_ids=bool(body.get("return_token_ids")),
        thinking=turn.thinking,
        role=turn.role,
        tool_calls=turn.tool_calls,
        names_tool=turn.names_tool,
        forces_tool=turn.forces_tool,
        has_parser=chat and (settings.auto_tool_choice or turn.thinking or bool(turn.tool_calls)),
        thought=turn.thought,
        text_before_calls=turn.text_before_calls,
        json_schema=_json_schema(body),
        prompt_tokens_details=settings.enable_prompt_tokens_details,
        sampling_hash=_sampling_hash(body, settings),
        origin=BlockOrigin(body.get("cache_salt") or None, *(settings.adapter or (None, None))),
    )


def _json_schema(body: fields.Body) -> object | None:
    response_format: dict[str, Any] = body.get("response_format") or {}
    match response_format.get("type"):
        case None | "text":
            return None
        case "json_object":
            return {"type": "object", "properties": {"answer": {"type": "string"}}}
        case "json_schema":
            if not isinstance(schema := response_format.get("json_schema"), dict):
                raise bad_request(
                    "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
                    "response_format",
                )
            return schema.get("schema") or {}
    message = "Input should be 'text', 'json_object' or 'json_schema'"
    where = {"loc": "body.response_format.type", "input": response_format.get("type")}
    raise validation_error({"type": "literal_error", "loc": where["loc"], "msg": message, "input": where["input"]})


def _sampling_hash(body: fields.Body, settings: SimulatorSettings) -> int:
    output_fields = {name: body[name] for name in _OUTPUT_FIELDS if body.get(name) is not None}
    text = json.dumps([settings.model, settings.seed, output_fields], sort_keys=True)
    return xxh3_64_intdigest(text.encode())
