"""Server-sent events, byte for byte in vLLM's format.

What stays the same throughout a stream is encoded once; a token costs one string encoding and one join.
"""

import json
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.json import encode

from engines.simulator.engine.core import NOT_CACHED, Delta, PromptCaching
from engines.simulator.engine.speculation import RequestSpeculation
from engines.simulator.formats.logprobs import chat_logprobs, completion_logprobs
from engines.simulator.rejections import Rejection
from engines.simulator.text.answers import Token, TokenKind
from engines.simulator.text.tokens import split_tokens, token_id
from engines.simulator.validation.requests import GenerationRequest

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of one response share. `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str


def error_frame(rejection: Rejection) -> bytes:
    """The event for an error after a stream has started."""
    # json.dumps and not msgspec: vLLM encodes this one with spaces.
    return b"data: " + json.dumps(rejection.body).encode() + b"\n\n"


def typed_frame(event: dict[str, object]) -> bytes:
    """An event of a stream whose events carry their type, in the `event:` line and in the data."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + encode(event) + b"\n\n"


def tool_call_id() -> str:
    return f"chatcmpl-tool-{secrets.token_hex(8)}"


class StreamFrames(Protocol):
    """Makes the events of one stream; `opens_immediately`: the stream starts before the first token."""

    opens_immediately: bool

    def opening_frames(self) -> list[bytes]:
        """The events before the first token."""

    def delta_frames(self, delta: Delta) -> list[bytes]:
        """The events for one delta; none if none of its text may be sent yet."""

    def closing_frames(self) -> list[bytes]:
        """The events between the last token and the final event."""

    def final_frame(self) -> bytes:
        """The event that ends a successful stream."""


@dataclass(slots=True)
class TokenUsage:
    """Tokens so far; `by_choice` and `reasoning` have one number per choice.

    `speculation`: that of the last choice that has ended. `caching`: that of the choice that was the first to start.
    """

    prompt: int
    choices: int
    by_choice: list[int] = field(init=False)
    reasoning: list[int] = field(init=False)
    speculation: RequestSpeculation | None = None
    caching: PromptCaching = NOT_CACHED

    def __post_init__(self) -> None:
        self.by_choice = [0] * self.choices
        self.reasoning = [0] * self.choices

    def add(self, delta: Delta) -> None:
        if not any(self.by_choice):
            self.caching = delta.caching
        self.by_choice[delta.index] += len(delta.tokens)
        self.speculation = delta.speculation
        for token in delta.tokens:
            if token.kind is TokenKind.REASONING:
                self.reasoning[delta.index] += 1

    def metrics(self) -> bytes:
        """The metrics in a usage event. vLLM has none for several sequences."""
        if self.speculation is None or self.choices != 1:
            return b""
        return b',"metrics":{"speculative_decoding":' + encode(self.speculation.report()) + b"}"


def usage_object(prompt: int, completion: int, **more: object) -> dict[str, object]:
    """A usage object in vLLM's order of keys."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion, **more}


class ChatFrames:
    """The events of one /v1/chat/completions stream."""

    opens_immediately = False

    def __init__(self, request: GenerationRequest, envelope: Envelope, *, finish: bool) -> None:
        self._request = request
        self._finish = finish
        self._usage = TokenUsage(len(request.prompts[0].tokens), request.n)
        self._prefix = _frame_prefix(envelope, "chat.completion.chunk")
        self._end_fingerprint = b',"system_fingerprint":' + encode(envelope.fingerprint)
        # Everything before the text of a content event, encoded once: most events need nothing else.
        self._content_prefixes = [
            self._prefix + b'{"index":%d,"delta":{"content":' % index for index in range(request.n)
        ]

    def opening_frames(self) -> list[bytes]:
        ids = encode(self._request.prompts[0].tokens if self._request.return_token_ids else None)
        message = b'"delta":{"role":%b,"content":""}' % encode(self._request.role)
        return [
            self._prefix
            + b'{"index":%d,%b,"logprobs":null,"finish_reason":null}]' % (index, message)
            + self._continuous_usage(index)
            + b',"prompt_token_ids":'
            + ids
            + b',"prompt_text":null}\n\n'
            for index in range(self._request.n)
        ]

    def delta_frames(self, delta: Delta) -> list[bytes]:
        """One event per part; the last one carries the log probabilities and the finish reason."""
        self._usage.add(delta)
        request, parts = self._request, delta.parts
        reason = delta.finish_reason if self._finish else None
        detailed = request.logprobs is not None or request.return_token_ids
        simple = reason is None and not detailed and not request.continuous_usage
        if simple and len(parts) == 1 and parts[0].kind is TokenKind.CONTENT:
            text = encode(parts[0].text)
            return [
                self._content_prefixes[delta.index]
                + text
                + b'},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
            ]
        # With a parser, vLLM sends no event for tokens without text, unless logprobs or ids have to be sent.
        if not parts and reason is None and not detailed and request.has_parser:
            return []
        frames = [self._frame(delta.index, self._message(part), b"null", None, b"null") for part in parts[:-1]]
        message = self._message(parts[-1]) if parts else b"{}" if request.has_parser else b'{"content":""}'
        logprobs = b"null"
        if request.logprobs is not None:
            logprobs = encode(chat_logprobs([token.text for token in delta.tokens], request.logprobs))
        ids = encode(_token_ids(delta.tokens) if request.return_token_ids else None)
        return [*frames, self._frame(delta.index, message, logprobs, (delta, reason) if reason else None, ids)]

    def closing_frames(self) -> list[bytes]:
        if not self._request.include_usage:
            return []
        details: dict[str, object] = {}
        if self._request.prompt_tokens_details:
            caching = self._usage.caching
            details["prompt_tokens_details"] = {
                "cached_tokens": caching.cached,
                "created_cache_tokens": caching.created,
            }
        # Without reasoning, vLLM omits the details here; continuous usage has them as null.
        if self._request.thinking:
            details["completion_tokens_details"] = {"reasoning_tokens": sum(self._usage.reasoning)}
        total = usage_object(self._usage.prompt, sum(self._usage.by_choice), **details)
        return [self._prefix + b'],"usage":' + encode(total) + self._end_fingerprint + self._usage.metrics() + b"}\n\n"]

    def final_frame(self) -> bytes:
        return DONE

    def _frame(self, index: int, message: bytes, logprobs: bytes, end: tuple[Delta, str] | None, ids: bytes) -> bytes:
        frame = self._prefix + b'{"index":%d,"delta":' % index + message + b',"logprobs":' + logprobs
        if end is None:
            frame += b',"finish_reason":null,"token_ids":' + ids + b"}]" + self._continuous_usage(index)
            return frame + b"}\n\n"
        delta, reason = end
        finish = finish_reason(self._request, reason)
        frame += b',"finish_reason":' + encode(finish) + b',"stop_reason":' + encode(delta.stop_reason)
        frame += b',"token_ids":' + ids + b"}]" + self._continuous_usage(index)
        # vLLM sends the fingerprint once: in the usage event if there is one, else in the last event.
        return frame + (b"" if self._request.include_usage else self._end_fingerprint) + b"}\n\n"

    def _message(self, part: Token) -> bytes:
        text = encode(part.text)
        match part.kind:
            case TokenKind.CONTENT:
                return b'{"content":' + text + b"}"
            case TokenKind.REASONING:
                return b'{"reasoning":' + text + b"}"
            case TokenKind.TOOL_NAME:
                call = b'{"id":%b,"type":"function","index":%d,"function":{"name":%b}}'
                call %= (encode(tool_call_id()), part.call_index, text)
            case TokenKind.TOOL_ARGUMENTS:
                call = b'{"index":%d,"function":{"arguments":%b}}' % (part.call_index, text)
        return b'{"content":null,"tool_calls":[' + call + b"]}"

    def _continuous_usage(self, index: int) -> bytes:
        if not self._request.continuous_usage:
            return b""
        details = {"reasoning_tokens": self._usage.reasoning[index]} if self._request.thinking else None
        so_far = usage_object(self._usage.prompt, self._usage.by_choice[index], completion_tokens_details=details)
        return b',"usage":' + encode(so_far)


class CompletionFrames:
    """The events of one /v1/completions stream."""

    opens_immediately = False

    def __init__(self, request: GenerationRequest, envelope: Envelope, *, finish: bool) -> None:
        self._request = request
        self._finish = finish
        choices = len(request.prompts) * request.n
        self._usage = TokenUsage(sum(len(prompt.tokens) for prompt in request.prompts), choices)
        self._prefix = _frame_prefix(envelope, "text_completion")
        self._end_fingerprint = b',"system_fingerprint":' + encode(envelope.fingerprint)
        self._started = [False] * choices
        self._offsets = [0] * choices

    def opening_frames(self) -> list[bytes]:
        """None: a completion starts with its first token."""
        return []

    def delta_frames(self, delta: Delta) -> list[bytes]:
        """One event, even if no text may be sent yet; the first of a choice carries the echoed prompt."""
        self._usage.add(delta)
        request, index = self._request, delta.index
        reason = delta.finish_reason if self._finish else None
        prompt = request.prompts[index // request.n]
        # An echoed prompt and its token ids belong to the first event of each choice only.
        opens = not self._started[index]
        self._started[index] = True
        text = "" if request.echo_only else "".join(part.text for part in delta.parts)
        finish = [] if request.echo_only else [token.text for token in delta.tokens]
        echoed = split_tokens(prompt.text) if request.echo and opens else []
        logprobs = b"null"
        if request.logprobs is not None:
            completion_values = completion_logprobs(echoed, finish, request.logprobs, self._offsets[index])
            self._offsets[index] += sum(map(len, echoed)) + sum(map(len, finish))
            logprobs = encode(completion_values)
        prompt_ids = prompt.tokens if opens and (request.echo or request.return_token_ids) else None
        ids = _token_ids(delta.tokens) if request.return_token_ids else None
        frame = self._prefix + b'{"index":%d,"text":' % index + encode("".join(echoed) + text)
        frame += b',"logprobs":' + logprobs + b',"finish_reason":' + encode(reason)
        frame += b',"stop_reason":' + encode(delta.stop_reason) + b',"prompt_token_ids":' + encode(prompt_ids)
        frame += b',"token_ids":' + encode(ids) + b"}]"
        if request.continuous_usage:
            frame += b',"usage":' + encode(usage_object(len(prompt.tokens), self._usage.by_choice[index]))
        # vLLM sends the fingerprint once: in the usage event if there is one, else in the last event.
        if reason is not None and not request.include_usage:
            frame += self._end_fingerprint
        return [frame + b"}\n\n"]

    def closing_frames(self) -> list[bytes]:
        if not self._request.include_usage:
            return []
        details: dict[str, object] = {}
        if self._request.prompt_tokens_details:
            details["prompt_tokens_details"] = {"cached_tokens": self._usage.caching.cached}
        total = usage_object(self._usage.prompt, sum(self._usage.by_choice), **details)
        return [self._prefix + b'],"usage":' + encode(total) + self._end_fingerprint + self._usage.metrics() + b"}\n\n"]

    def final_frame(self) -> bytes:
        return DONE


def finish_reason(request: GenerationRequest, reason: str) -> str:
    """The finish reason for a chat client: `tool_calls` only if the model chose the tool itself."""
    return "tool_calls" if request.tool_calls and not request.names_tool and reason == "stop" else reason


def _frame_prefix(envelope: Envelope, kind: str) -> bytes:
    head = {"id": envelope.id, "object": kind, "created": envelope.created, "model": envelope.model}
    return b"data: " + encode(head)[:-1] + b',"choices":['


def _token_ids(tokens: list[Token]) -> list[int]:
    return [token_id(token.text) for token in tokens]
