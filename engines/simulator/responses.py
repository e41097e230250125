"""Answers of /v1/responses in vLLM's shape: the response object, and the events that lead up to it."""

import secrets
from collections.abc import Mapping
from typing import Any

from engines.simulator.answers import Kind, Token
from engines.simulator.bodies import Choice, Json
from engines.simulator.engine import Delta
from engines.simulator.frames import Envelope, Usage, tool_call_id, typed_frame
from engines.simulator.requests import GenerationRequest

_TOOL = (
    "name", "parameters", "strict", "type", "allowed_callers", "async", "defer_loading", "description", "output_schema",
)  # fmt: skip
_REASONING = ("context", "effort", "generate_summary", "mode", "summary")


def response_body(request: GenerationRequest, envelope: Envelope, choices: list[Choice], *, finish: bool) -> Json:
    """The answer; `finish` False leaves it in progress."""
    (choice,) = choices
    output: list[Json] = []
    if thought := choice.text(Kind.REASONING):
        output.append(_reasoning(_name("rs"), thought, None))
    if said := choice.text(Kind.CONTENT):
        output.append(_message(_name("msg"), said))
    for number in range(choice.calls):
        name, arguments = choice.text(Kind.TOOL_NAME, number), choice.text(Kind.TOOL_ARGUMENTS, number)
        output.append(_call(_name("fc"), tool_call_id(), name, arguments, "completed"))
    status = _status(choice.finish_reason) if finish else "in_progress"
    prompt = len(request.prompts[0].tokens)
    return _response(request, envelope, output, status, _usage(prompt, len(choice.texts), choice.reasoning_tokens))


class ResponsesFrames:
    """The events of one stream."""

    at_once = True

    def __init__(self, request: GenerationRequest, envelope: Envelope, *, finish: bool) -> None:
        self._request = request
        self._envelope = envelope
        self._finish = finish
        self._usage = Usage(len(request.prompts[0].tokens), 1)
        self._number = 0
        self._output: list[Json] = []
        self._open: _Item | None = None
        self._status = "in_progress"

    def opening(self) -> list[bytes]:
        """The response before anything is said."""
        begun = _response(self._request, self._envelope, [], "in_progress", None)
        return [self._frame("response.created", response=begun), self._frame("response.in_progress", response=begun)]

    def of(self, delta: Delta) -> list[bytes]:
        """What a delta adds to the open item, or to a new one."""
        self._usage.add(delta)
        frames = []
        for part in delta.parts:
            if self._open is None or not self._open.takes(part):
                frames += self._close()
                self._open = _Item(part, len(self._output))
                frames += [self._frame(kind, **event) for kind, event in self._open.begun()]
            frames += [self._frame(kind, **event) for kind, event in self._open.added(part)]
        if delta.finish_reason is not None and self._finish:
            self._status = _status(delta.finish_reason)
        return frames

    def closing(self) -> list[bytes]:
        """The end of the last item."""
        return self._close()

    def ending(self) -> bytes:
        """The whole response."""
        used = _usage(self._usage.prompt, self._usage.by_choice[0], self._usage.reasoning[0])
        whole = _response(self._request, self._envelope, self._output, self._status, used)
        return self._frame("response.completed", response=whole)

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        frames = [self._frame(kind, **event) for kind, event in self._open.done()]
        self._output.append(self._open.item())
        self._open = None
        return frames

    def _frame(self, kind: str, **event: object) -> bytes:
        number, self._number = self._number, self._number + 1
        # As the fields of OpenAI's classes are declared: by name, and those that may be left out at the end.
        optional = {"name": event.pop("name")} if "name" in event else {}
        fields = {**event, "sequence_number": number, "type": kind}
        return typed_frame(dict(sorted(fields.items())) | optional)


class _Item:
    """An item of the output while it is streamed."""

    def __init__(self, first: Token, index: int) -> None:
        self._kind = first.kind
        self._call = first.call
        prefix = {Kind.REASONING: "rs", Kind.CONTENT: "msg"}.get(first.kind, "fc")
        self._about: Json = {"item_id": _name(prefix), "output_index": index}
        self._tool = (tool_call_id(), first.text if first.kind is Kind.TOOL_NAME else "")
        self._text = ""

    def takes(self, part: Token) -> bool:
        if self._kind is Kind.TOOL_NAME:
            return part.kind is Kind.TOOL_ARGUMENTS and part.call == self._call
        return part.kind is self._kind

    def begun(self) -> list[tuple[str, Json]]:
        index = self._about["output_index"]
        events: list[tuple[str, Json]] = [
            ("response.output_item.added", {"item": self._made("", "in_progress"), "output_index": index})
        ]
        if self._kind is not Kind.TOOL_NAME:
            part = {**_part(self._kind, ""), **_logprobs(self._kind)}
            events.append(("response.content_part.added", {"content_index": 0, **self._about, "part": part}))
        return events

    def added(self, part: Token) -> list[tuple[str, Json]]:
        if part.kind is Kind.TOOL_NAME:
            return []
        self._text += part.text
        if self._kind is Kind.TOOL_NAME:
            return [("response.function_call_arguments.delta", {"delta": part.text, **self._about})]
        event = {"content_index": 0, "delta": part.text, **self._about, **_logprobs(self._kind)}
        return [(f"response.{_texts(self._kind)}.delta", event)]

    def done(self) -> list[tuple[str, Json]]:
        if self._kind is Kind.TOOL_NAME:
            arguments = {"arguments": self._text, **self._about, "name": self._tool[1]}
            events = [("response.function_call_arguments.done", arguments)]
        else:
            about = {"content_index": 0, **self._about}
            events = [
                (f"response.{_texts(self._kind)}.done", {**about, **_logprobs(self._kind), "text": self._text}),
                ("response.content_part.done", {**about, "part": _part(self._kind, self._text)}),
            ]
        whole = {"item": self.item(), "output_index": self._about["output_index"]}
        return [*events, ("response.output_item.done", whole)]

    def item(self) -> Json:
        return self._made(self._text, "completed")

    def _made(self, text: str, status: str) -> Json:
        name = str(self._about["item_id"])
        if self._kind is Kind.REASONING:
            return _reasoning(name, text, status)
        if self._kind is Kind.CONTENT:
            return _message(name, text, status)
        return _call(name, *self._tool, text, status)


def _name(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(8)}"


def _texts(kind: Kind) -> str:
    return "reasoning_text" if kind is Kind.REASONING else "output_text"


def _logprobs(kind: Kind) -> Json:
    """What vLLM has beside a text in events, none being asked for."""
    return {"logprobs": []} if kind is Kind.CONTENT else {}


def _part(kind: Kind, text: str) -> Json:
    if kind is Kind.REASONING:
        return {"text": text, "type": "reasoning_text"}
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _reasoning(name: str, text: str, status: str | None) -> Json:
    content = [_part(Kind.REASONING, text)] if text else None
    beside = {"encrypted_content": None, "status": status}
    return {"id": name, "summary": [], "type": "reasoning", "content": content, **beside}


def _message(name: str, text: str, status: str = "completed") -> Json:
    content = [_part(Kind.CONTENT, text)] if text else []
    beside = {"role": "assistant", "status": status, "type": "message", "phase": None}
    return {"id": name, "content": content, **beside}


def _call(name: str, call_id: str, function: str, arguments: str, status: str) -> Json:
    head = {"arguments": arguments, "call_id": call_id, "name": function, "type": "function_call", "id": name}
    return {**head, "async": None, "caller": None, "namespace": None, "status": status}


def _status(finish_reason: str | None) -> str:
    return "incomplete" if finish_reason == "length" else "completed"


def _usage(prompt: int, generated: int, reasoning: int) -> Json:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
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
    asked = request.asked
    tools = asked.get("tools") or []
    parallel = asked.get("parallel_tool_calls")
    return {
        "id": envelope.id,
        "created_at": envelope.created,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": asked.get("instructions"),
        "metadata": asked.get("metadata"),
        "model": envelope.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": True if parallel is None else parallel,
        "temperature": _or(asked, "temperature", 1.0),
        "tool_choice": _named(asked.get("tool_choice", "auto")) if tools else "none",
        "tools": [_full(tool, _TOOL) for tool in tools],
        "top_p": _or(asked, "top_p", 1.0),
        "background": False,
        "max_output_tokens": request.limits[0],
        "max_tool_calls": asked.get("max_tool_calls"),
        "previous_response_id": None,
        "prompt": None,
        "reasoning": _full(asked.get("reasoning"), _REASONING),
        "service_tier": asked.get("service_tier") or "auto",
        "status": status,
        "text": _full(asked.get("text"), ("format", "verbosity")),
        "top_logprobs": None,
        "truncation": asked.get("truncation") or "disabled",
        "usage": used,
        "user": asked.get("user"),
        "presence_penalty": _or(asked, "presence_penalty", 0.0),
        "frequency_penalty": _or(asked, "frequency_penalty", 0.0),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def _or(asked: Mapping[str, Any], name: str, default: float) -> object:
    return default if asked.get(name) is None else asked[name]


def _named(choice: object) -> object:
    return _full(choice, ("name", "type")) if isinstance(choice, dict) else choice


def _full(value: Mapping[str, Any] | None, names: tuple[str, ...]) -> Json | None:
    """An object of the request with all its fields, as vLLM gives it back."""
    return None if value is None else {name: value.get(name) for name in names}
