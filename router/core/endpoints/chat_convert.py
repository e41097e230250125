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

_CHUNK_OBJECT_NAMES: Final = {Endpoint.CHAT: b"chat.completion.chunk", Endpoint.COMPLETIONS: b"text_completion"}

# An answer is opened as far as an event differs from it, which is down to the fields of a message, in one go. Those and
# what is deeper are only looked over and told as they were written; that their text is UTF-8 was seen to when it was
# recorded. Any JSON object fits.
_Scalar: Any = str | int | float | bool | None
_RawObject: Any = dict[str, msgspec.Raw]
_Choices: Any = list[dict[str, _RawObject | list[Any] | _Scalar] | list[Any] | _Scalar]
_decode_shallow: Callable[[bytes], Json] = msgspec.json.Decoder(dict[str, _Choices | _RawObject | _Scalar]).decode
_decode_calls: Callable[[msgspec.Raw], list[Json]] = msgspec.json.Decoder(
    list[_RawObject] | _RawObject | _Scalar
).decode

_NULL: Final = msgspec.Raw(b"null")
_EMPTY_STRING: Final = msgspec.Raw(b'""')
_EMPTY_LIST: Final = msgspec.Raw(b"[]")
_ASSISTANT: Final = msgspec.Raw(b'"assistant"')
_ROLE_EVENT: Final = b'%b{"index":%b,"delta":{"role":%b,"content":""},"logprobs":null,"finish_reason":null}]}\n\n'


def frames_from_body(endpoint: Endpoint, body: bytes, *, include_usage: bool) -> bytes:
    """The whole event stream, `[DONE]` included, that says what a JSON answer said.

    As vLLM does it, a chat begins with an event for each choice that has only the role. Raises what decoding and
    taking apart raise for a body that is no answer.
    """
    if body.find(b"\n") >= 0 or body.find(b"\r") >= 0:
        body = msgspec.json.format(body, indent=-1)  # an event has one line, and Raw goes into it as it stands
    answer = _decode_shallow(body)
    take = answer.pop
    choices, usage = take("choices"), take("usage", None)
    if not isinstance(choices, list):
        raise TypeError("the choices are no list")
    head = (
        _encode(take("id", None)),
        _CHUNK_OBJECT_NAMES[endpoint],
        _encode(take("created", None)),
        _encode(take("model", None)),
    )
    take("object", None)
    start = b'data: {"id":%b,"object":"%b","created":%b,"model":%b,"choices":[' % head
    frames = _convert_to_deltas(start, choices) if endpoint is Endpoint.CHAT else []
    for choice in choices:
        frames += (start, _encode(choice), b"]}\n\n")
    beside = {name: value for name, value in answer.items() if value is not None}
    if beside and choices:
        frames[-1] = b"],%b\n\n" % _encode(beside)[1:]
    if include_usage and usage is not None:
        frames += (start, b'],"usage":', _encode(usage), b"}\n\n")
    frames.append(DONE)
    return b"".join(frames)


def _convert_to_deltas(start: bytes, choices: list[Json]) -> list[bytes]:
    """The events that have the roles. It leaves each choice as the stream tells it: with a `delta`, not a `message`."""
    frames = []
    for choice in choices:
        delta = {name: value for name, value in choice.pop("message").items() if value != _NULL}
        role = delta.pop("role", _EMPTY_STRING)
        if role == _EMPTY_STRING:
            role = _ASSISTANT
        calls = delta.get("tool_calls", _EMPTY_LIST)
        if calls != _EMPTY_LIST and (opened := _decode_calls(calls)):
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(opened)]
        choice["delta"] = delta
        frames.append(_ROLE_EVENT % (start, _encode(choice["index"]), role))
    return frames
