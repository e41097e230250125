"""Responses of /v1/responses in vLLM's format: the response object, and the events that lead to it."""

import secrets
from collections.abc import Mapping
from typing import Any

from engines.simulator.engine.core import Delta, PromptCaching
from engines.simulator.formats.bodies import ChoiceAccumulator, Json
from engines.simulator.formats.frames import Envelope, TokenUsage, tool_call_id, typed_frame
from engines.simulator.text.answers import Token, TokenKind
from engines.simulator.validation.requests import GenerationRequest

# The fields with which vLLM echoes tools and the reasoning options, unset ones as null.
_TOOL = (
    "name", "parameters", "strict", "type", "allowed_callers", "async", "defer_loading", "description", "output_schema",
)  # fmt: skip
_REASONING = ("context", "effort", "generate_summary", "mode", "summary")


def response_body(
    request: GenerationRequest, envelope: Envelope, choices: list[ChoiceAccumulator], *, finish: bool
) -> Json:
    """The response; `finish` False leaves it in progress."""
    (choice,) = choices
    output: list[Json] = []
    if reasoning := choice.text(TokenKind.REASONING):
        output.append(_reasoning(_new_id("rs"), reasoning, None))
    if text := choice.content:
        output.append(_message(_new_id("msg"), text))
    for number in range(choice.calls):
        name, arguments = choice.text(TokenKind.TOOL_NAME, number), choice.text(TokenKind.TOOL_ARGUMENTS, number)
        output.append(_function_call(_new_id("fc"), tool_call_id(), name, arguments, "completed"))
    status = _status(choice.finish_reason) if finish else "in_progress"
    prompt = len(request.prompts[0].tokens)
    return _response(
        request, envelope, output, status, _usage(prompt, len(choice.texts), choice.reasoning_tokens, choice.caching)
    )


class ResponsesFrames:
    """The events of one stream."""

    opens_immediately = True

    def __init__(self, request: GenerationRequest, envelope: Envelope, *, finish: bool) -> None:
        self._request = request
        self._envelope = envelope
        self._finish = finish
        self._usage = TokenUsage(len(request.prompts[0].tokens), 1)
        self._sequence_number = 0
        self._output: list[Json] = []
        self._open: _OutputItem | None = None
        self._status = "in_progress"

    def opening_frames(self) -> list[bytes]:
        created = _response(self._request, self._envelope, [], "in_progress", None)
        return [
            self._frame("response.created", response=created),
            self._frame("response.in_progress", response=created),
        ]

    def delta_frames(self, delta: Delta) -> list[bytes]:
        self._usage.add(delta)
        frames = []
        for part in delta.parts:
            if self._open is None or not self._open.accepts(part):
                frames += self._close_item()
                self._open = _OutputItem(part, len(self._output))
                frames += [self._frame(kind, **event) for kind, event in self._open.opening_events()]
            frames += [self._frame(kind, **event) for kind, event in self._open.delta_events(part)]
        if delta.finish_reason is not None and self._finish:
            self._status = _status(delta.finish_reason)
        return frames

    def closing_frames(self) -> list[bytes]:
        return self._close_item()

    def final_frame(self) -> bytes:
        usage = _usage(self._usage.prompt, self._usage.by_choice[0], self._usage.reasoning[0], self._usage.caching)
        completed = _response(self._request, self._envelope, self._output, self._status, usage)
        return self._frame("response.completed", response=completed)

    def _close_item(self) -> list[bytes]:
        if self._open is None:
            return []
        frames = [self._frame(kind, **event) for kind, event in self._open.closing_events()]
        self._output.append(self._open.item())
        self._open = None
        return frames

    def _frame(self, kind: str, **event: object) -> bytes:
        # Events of one stream are numbered from 0.
        number, self._sequence_number = self._sequence_number, self._sequence_number + 1
        # OpenAI's classes declare their fields in alphabetical order, optional fields last.
        optional = {"name": event.pop("name")} if "name" in event else {}
        fields = {**event, "sequence_number": number, "type": kind}
        return typed_frame(dict(sorted(fields.items())) | optional)


class _OutputItem:
    """An item of the output while it is streamed."""

    def __init__(self, first: Token, index: int) -> None:
        self._kind = first.kind
        self._call = first.call_index
        prefix = {TokenKind.REASONING: "rs", TokenKind.CONTENT: "msg"}.get(first.kind, "fc")
        self._position: Json = {"item_id": _new_id(prefix), "output_index": index}
        self._tool = (tool_call_id(), first.text if first.kind is TokenKind.TOOL_NAME else "")
        self._text = ""

    def accepts(self, part: Token) -> bool:
        if self._kind is TokenKind.TOOL_NAME:
            return part.kind is TokenKind.TOOL_ARGUMENTS and part.call_index == self._call
        return part.kind is self._kind

    def opening_events(self) -> list[tuple[str, Json]]:
        index = self._position["output_index"]
        events: list[tuple[str, Json]] = [
            ("response.output_item.added", {"item": self._build("", "in_progress"), "output_index": index})
        ]
        if self._kind is not TokenKind.TOOL_NAME:
            part = {**_part(self._kind, ""), **_logprobs(self._kind)}
            events.append(("response.content_part.added", {"content_index": 0, **self._position, "part": part}))
        return events

    def delta_events(self, part: Token) -> list[tuple[str, Json]]:
        if part.kind is TokenKind.TOOL_NAME:
            return []
        self._text += part.text
        if self._kind is TokenKind.TOOL_NAME:
            return [("response.function_call_arguments.delta", {"delta": part.text, **self._position})]
        event = {"content_index": 0, "delta": part.text, **self._position, **_logprobs(self._kind)}
        return [(f"response.{_text_event(self._kind)}.delta", event)]

    def closing_events(self) -> list[tuple[str, Json]]:
        if self._kind is TokenKind.TOOL_NAME:
            arguments = {"arguments": self._text, **self._position, "name": self._tool[1]}
            events = [("response.function_call_arguments.done", arguments)]
        else:
            position = {"content_index": 0, **self._position}
            events = [
                (f"response.{_text_event(self._kind)}.done", {**position, **_logprobs(self._kind), "text": self._text}),
                ("response.content_part.done", {**position, "part": _part(self._kind, self._text)}),
            ]
        item_event = {"item": self.item(), "output_index": self._position["output_index"]}
        return [*events, ("response.output_item.done", item_event)]

    def item(self) -> Json:
        return self._build(self._text, "completed")

    def _build(self, text: str, status: str) -> Json:
        name = str(self._position["item_id"])
        if self._kind is TokenKind.REASONING:
            return _reasoning(name, text, status)
        if self._kind is TokenKind.CONTENT:
            return _message(name, text, status)
        return _function_call(name, *self._tool, text, status)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(8)}"


def _text_event(kind: TokenKind) -> str:
    return "reasoning_text" if kind is TokenKind.REASONING else "output_text"


def _logprobs(kind: TokenKind) -> Json:
    """vLLM adds an empty list to text events when no logprobs are requested."""
    return {"logprobs": []} if kind is TokenKind.CONTENT else {}


def _part(kind: TokenKind, text: str) -> Json:
    if kind is TokenKind.REASONING:
        return {"text": text, "type": "reasoning_text"}
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _reasoning(name: str, text: str, status: str | None) -> Json:
    content = [_part(TokenKind.REASONING, text)] if text else None
    other_fields = {"encrypted_content": None, "status": status}
    return {"id": name, "summary": [], "type": "reasoning", "content": content, **other_fields}


def _message(name: str, text: str, status: str = "completed") -> Json:
    content = [_part(TokenKind.CONTENT, text)] if text else []
    other_fields = {"role": "assistant", "status": status, "type": "message", "phase": None}
    return {"id": name, "content": content, **other_fields}


def _function_call(name: str, call_id: str, function: str, arguments: str, status: str) -> Json:
    head = {"arguments": arguments, "call_id": call_id, "name": function, "type": "function_call", "id": name}
    return {**head, "async": None, "caller": None, "namespace": None, "status": status}


def _status(finish_reason: str | None) -> str:
    return "incomplete" if finish_reason == "length" else "completed"


def _usage(prompt: int, generated: int, reasoning: int, caching: PromptCaching) -> Json:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": caching.cached,
            "cache_write_tokens": caching.created,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": generated,
        "output_tokens_details": {
            "reasoning_tokens": reasoning,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": prompt + generated,
    }


def _response(
    request: GenerationRequest, envelope: Envelope, output: list[Json], status: str, used: Json | None
) -> Json:
    body = request.original
    tools = body.get("tools") or []
    parallel = body.get("parallel_tool_calls")
    return {
        "id": envelope.id,
        "created_at": envelope.created,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata"),
        "model": envelope.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": True if parallel is None else parallel,
        "temperature": _field_or(body, "temperature", 1.0),
        "tool_choice": _echo_tool_choice(body.get("tool_choice", "auto")) if tools else "none",
        "tools": [_with_fields(tool, _TOOL) for tool in tools],
        "top_p": _field_or(body, "top_p", 1.0),
        "background": False,
        "max_output_tokens": request.limits[0],
        "max_tool_calls": body.get("max_tool_calls"),
        "previous_response_id": None,
        "prompt": None,
        "reasoning": _with_fields(body.get("reasoning"), _REASONING),
        "service_tier": body.get("service_tier") or "auto",
        "status": status,
        "text": _with_fields(body.get("text"), ("format", "verbosity")),
        "top_logprobs": None,
        "truncation": body.get("truncation") or "disabled",
        "usage": used,
        "user": body.get("user"),
        "presence_penalty": _field_or(body, "presence_penalty", 0.0),
        "frequency_penalty": _field_or(body, "frequency_penalty", 0.0),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def _field_or(body: Mapping[str, Any], name: str, default: float) -> object:
    return default if body.get(name) is None else body[name]


def _echo_tool_choice(choice: object) -> object:
    return _with_fields(choice, ("name", "type")) if isinstance(choice, dict) else choice


def _with_fields(value: Mapping[str, Any] | None, names: tuple[str, ...]) -> Json | None:
    """An object of the request with all its fields, as vLLM returns it."""
    return None if value is None else {name: value.get(name) for name in names}
