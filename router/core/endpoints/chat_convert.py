"""Makes the events of chats and completions from a JSON response, for an entry that was not streamed.

The shapes are vLLM's and OpenAI's: https://platform.openai.com/docs/api-reference/chat-streaming.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.sse import DONE
from router.core.endpoints.requests.malformed import MalformedResponseError

Json = dict[str, Any]

_encode = msgspec.json.Encoder().encode

# A body is decoded only as deep as events differ from it: down to the fields of a message, in one call. What is deeper
# stays Raw and is copied as it was written. Raw text is not checked to be UTF-8; the recorder has done that. The types
# accept any JSON object.
_Scalar: Any = str | int | float | bool | None
_RawObject: Any = dict[str, msgspec.Raw]
_Choices: Any = list[dict[str, _RawObject | list[Any] | _Scalar] | list[Any] | _Scalar]
_decode_shallow: Callable[[bytes], Json] = msgspec.json.Decoder(dict[str, _Choices | _RawObject | _Scalar]).decode
_decode_calls: Callable[[msgspec.Raw], Any] = msgspec.json.Decoder(list[_RawObject] | _RawObject | _Scalar).decode

_NULL: Final = msgspec.Raw(b"null")
_EMPTY_STRING: Final = msgspec.Raw(b'""')
_EMPTY_LIST: Final = msgspec.Raw(b"[]")
_ASSISTANT: Final = msgspec.Raw(b'"assistant"')
_ROLE_EVENT: Final = b'%b{"index":%b,"delta":{"role":%b,"content":""},"logprobs":null,"finish_reason":null}]}\n\n'


def frames_from_body(choices_format: ChoicesFormat, body: bytes, include_usage: bool) -> bytes:
    """The event stream, `[DONE]` included, with all the information of a JSON response.

    As in vLLM, the stream of a chat begins with an event for each choice that has only the role. Raises
    MALFORMED_RESPONSE_ERRORS.
    """
    if body.find(b"\n") >= 0 or body.find(b"\r") >= 0:
        body = msgspec.json.format(body, indent=-1)  # an event has one line, and Raw is copied with its line ends
    response = _decode_shallow(body)
    take = response.pop
    choices, usage = take("choices", None), take("usage", None)
    if not isinstance(choices, list):
        raise MalformedResponseError("the choices are not a list")
    head = (
        _encode(take("id", None)),
        choices_format.event_object.encode(),
        _encode(take("created", None)),
        _encode(take("model", None)),
    )
    take("object", None)
    start = b'data: {"id":%b,"object":"%b","created":%b,"model":%b,"choices":[' % head
    frames = _convert_to_deltas(start, choices) if choices_format.has_messages else []
    for choice in choices:
        frames += (start, _encode(choice), b"]}\n\n")
    rest = {name: value for name, value in response.items() if value is not None}
    if rest and choices:
        frames[-1] = b"],%b\n\n" % _encode(rest)[1:]  # other top-level fields go into the event of the last choice
    if include_usage and usage is not None:
        frames += (start, b'],"usage":', _encode(usage), b"}\n\n")
    frames.append(DONE)
    return b"".join(frames)


def _convert_to_deltas(start: bytes, choices: list[Any]) -> list[bytes]:
    """The events that have only a role. Replaces the `message` of each choice by a `delta`, in place."""
    frames = []
    for choice in choices:
        match choice:
            case {"message": dict(message), "index": index}:
                del choice["message"]
            case _:
                raise MalformedResponseError("a choice has no index, or no message")
        delta = {name: value for name, value in message.items() if value != _NULL}
        role = delta.pop("role", _EMPTY_STRING)
        if role == _EMPTY_STRING:
            role = _ASSISTANT
        calls = delta.get("tool_calls", _EMPTY_LIST)
        if calls != _EMPTY_LIST:
            # Only streams have an index of a call. One that the response has already takes precedence.
            match _decode_calls(calls):
                case list(decoded_calls) if all(isinstance(call, dict) for call in decoded_calls):
                    delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(decoded_calls)]
                case unknown if unknown:  # an empty value of another type is kept as it is
                    raise MalformedResponseError("the calls are not a list of objects")
        choice["delta"] = delta
        frames.append(_ROLE_EVENT % (start, _encode(index), role))
    return frames
