"""JSON responses in vLLM's format: all keys, in its order, with its nulls."""

import secrets
from collections.abc import Iterable

from engines.simulator.endpoints.adapters import LoadedAdapter
from engines.simulator.engine.core import NOT_CACHED, Delta, PromptCaching
from engines.simulator.engine.speculation import RequestSpeculation
from engines.simulator.formats.frames import Envelope, finish_reason, tool_call_id, usage_object
from engines.simulator.formats.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from engines.simulator.settings import SimulatorSettings
from engines.simulator.text.answers import TokenKind
from engines.simulator.text.tokens import split_tokens, token_id
from engines.simulator.validation.requests import GenerationRequest

Json = dict[str, object]


class ChoiceAccumulator:
    """One choice while it is generated."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.parts: list[tuple[TokenKind, int, str]] = []
        self.reasoning_tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None
        self.speculation: RequestSpeculation | None = None
        self.caching = NOT_CACHED

    def add(self, delta: Delta) -> None:
        self.texts += [token.text for token in delta.tokens]
        self.parts += [(part.kind, part.call_index, part.text) for part in delta.parts]
        self.reasoning_tokens += sum(token.kind is TokenKind.REASONING for token in delta.tokens)
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        self.speculation = delta.speculation
        self.caching = delta.caching

    def text(self, kind: TokenKind, call: int = 0) -> str:
        """The text of one field; for a tool call, of the call with this index."""
        return "".join(text for part_kind, number, text in self.parts if part_kind is kind and number == call)

    @property
    def calls(self) -> int:
        """Those that are parsed: if the limit cuts off a call, none is, and all of them are text."""
        return 0 if self.finish_reason == "length" else self._begun_calls

    @property
    def content(self) -> str:
        """The text, with what the model has generated of calls that are not parsed."""
        raw = [] if self.calls else [self._raw_call(number) for number in range(self._begun_calls)]
        return self.text(TokenKind.CONTENT) + "}\n</tool_call>\n".join(raw)

    @property
    def _begun_calls(self) -> int:
        return sum(kind is TokenKind.TOOL_NAME for kind, _, _ in self.parts)

    def _raw_call(self, number: int) -> str:
        name, arguments = self.text(TokenKind.TOOL_NAME, number), self.text(TokenKind.TOOL_ARGUMENTS, number)
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}'


def chat_body(
    request: GenerationRequest, envelope: Envelope, choices: Iterable[ChoiceAccumulator], *, finish: bool
) -> Json:
    """The response of /v1/chat/completions; `finish` False leaves the finish reasons null."""
    prompt = request.prompts[0].tokens
    choices = list(choices)
    return {
        "id": envelope.id,
        "object": "chat.completion",
        "created": envelope.created,
        "model": envelope.model,
        "choices": [_chat_choice(request, index, choice, finish=finish) for index, choice in enumerate(choices)],
        "service_tier": None,
        "system_fingerprint": envelope.fingerprint,
        "usage": usage_object(
            len(prompt),
            sum(len(choice.texts) for choice in choices),
            prompt_tokens_details=_prompt_details(request, choices[-1].caching, choices[-1].caching.created),
            completion_tokens_details=(
                {"reasoning_tokens": sum(choice.reasoning_tokens for choice in choices)} if request.thinking else None
            ),
        ),
        "prompt_logprobs": None,
        "prompt_token_ids": prompt if request.return_token_ids else None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": _metrics(choices),
    }


def _chat_choice(request: GenerationRequest, index: int, choice: ChoiceAccumulator, *, finish: bool) -> Json:
    # A parser that finds no text says null. vLLM makes that "" where the client forces a tool.
    no_content = None if request.has_parser and not request.forces_tool else ""
    message: Json = {
        "role": request.role,
        "content": choice.content or no_content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if choice.calls:
        message["tool_calls"] = [
            {
                "id": tool_call_id(),
                "type": "function",
                "function": {
                    "name": choice.text(TokenKind.TOOL_NAME, number),
                    "arguments": choice.text(TokenKind.TOOL_ARGUMENTS, number),
                },
            }
            for number in range(choice.calls)
        ]
    message["reasoning"] = choice.text(TokenKind.REASONING) or None
    return {
        "index": index,
        "message": message,
        "logprobs": None if request.logprobs is None else chat_logprobs(choice.texts, request.logprobs),
        "finish_reason": finish_reason(request, choice.finish_reason) if finish and choice.finish_reason else None,
        "stop_reason": choice.stop_reason,
        "token_ids": _token_ids(choice) if request.return_token_ids else None,
        "routed_experts": None,
    }


def completion_body(
    request: GenerationRequest, envelope: Envelope, choices: Iterable[ChoiceAccumulator], *, finish: bool
) -> Json:
    """The response of /v1/completions; `finish` False leaves the finish reasons null."""
    choices = list(choices)
    return {
        "id": envelope.id,
        "object": "text_completion",
        "created": envelope.created,
        "model": envelope.model,
        "choices": [_completion_choice(request, index, choice, finish=finish) for index, choice in enumerate(choices)],
        "service_tier": None,
        "system_fingerprint": envelope.fingerprint,
        "usage": usage_object(
            sum(len(prompt.tokens) for prompt in request.prompts),
            sum(len(choice.texts) for choice in choices),
            # vLLM has no tokens that were stored here.
            prompt_tokens_details=_prompt_details(request, choices[-1].caching, None),
            completion_tokens_details=None,
        ),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": _metrics(choices),
    }


def _completion_choice(request: GenerationRequest, index: int, choice: ChoiceAccumulator, *, finish: bool) -> Json:
    prompt = request.prompts[index // request.n]
    echoed = split_tokens(prompt.text) if request.echo else []
    texts = [] if request.echo_only else choice.texts
    text = "" if request.echo_only else choice.text(TokenKind.CONTENT)
    top = request.logprobs
    return {
        "index": index,
        "text": "".join(echoed) + text,
        "logprobs": None if top is None else completion_logprobs(echoed, texts, top, 0),
        "finish_reason": choice.finish_reason if finish else None,
        "stop_reason": choice.stop_reason,
        "token_ids": _token_ids(choice) if request.return_token_ids else None,
        "prompt_logprobs": prompt_logprobs(echoed, top) if echoed and top is not None else None,
        "prompt_token_ids": prompt.tokens if request.return_token_ids else None,
        "routed_experts": None,
    }


def _prompt_details(request: GenerationRequest, caching: PromptCaching, created: int | None) -> Json | None:
    if not request.prompt_tokens_details:
        return None
    return {"cached_tokens": caching.cached, "created_cache_tokens": created, "multimodal_tokens": None}


def _metrics(choices: list[ChoiceAccumulator]) -> Json | None:
    """vLLM's PerRequestMetrics, without timings. It has none for several sequences."""
    if len(choices) != 1 or choices[0].speculation is None:
        return None
    timings = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second")
    report = choices[0].speculation.report()
    per_step = {name: report.get(name) for name in ("per_step_accepted", "per_step_drafted")}
    return {**dict.fromkeys(timings), "speculative_decoding": report | per_step}


def _token_ids(choice: ChoiceAccumulator) -> list[int]:
    return [token_id(text) for text in choice.texts]


def models_body(settings: SimulatorSettings, adapters: Iterable[LoadedAdapter], created: int) -> Json:
    models = [_model(name, settings.model, None, settings.context_length, created) for name in settings.model_names]
    return {
        "object": "list",
        "data": [*models, *(_model(each.name, each.path, each.base, None, created) for each in adapters)],
    }


def _model(name: str, root: str, parent: str | None, max_model_len: int | None, created: int) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [_permission(created)],
    }


def _permission(created: int) -> Json:
    return {
        "id": f"modelperm-{secrets.token_hex(8)}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
