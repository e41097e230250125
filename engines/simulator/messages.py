"""Answers of /v1/messages in vLLM's shape, which it makes from those of a chat."""

import json
import secrets

from engines.simulator.answers import Kind, Token
from engines.simulator.bodies import Choice, Json
from engines.simulator.engine import Delta
from engines.simulator.frames import Envelope, Usage, tool_call_id, typed_frame
from engines.simulator.rejections import Rejection
from engines.simulator.requests import GenerationRequest

_SHOWN = 50  # characters of a value that pydantic shows without shortening it
_MORE = "For further information visit https://errors.pydantic.dev/2.14/v/missing"


def message_body(request: GenerationRequest, envelope: Envelope, choices: list[Choice], *, finish: bool) -> Json:
    """The answer, without its nulls; `finish` False leaves out why it ended."""
    (choice,) = choices
    content: list[Json] = []
    if thought := choice.text(Kind.REASONING):
        content.append({"type": "thinking", "thinking": thought, "signature": secrets.token_hex(16)})
    if said := choice.text(Kind.CONTENT):
        content.append({"type": "text", "text": said})
    for number in range(choice.calls):
        name, arguments = choice.text(Kind.TOOL_NAME, number), choice.text(Kind.TOOL_ARGUMENTS, number)
        try:
            given = json.loads(arguments)
        except json.JSONDecodeError:  # cut off by max_tokens: vLLM shows what the model said, as a text
            content.append({"type": "text", "text": f'<tool_call>{{"name": "{name}", "arguments": {arguments}'})
        else:
            content.append({"type": "tool_use", "id": tool_call_id(), "name": name, "input": given})
    head = {"id": envelope.id, "type": "message", "role": "assistant"}
    body: Json = {**head, "content": content or [{"type": "text", "text": ""}], "model": envelope.model}
    if finish:
        reason, matched = _stop_reason(choice.finish_reason, choice.stop_reason, called=choice.calls > 0)
        body |= {"stop_reason": reason} if matched is None else {"stop_reason": reason, "stop_sequence": matched}
    used = {"input_tokens": len(request.prompts[0].tokens), "output_tokens": len(choice.texts)}
    return {**body, "usage": used}


class MessagesFrames:
    """The events of one stream: a block for each run of text, thinking or arguments."""

    at_once = False

    def __init__(self, request: GenerationRequest, envelope: Envelope, *, finish: bool) -> None:
        self._envelope = envelope
        self._finish = finish
        self._usage = Usage(len(request.prompts[0].tokens), 1)
        self._index = 0
        self._open: Token | None = None
        self._called = False
        self._ended: tuple[str | None, str | None] = (None, None)

    def opening(self) -> list[bytes]:
        """The message before anything is said."""
        head = {"id": self._envelope.id, "type": "message", "role": "assistant", "content": []}
        rest = {"model": self._envelope.model, "stop_reason": None, "stop_sequence": None}
        used = {"input_tokens": self._usage.prompt, "output_tokens": 0}
        return [typed_frame({"type": "message_start", "message": {**head, **rest, "usage": used}})]

    def of(self, delta: Delta) -> list[bytes]:
        """What a delta adds to the open block, or to a new one."""
        self._usage.add(delta)
        frames = []
        for part in delta.parts:
            if not self._continues(part):
                frames += self._close()
                self._open = part
                frames.append(self._frame("content_block_start", content_block=self._started(part)))
            match part.kind:
                case Kind.CONTENT:
                    piece = {"type": "text_delta", "text": part.text}
                case Kind.REASONING:
                    piece = {"type": "thinking_delta", "thinking": part.text}
                case Kind.TOOL_ARGUMENTS:
                    piece = {"type": "input_json_delta", "partial_json": part.text}
                case Kind.TOOL_NAME:
                    continue
            frames.append(self._frame("content_block_delta", delta=piece))
        if delta.finish_reason is not None and self._finish:
            self._ended = _stop_reason(delta.finish_reason, delta.stop_reason, called=self._called)
        return frames

    def closing(self) -> list[bytes]:
        """The end of the last block, why the answer ended, and what was used."""
        reason, matched = self._ended
        used = {"input_tokens": self._usage.prompt, "output_tokens": self._usage.by_choice[0]}
        last = {"stop_reason": reason, "stop_sequence": matched}
        return [*self._close(), typed_frame({"type": "message_delta", "delta": last, "usage": used})]

    def ending(self) -> bytes:
        """Nothing more."""
        return typed_frame({"type": "message_stop"})

    def _continues(self, part: Token) -> bool:
        known = self._open
        if known is None:
            return False
        if known.kind is Kind.TOOL_NAME:
            return part.kind is Kind.TOOL_ARGUMENTS and part.call == known.call
        return part.kind is known.kind

    def _started(self, part: Token) -> Json:
        match part.kind:
            case Kind.REASONING:
                return {"type": "thinking", "thinking": ""}
            case Kind.TOOL_NAME:
                self._called = True
                return {"type": "tool_use", "id": tool_call_id(), "name": part.text, "input": {}}
        return {"type": "text", "text": ""}

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        frames = [self._frame("content_block_stop")]
        if self._open.kind is Kind.REASONING:
            signed = {"type": "signature_delta", "signature": secrets.token_hex(16)}
            frames.insert(0, self._frame("content_block_delta", delta=signed))
        self._open = None
        self._index += 1
        return frames

    def _frame(self, kind: str, **event: object) -> bytes:
        return typed_frame({"type": kind, **event, "index": self._index})


def _stop_reason(finish: str | None, matched: str | None, *, called: bool) -> tuple[str | None, str | None]:
    if finish == "length":
        return "max_tokens", None
    if called:
        return "tool_use", None
    return ("end_turn", None) if matched is None else ("stop_sequence", matched)


def anthropic_error(rejection: Rejection) -> object:
    """The body of an error: Anthropic's shape, but for what FastAPI refuses before the endpoint is asked."""
    if rejection.kind == "Bad Request":
        return rejection.body
    return {"type": "error", "error": {"type": rejection.kind, "message": rejection.message}}


def anthropic_error_frame(rejection: Rejection) -> bytes:
    """The event of an error in a stream: vLLM says that it could not read what the chat behind it said."""
    shown = repr(rejection.body)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:25]}...{shown[-24:]}"
    lines = ["2 validation errors for ChatCompletionStreamResponse"]
    for name in ("model", "choices"):
        lines += [name, f"  Field required [type=missing, input_value={shown}, input_type=dict]", f"    {_MORE}"]
    return typed_frame({"type": "error", "error": {"type": "internal_error", "message": "\n".join(lines)}})
