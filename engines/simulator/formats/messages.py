"""Responses of /v1/messages in vLLM's format, which vLLM converts from chat responses."""

import json
import secrets

from engines.simulator.engine.core import Delta, PromptCaching
from engines.simulator.formats.bodies import ChoiceAccumulator, Json
from engines.simulator.formats.frames import Envelope, TokenUsage, tool_call_id, typed_frame
from engines.simulator.rejections import Rejection
from engines.simulator.text.answers import Token, TokenKind
from engines.simulator.validation.requests import GenerationRequest

_MAX_REPR = 50  # characters of a value that pydantic shows without shortening it
_PYDANTIC_LINK = "For further information visit https://errors.pydantic.dev/2.14/v/missing"


def message_body(
    request: GenerationRequest, envelope: Envelope, choices: list[ChoiceAccumulator], *, finish: bool
) -> Json:
    """The response, without nulls; `finish` False leaves out the stop reason."""
    (choice,) = choices
    content: list[Json] = []
    if reasoning := choice.text(TokenKind.REASONING):
        content.append({"type": "thinking", "thinking": reasoning, "signature": secrets.token_hex(16)})
    if text := choice.content:
        content.append({"type": "text", "text": text})
    for number in range(choice.calls):
        name, arguments = choice.text(TokenKind.TOOL_NAME, number), choice.text(TokenKind.TOOL_ARGUMENTS, number)
        content.append({"type": "tool_use", "id": tool_call_id(), "name": name, "input": json.loads(arguments)})
    head = {"id": envelope.id, "type": "message", "role": "assistant"}
    body: Json = {**head, "content": content or [{"type": "text", "text": ""}], "model": envelope.model}
    if finish:
        reason, matched = _stop_reason(choice.finish_reason, choice.stop_reason, called=choice.calls > 0)
        body |= {"stop_reason": reason} if matched is None else {"stop_reason": reason, "stop_sequence": matched}
    return {**body, "usage": _usage(request, len(choice.texts), choice.caching)}


class MessagesFrames:
    """The events of one stream: a content block for each run of text, reasoning or tool arguments."""

    opens_immediately = False

    def __init__(self, request: GenerationRequest, envelope: Envelope, *, finish: bool) -> None:
        self._request = request
        self._envelope = envelope
        self._finish = finish
        self._usage = TokenUsage(len(request.prompts[0].tokens), 1)
        self._index = 0
        self._open: Token | None = None
        self._called = False
        self._ended: tuple[str | None, str | None] = (None, None)

    def opening_frames(self) -> list[bytes]:
        head = {"id": self._envelope.id, "type": "message", "role": "assistant", "content": []}
        rest = {"model": self._envelope.model, "stop_reason": None, "stop_sequence": None}
        used = {"input_tokens": self._usage.prompt, "output_tokens": 0}
        return [typed_frame({"type": "message_start", "message": {**head, **rest, "usage": used}})]

    def delta_frames(self, delta: Delta) -> list[bytes]:
        self._usage.add(delta)
        frames = []
        for part in delta.parts:
            if not self._continues(part):
                frames += self._close_block()
                self._open = part
                frames.append(self._frame("content_block_start", content_block=self._empty_block(part)))
            match part.kind:
                case TokenKind.CONTENT:
                    piece = {"type": "text_delta", "text": part.text}
                case TokenKind.REASONING:
                    piece = {"type": "thinking_delta", "thinking": part.text}
                case TokenKind.TOOL_ARGUMENTS:
                    piece = {"type": "input_json_delta", "partial_json": part.text}
                case TokenKind.TOOL_NAME:
                    continue
            frames.append(self._frame("content_block_delta", delta=piece))
        if delta.finish_reason is not None and self._finish:
            self._ended = _stop_reason(delta.finish_reason, delta.stop_reason, called=self._called)
        return frames

    def closing_frames(self) -> list[bytes]:
        reason, matched = self._ended
        used = _usage(self._request, self._usage.by_choice[0], self._usage.caching)
        last = {"stop_reason": reason, "stop_sequence": matched}
        return [*self._close_block(), typed_frame({"type": "message_delta", "delta": last, "usage": used})]

    def final_frame(self) -> bytes:
        return typed_frame({"type": "message_stop"})

    def _continues(self, part: Token) -> bool:
        open_block = self._open
        if open_block is None:
            return False
        if open_block.kind is TokenKind.TOOL_NAME:
            return part.kind is TokenKind.TOOL_ARGUMENTS and part.call_index == open_block.call_index
        return part.kind is open_block.kind

    def _empty_block(self, part: Token) -> Json:
        match part.kind:
            case TokenKind.REASONING:
                return {"type": "thinking", "thinking": ""}
            case TokenKind.TOOL_NAME:
                self._called = True
                return {"type": "tool_use", "id": tool_call_id(), "name": part.text, "input": {}}
        return {"type": "text", "text": ""}

    def _close_block(self) -> list[bytes]:
        if self._open is None:
            return []
        frames = [self._frame("content_block_stop")]
        if self._open.kind is TokenKind.REASONING:
            signed = {"type": "signature_delta", "signature": secrets.token_hex(16)}
            # A thinking block ends with its signature.
            frames.insert(0, self._frame("content_block_delta", delta=signed))
        self._open = None
        self._index += 1
        return frames

    def _frame(self, kind: str, **event: object) -> bytes:
        return typed_frame({"type": kind, **event, "index": self._index})


def _usage(request: GenerationRequest, generated: int, caching: PromptCaching) -> Json:
    prompt = len(request.prompts[0].tokens)
    if not request.prompt_tokens_details:
        return {"input_tokens": prompt, "output_tokens": generated}
    return {
        "input_tokens": prompt - caching.cached - caching.created,
        "output_tokens": generated,
        "cache_creation_input_tokens": caching.created,
        "cache_read_input_tokens": caching.cached,
    }


def _stop_reason(finish: str | None, matched: str | None, *, called: bool) -> tuple[str | None, str | None]:
    if finish == "length":
        return "max_tokens", None
    if called:
        return "tool_use", None
    return ("end_turn", None) if matched is None else ("stop_sequence", matched)


def anthropic_error(rejection: Rejection) -> object:
    """An error in Anthropic's format, except for what FastAPI refuses before the endpoint runs."""
    if rejection.kind == "Bad Request":
        return rejection.body
    return {"type": "error", "error": {"type": rejection.kind, "message": rejection.message}}


def anthropic_error_frame(rejection: Rejection) -> bytes:
    """The event for an error in a stream: vLLM reports that it cannot parse the error of the underlying chat stream."""
    received = repr(rejection.body)
    received = received if len(received) <= _MAX_REPR else f"{received[:25]}...{received[-24:]}"
    lines = ["2 validation errors for ChatCompletionStreamResponse"]
    for name in ("model", "choices"):
        lines += [
            name,
            f"  Field required [type=missing, input_value={received}, input_type=dict]",
            f"    {_PYDANTIC_LINK}",
        ]
    return typed_frame({"type": "error", "error": {"type": "internal_error", "message": "\n".join(lines)}})
