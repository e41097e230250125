"""The events of chats and completions from the JSON answer, for an entry that was not streamed.

The shapes are vLLM's and OpenAI's: https://platform.openai.com/docs/api-reference/chat-streaming.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from router.core.endpoints.sse import DONE
from router.core.types import Endpoint

Json = dict[str, Any]

_encode = msgspec.json.Encoder().encode

_CHUNK: Final = {Endpoint.CHAT: b"chat.completion.chunk", Endpoint.COMPLETIONS: b"text_completion"}

# An answer is opened as far as an event differs from it, which is down to the fields of a message, in one go. Those and
# what is deeper are only looked over and told as they were written; that their text is UTF-8 was seen to when it was
# recorded. Any JSON object fits.
_Plain: Any = str | int | float | bool | None
_Closed: Any = dict[str, msgspec.Raw]
_Choices: Any = list[dict[str, _Closed | list[Any] | _Plain] | list[Any] | _Plain]
_opened: Callable[[bytes], Json] = msgspec.json.Decoder(dict[str, _Choices | _Closed | _Plain]).decode
_opened_calls: Callable[[msgspec.Raw], list[Json]] = msgspec.json.Decoder(list[_Closed] | _Closed | _Plain).decode

_NULL: Final = msgspec.Raw(b"null")
_NO_TEXT: Final = msgspec.Raw(b'""')
_NO_CALLS: Final = msgspec.Raw(b"[]")
_ASSISTANT: Final = msgspec.Raw(b'"assistant"')
_BEGIN: Final = b'%b{"index":%b,"delta":{"role":%b,"content":""},"logprobs":null,"finish_reason":null}]}\n\n'


def frames_from_body(endpoint: Endpoint, body: bytes, *, include_usage: bool) -> bytes:
    """The whole event stream, `[DONE]` included, that says what a JSON answer said.

    As vLLM does it, a chat begins with an event for each choice that has only the role. Raises what decoding and
    taking apart raise for a body that is no answer.
    """
    if body.find(b"\n") >= 0 or body.find(b"\r") >= 0:
        body = msgspec.json.format(body, indent=-1)  # an event has one line, and Raw goes into it as it stands
    answer = _opened(body)
    take = answer.pop
    choices, usage = take("choices"), take("usage", None)
    if not isinstance(choices, list):
        raise TypeError("the choices are no list")
    head = (_encode(take("id", None)), _CHUNK[endpoint], _encode(take("created", None)), _encode(take("model", None)))
    take("object", None)
    start = b'data: {"id":%b,"object":"%b","created":%b,"model":%b,"choices":[' % head
    frames = _chat_begun(start, choices) if endpoint is Endpoint.CHAT else []
    for choice in choices:
        frames += (start, _encode(choice), b"]}\n\n")
    beside = {name: value for name, value in answer.items() if value is not None}
    if beside and choices:
        frames[-1] = b"],%b\n\n" % _encode(beside)[1:]
    if include_usage and usage is not None:
        frames += (start, b'],"usage":', _encode(usage), b"}\n\n")
    frames.append(DONE)
    return b"".join(frames)


def _chat_begun(start: bytes, choices: list[Json]) -> list[bytes]:
    """The events that have the roles. It leaves each choice as the stream tells it: with a `delta`, not a `message`."""
    frames = []
    for choice in choices:
        delta = {name: value for name, value in choice.pop("message").items() if value != _NULL}
        role = delta.pop("role", _NO_TEXT)
        if role == _NO_TEXT:
            role = _ASSISTANT
        calls = delta.get("tool_calls", _NO_CALLS)
        if calls != _NO_CALLS and (opened := _opened_calls(calls)):
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(opened)]
        choice["delta"] = delta
        frames.append(_BEGIN % (start, _encode(choice["index"]), role))
    return frames
