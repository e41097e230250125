"""A chat with tools that another engine continues by the ids of its tokens.

Theory of operation. A completion of ids has only text. What it means, such as a call of a tool, is known to the parsers
of the chat. vLLM has an endpoint for them (`derender`, with --enable-scale-out), which makes a message of the ids of a
whole response. So the rest of the tokens is generated first. Then the client gets the part of that message that it
does not have yet.

The endpoint can also read a stream chunk by chunk. But some parsers lose a call if a chunk has several tokens, and with
a request for each token, the work grows with the square of their number.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.core.endpoints.continuation.compact_json import compact_json
from router.core.endpoints.continuation.published_events import PublishedCall
from router.core.endpoints.continuation.stream_so_far import StreamSoFar
from router.core.endpoints.recording.json_repair import decode_repaired
from router.core.endpoints.recording.recording import MAX_EVENT_SIZE
from router.core.endpoints.recording.sse import EventBuffer, error_payload, payload, split_events
from router.core.endpoints.requests.malformed import MalformedResponseError

DERENDER_PATH: Final = "/v1/chat/completions/derender"

Json = dict[str, Any]

_HEAD_FIELDS: Final = ("id", "object", "created", "model")
_CUT_OFF: Final = ("abort", "error")
"""Finish reasons of a response that has no end."""

_encode = msgspec.json.Encoder().encode


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _CompletionEvent(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _ParsedChoice(msgspec.Struct):
    message: _Message


class _Parsed(msgspec.Struct):
    choices: list[_ParsedChoice]


_decode_event = msgspec.json.Decoder(_CompletionEvent).decode
_decode_parsed = msgspec.json.Decoder(_Parsed).decode


class DerenderedChat:
    """Makes the rest of a chat of a completion.

    `feed` takes the bytes of the completion until it `is_over`. `request` is then the body for the endpoint, or None if
    the completion has no end; `rest` gets the reply.
    """

    def __init__(self, body: bytes, prompt_ids: bytes, so_far: StreamSoFar, *, one_call: bool) -> None:
        """`body`: the client's request. `prompt_ids`: of the chat. `one_call`: the client wants no further ones."""
        self._buffer = EventBuffer()
        self._body = body
        self._prompt_ids = prompt_ids
        self._so_far = so_far
        self._one_call = one_call
        self._ids: list[int] = []
        self._end: _Choice | None = None
        self._passed_on: list[bytes] = []
        self.is_over = False

    @property
    def has_tokens(self) -> bool:
        return bool(self._ids)

    def feed(self, data: bytes) -> None:
        """Raises MALFORMED_RESPONSE_ERRORS."""
        frames = self._buffer.feed(data)
        if self._buffer.pending > MAX_EVENT_SIZE:
            raise MalformedResponseError("an event is too long")
        for frame in split_events(frames):
            content = payload(frame)
            if self.is_over or not content:
                continue
            if content == b"[DONE]" or error_payload(frame) is not None:
                self.is_over = True
                self._passed_on.append(frame)
                continue
            match decode_repaired(_decode_event, content).choices:
                case []:  # the usage, or an error
                    self._passed_on.append(frame)
                case [choice] if choice.token_ids is not None and self._end is None:
                    self._add(choice, choice.token_ids)
                case _:
                    raise MalformedResponseError("an event has not the ids of one choice")

    def _add(self, choice: _Choice, ids: list[int]) -> None:
        self._ids += ids
        if choice.finish_reason in _CUT_OFF:
            self.is_over = True
            self._passed_on.append(self._event({}, choice.finish_reason))
        elif choice.finish_reason is not None:
            self._end = choice

    def request(self) -> bytes | None:
        end, ids = self._end, self._ids
        if end is None:
            return None
        if end.finish_reason == "stop" and not isinstance(end.stop_reason, str):
            ids = ids[:-1]  # the token that ended the response: the endpoint would take it for text
        said = self._so_far.generated_ids or b""
        response = b'{"prompt_token_ids":[%b],"choices":[{"index":0,"token_ids":[%b]}]}' % (
            self._prompt_ids,
            b",".join([each for each in (said, _encode(ids)[1:-1]) if each]),
        )
        return b'{"generate_response":%b,"chat_request":%b}' % (response, self._body)

    def rest(self, reply: bytes | None) -> bytes | None:
        """The events for the client; None if the parser does not repeat what the client has.

        `reply`: to `request`. Raises MALFORMED_RESPONSE_ERRORS.
        """
        events: list[bytes] = []
        if reply is not None and self._end is not None:
            match decode_repaired(_decode_parsed, reply).choices:
                case [choice]:
                    delta = self._rest_of(choice.message, self._end)
                case _:
                    raise MalformedResponseError("the reply has not one choice")
            if delta is None:
                return None
            if delta:
                events.append(self._event(delta, None))
            reason, calls = self._end.finish_reason, self._so_far.calls or "tool_calls" in delta
            events.append(self._event({}, "tool_calls" if reason == "stop" and calls else reason, self._ids))
        return b"".join([*events, *self._passed_on])

    def _rest_of(self, message: _Message, end: _Choice) -> Json | None:
        said, calls = self._so_far, (message.tool_calls or [])[: 1 if self._one_call else None]
        if len(calls) < len(said.calls):
            # Where the limit cut the last call off, some parsers take the markup of all calls for text.
            return {} if end.finish_reason == "length" else None
        delta: Json = {}
        # The parser of a stream passes white space on that the parser of a message leaves out.
        text, before = (message.content or "").lstrip(), said.text.lstrip()
        if text.startswith(before):
            if rest := text[len(before) :]:
                delta["content"] = rest
        elif text.rstrip() != before.rstrip():
            return None
        rests = self._rest_of_calls(calls, is_cut_off=end.finish_reason == "length")
        if rests:
            delta["tool_calls"] = rests
        return delta if rests is not None else None

    def _rest_of_calls(self, calls: Sequence[_Call], *, is_cut_off: bool) -> list[Json] | None:
        begun = self._so_far.calls
        rests: list[Json] = []
        for number, call in enumerate(calls):
            name, arguments = call.function.name, call.function.arguments
            if number >= len(begun):
                function = {"name": name, "arguments": arguments}
                rests.append({"id": call.id, "type": "function", "index": number, "function": function})
                continue
            rest = _rest_of_call(begun[number], name, arguments)
            if rest is None:
                # Of arguments that the limit cut off, some parsers leave the last one out, which the client has begun.
                is_last = number == len(calls) - 1 and name == begun[number].name
                return rests if is_cut_off and is_last else None
            if rest:
                rests.append({"index": begun[number].index, "function": {"arguments": rest}})
        return rests

    def _event(self, delta: Json, reason: str | None, ids: list[int] | None = None) -> bytes:
        choice: Json = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        if ids is not None and self._end is not None:
            choice |= {"stop_reason": self._end.stop_reason, "token_ids": ids}
        head = {name: self._so_far.head[name] for name in _HEAD_FIELDS if name in self._so_far.head}
        return b"data: %b\n\n" % _encode({**head, "choices": [choice]})


def _rest_of_call(begun: PublishedCall, name: str, arguments: str) -> str | None:
    """None if it is another call."""
    if name != begun.name:
        return None
    if arguments.startswith(begun.arguments):
        return arguments[len(begun.arguments) :]
    # Some parsers of a stream pass on what the model wrote, where those of a message write the JSON anew.
    said, whole = compact_json(begun.arguments), compact_json(arguments)
    return whole[len(said) :] if whole.startswith(said) else None
