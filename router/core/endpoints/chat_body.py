"""Makes the JSON response of chats and completions from the events of a stream.

Theory. Fields that are known to come in pieces (text, tool arguments, log probabilities, token ids) are joined in
order. Any other field, known or not, must have the same value in each event that has it, null apart; this value is
taken. If two events have different values, there is no known way to join them, and so no JSON form: the function
returns None, and the entry serves streams only. The same holds for a text or a list in an unknown field of a choice
that occurs twice, since these may be two equal pieces. So joining loses no information.

This module is compiled, and events are any JSON: what the decoder does not check is annotated as Any.

The shapes are vLLM's and OpenAI's: https://platform.openai.com/docs/api-reference/chat-streaming.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.delta_merge import JOINED_FIELDS, REPEATED_FIELDS

_encode = msgspec.json.Encoder().encode

_MISSING: Final = object()
_LEADING_FIELDS: Final = ("id", "object", "created", "model")


class _ConflictingValuesError(Exception):
    """Two events have different values of a field that is not joined."""


def body_from_events(choices_format: ChoicesFormat, events: Any, usage: Any) -> bytes | None:
    """The JSON response with all the information of the events; None if no JSON has it.

    `events`: a list of objects that recorded_response.check_indexes and check_deltas accept. `usage`: the usage event,
    if the engine sent one; its choices, if it has that field, are empty.
    """
    try:
        top: Any = {}
        choices: Any = {}
        running = None  # the usage so far that some engines send beside the choices; the last one counts
        for event in (*events, usage or {}):
            for name, value in event.items():
                if name == "choices":
                    for choice in value or ():  # null in an event of some engines
                        _join_choice(choices.setdefault(choice["index"], {}), choice)
                elif name == "usage":
                    if not event.get("choices"):  # the usage event, which takes precedence over `running`
                        top[name] = value
                    elif value is not None:
                        running = value
                # Most fields repeat what an earlier event has. Checking that here spares the call.
                elif name in JOINED_FIELDS or top.get(name, _MISSING) != value:
                    _join_field(top, name, value)
    except _ConflictingValuesError:
        return None
    for choice in choices.values():
        if "message" in choice and choices_format.has_messages:
            return None  # the message that is joined from the deltas would replace it
    top["object"] = choices_format.body_object
    usage = top.pop("usage", None) or running
    body: Any = {name: top.pop(name) for name in _LEADING_FIELDS if name in top}
    body["choices"] = [_finish_choice(choices_format, choices[index]) for index in sorted(choices)]
    return _encode({**body, **top, "usage": usage})


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
    """Joins a field of an object that also has pieces: if its value is a text or a list, it may be a piece as well."""
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
        elif value is not None or name not in into:  # most fields of a choice are null; checked here to spare the call
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
    # Log probabilities are an object of lists; each event has the next items of each list.
    known = into[name] = into.get(name) or {}
    for part, value in fields.items():
        if isinstance(value, list) and isinstance(known.get(part), list):
            known[part] = known[part] + value
        else:
            _join_field(known, part, value)


def _finish_choice(choices_format: ChoicesFormat, choice: Any) -> Any:
    """The choice as JSON has it: a `message` in place of the `delta`, its tool calls in a list in place of a dict."""
    if not choices_format.has_messages:
        return choice
    delta = choice.pop("delta", {})
    message = {"role": delta.pop("role", None) or "assistant", "content": delta.pop("content", None), **delta}
    if isinstance(message.get("tool_calls"), dict):
        calls = message["tool_calls"]
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"index": choice.pop("index"), "message": message, **choice}
