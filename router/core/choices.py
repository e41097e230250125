"""An answer of chats and completions in two forms: the JSON body from a stream's events, and the events from a body.

Theory. What is known to be cut into pieces (text, tool arguments, log probabilities, token ids) is joined in order.
Anything else, whether known or not, must have said the same wherever it was said at all; it is then taken as it
stands. Where two events disagree about such a field, nobody can know how to join it, and there is no JSON form: the
function returns None and the entry serves streams only. The same holds for a text or a list of an unknown field of a
choice that came twice: they may be two equal pieces of it. So joining loses nothing.

The shapes are vLLM's and OpenAI's: https://platform.openai.com/docs/api-reference/chat-streaming.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from router.core.sse import DONE
from router.core.types import Endpoint

Json = dict[str, Any]

_encode = msgspec.json.Encoder().encode

JOINED: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("content", "refusal", "reasoning", "reasoning_content", "text", "arguments"), str),
    **dict.fromkeys(("token_ids", "annotations"), list),
}
"""Fields whose pieces are joined, and what they are pieces of."""

REPEATED: Final = frozenset(
    ("role", "id", "type", "name", "index", "object", "finish_reason", "stop_reason", "native_finish_reason")
)
"""Fields of a choice, a message or a call that some engines repeat in each event, and that are no pieces."""

_BODY: Final = {Endpoint.CHAT: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}
_CHUNK: Final = {Endpoint.CHAT: b"chat.completion.chunk", Endpoint.COMPLETIONS: b"text_completion"}
_UNSAID: Final = object()
_SAID_FIRST: Final = ("id", "object", "created", "model")

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


class _DisagreementError(Exception):
    """Two events say different things of a field that has no known way to be joined."""


def body_from_events(endpoint: Endpoint, events: Iterable[Json], usage: Json | None) -> bytes | None:
    """The JSON answer that says what the events of a stream said; None where there is none without loss.

    `usage` is the event with the usage, if the engine sent one.
    """
    try:
        top: Json = {}
        choices: dict[int, Json] = {}
        running = None  # the usage of the last event that had some beside choices
        for event in (*events, usage or {}):
            for name, value in event.items():
                if name == "choices":
                    for choice in value or ():
                        _join_choice(choices.setdefault(choice["index"], {}), choice)
                elif name == "usage":
                    if not event.get("choices"):
                        top[name] = value
                    elif value is not None:
                        running = value
                elif name in JOINED or top.get(name, _UNSAID) != value:
                    _join(top, name, value)
    except _DisagreementError:
        return None
    top["object"] = _BODY[endpoint]
    told = top.pop("usage", None) or running
    body: Json = {name: top.pop(name) for name in _SAID_FIRST if name in top}
    body["choices"] = [_finished(endpoint, choices[index]) for index in sorted(choices)]
    return _encode({**body, **top, "usage": told})


# Most of what an event says has been said before, so the loops below ask that first, and call only for what is new.


def _join(into: Json, name: str, value: Any) -> None:
    known = into.get(name)
    if known is None or value is None:
        if value is not None or name not in into:
            into[name] = value
    elif type(known) is type(value) is JOINED.get(name):
        into[name] = known + value
    elif known != value:
        raise _DisagreementError(name)


def _join_unknown(into: Json, name: str, value: Any) -> None:
    """Joins a field that stands where pieces stand: a text or a list that came before may be a piece of it."""
    if name not in JOINED and name not in REPEATED and value and isinstance(value, str | list) and into.get(name):
        raise _DisagreementError(name)
    _join(into, name, value)


def _join_choice(into: Json, choice: Json) -> None:
    for name, value in choice.items():
        if name == "delta":
            _join_delta(into.setdefault(name, {}), value or {})
        elif name == "logprobs" and value is not None:
            _join_lists(into, name, value)
        elif value is not None or name not in into:
            _join_unknown(into, name, value)


def _join_delta(into: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "tool_calls" and value is not None:
            calls = into[name] = into.get(name) or {}
            for call in value:
                _join_call(calls.setdefault(call["index"], {}), call)
        elif name == "function_call" and value is not None:
            into[name] = into.get(name) or {}
            _join_all(into[name], value)
        else:
            _join_unknown(into, name, value)


def _join_call(into: Json, call: Json) -> None:
    for name, value in call.items():
        if name == "function" and value is not None:
            into[name] = into.get(name) or {}
            _join_all(into[name], value)
        elif name != "index":
            _join_unknown(into, name, value)


def _join_all(into: Json, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        _join_unknown(into, name, value)


def _join_lists(into: Json, name: str, fields: Json) -> None:
    """Log probabilities: a map of lists, a list per event and name."""
    known = into[name] = into.get(name) or {}
    for part, value in fields.items():
        if isinstance(value, list) and isinstance(known.get(part), list):
            known[part] = known[part] + value
        else:
            _join(known, part, value)


def _finished(endpoint: Endpoint, choice: Json) -> Json:
    if endpoint is Endpoint.COMPLETIONS:
        return choice
    delta = choice.pop("delta", {})
    message = {"role": delta.pop("role", None) or "assistant", "content": delta.pop("content", None), **delta}
    if isinstance(message.get("tool_calls"), dict):
        calls = message["tool_calls"]
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"index": choice.pop("index"), "message": message, **choice}


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
