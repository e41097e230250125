"""The JSON answer of chats and completions from the events of a stream.

Theory. What is known to be cut into pieces (text, tool arguments, log probabilities, token ids) is joined in order.
Anything else, whether known or not, must have said the same wherever it was said at all; it is then taken as it
stands. Where two events disagree about such a field, nobody can know how to join it, and there is no JSON form: the
function returns None and the entry serves streams only. The same holds for a text or a list of an unknown field of a
choice that came twice: they may be two equal pieces of it. So joining loses nothing.

This module is compiled, and events are any JSON: what is not proven by the decoder is annotated as Any.

The shapes are vLLM's and OpenAI's: https://platform.openai.com/docs/api-reference/chat-streaming.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from router.core.types import Endpoint

_encode = msgspec.json.Encoder().encode

JOINED_FIELDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("content", "refusal", "reasoning", "reasoning_content", "text", "arguments"), str),
    **dict.fromkeys(("token_ids", "annotations"), list),
}
"""Fields whose pieces are joined, and what they are pieces of."""

REPEATED_FIELDS: Final = frozenset(
    ("role", "id", "type", "name", "index", "object", "finish_reason", "stop_reason", "native_finish_reason")
)
"""Fields of a choice, a message or a call that some engines repeat in each event, and that are no pieces."""

_OBJECT_NAMES: Final = {Endpoint.CHAT: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}
_COMPLETIONS: Final = Endpoint.COMPLETIONS  # an Enum looks its members up in Python, each time
_MISSING: Final = object()
_LEADING_FIELDS: Final = ("id", "object", "created", "model")


class _ConflictingValuesError(Exception):
    """Two events say different things of a field that has no known way to be joined."""


def body_from_events(endpoint: Endpoint, events: Any, usage: Any) -> bytes | None:
    """The JSON answer that says what the events of a stream said; None where there is none without loss.

    `events` is a list of objects; `usage` is the event with the usage, if the engine sent one.
    """
    try:
        top: Any = {}
        choices: Any = {}
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
                elif name in JOINED_FIELDS or top.get(name, _MISSING) != value:
                    _join_field(top, name, value)
    except _ConflictingValuesError:
        return None
    for choice in choices.values():
        if "message" in choice and endpoint is not _COMPLETIONS:
            return None  # the joined message has its place
    top["object"] = _OBJECT_NAMES[endpoint]
    usage = top.pop("usage", None) or running
    body: Any = {name: top.pop(name) for name in _LEADING_FIELDS if name in top}
    body["choices"] = [_finish_choice(endpoint, choices[index]) for index in sorted(choices)]
    return _encode({**body, **top, "usage": usage})


# Most of what an event says has been said before, so the loops below ask that first, and call only for what is new.


def _join_field(into: Any, name: str, value: Any) -> None:
    known = into.get(name)
    if known is None or value is None:
        if value is not None or name not in into:
            into[name] = value
    elif type(known) is type(value) is JOINED_FIELDS.get(name):
        into[name] = known + value
    elif known != value:
        raise _ConflictingValuesError(name)


def _join_unknown_field(into: Any, name: str, value: Any) -> None:
    """Joins a field that stands where pieces stand: a text or a list that came before may be a piece of it."""
    if (
        name not in JOINED_FIELDS
        and name not in REPEATED_FIELDS
        and value
        and isinstance(value, str | list)
        and into.get(name)
    ):
        raise _ConflictingValuesError(name)
    _join_field(into, name, value)


def _join_choice(into: Any, choice: Any) -> None:
    for name, value in choice.items():
        if name == "delta":
            _join_delta(into.setdefault(name, {}), value or {})
        elif name == "logprobs" and value is not None:
            _join_logprobs(into, name, value)
        elif value is not None or name not in into:
            _join_unknown_field(into, name, value)


def _join_delta(into: Any, delta: Any) -> None:
    for name, value in delta.items():
        if name == "tool_calls" and value is not None:
            calls = into[name] = into.get(name) or {}
            for call in value:
                _join_call(calls.setdefault(call["index"], {}), call)
        elif name == "function_call" and value is not None:
            into[name] = into.get(name) or {}
            _join_fields(into[name], value)
        else:
            _join_unknown_field(into, name, value)


def _join_call(into: Any, call: Any) -> None:
    for name, value in call.items():
        if name == "function" and value is not None:
            into[name] = into.get(name) or {}
            _join_fields(into[name], value)
        elif name != "index":
            _join_unknown_field(into, name, value)


def _join_fields(into: Any, fields: Any) -> None:
    for name, value in fields.items():
        _join_unknown_field(into, name, value)


def _join_logprobs(into: Any, name: str, fields: Any) -> None:
    """Log probabilities: a map of lists, a list per event and name."""
    known = into[name] = into.get(name) or {}
    for part, value in fields.items():
        if isinstance(value, list) and isinstance(known.get(part), list):
            known[part] = known[part] + value
        else:
            _join_field(known, part, value)


def _finish_choice(endpoint: Endpoint, choice: Any) -> Any:
    if endpoint is _COMPLETIONS:
        return choice
    delta = choice.pop("delta", {})
    message = {"role": delta.pop("role", None) or "assistant", "content": delta.pop("content", None), **delta}
    if isinstance(message.get("tool_calls"), dict):
        calls = message["tool_calls"]
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"index": choice.pop("index"), "message": message, **choice}
