"""What the client has of a chat or a completion, event by event."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.core.endpoints.continuation.event_forms import EMPTY_VALUES, MAX_LITERAL_EVENTS
from router.core.endpoints.recording.delta_template import StreamParts, TemplateRun
from router.core.endpoints.recording.sse import payload
from router.core.endpoints.requests.malformed import MalformedResponseError

_HEAD_FIELDS: Final = ("id", "object", "created", "model", "system_fingerprint")

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode


class PublishedCall(msgspec.Struct):
    """A call of a tool, or a part of one; in a form that is not known, with the index -1."""

    index: int
    name: str
    arguments: str


class PublishedEvent(msgspec.Struct, frozen=True):
    """An event of one choice. `usage`: that of the response up to here, as (prompt, completion). `calls`: of tools.

    `text`: without the reasoning, which may end in the same event.
    """

    text: str
    has_reasoning: bool
    has_ids: bool
    finish_reason: str | None
    usage: tuple[int, int] | None = None
    calls: Sequence[PublishedCall] = ()


def calls_of(events: Sequence[PublishedEvent]) -> list[PublishedCall]:
    """The calls, as far as they have been said, in their order."""
    calls: dict[int, PublishedCall] = {}
    arguments: dict[int, list[str]] = {}
    for event in events:
        for part in event.calls:
            call = calls.setdefault(part.index, PublishedCall(part.index, "", ""))
            call.name += part.name
            arguments.setdefault(part.index, []).append(part.arguments)
    for index, call in calls.items():
        call.arguments = "".join(arguments[index])
    return [calls[index] for index in sorted(calls)]


def read_events(parts: StreamParts) -> tuple[list[PublishedEvent], dict[str, Any]]:
    """The events, and the fields that they have in common. Raises MALFORMED_RESPONSE_ERRORS."""
    events: list[PublishedEvent] = []
    head: dict[str, Any] = {}
    for part in parts.parts:
        if not isinstance(part, TemplateRun):
            data = payload(part)
            if data is not None:
                events.append(_read_event(_decode_event(data), head))
            continue
        if not part.texts:
            continue
        template = parts.templates[part.template_index]
        begin, end = template.begin_with(part.first_number), template.end_with(part.first_number)
        form = _read_event(_decode_event(payload(b"%bx%b" % (begin, end)) or b""), head)
        if not _is_of_one_text(form):
            if len(part.texts) > MAX_LITERAL_EVENTS:
                raise MalformedResponseError("too many events that must be decoded one by one")
            events += [_read_event(_decode_event(payload(begin + text + end) or b""), head) for text in part.texts]
            continue
        if not (form.text or form.calls):
            events += [form] * len(part.texts)
            continue
        texts = _decode_texts(b'["%b"]' % b'","'.join(part.texts))
        if len(texts) != len(part.texts):
            raise MalformedResponseError("a text is not the content of a string")
        events += [_with_text(form, text) for text in texts]
    return events, head


def _is_of_one_text(form: PublishedEvent) -> bool:
    """Whether it is known which field has the text: it may be that of the reasoning, or the name of a tool."""
    if form.calls:
        parts = [(call.name, call.arguments) for call in form.calls]
        return parts == [("", "x")] and not form.text and not form.has_reasoning
    return not (form.text and form.has_reasoning)


def _with_text(form: PublishedEvent, text: str) -> PublishedEvent:
    calls = [PublishedCall(call.index, "", text) for call in form.calls]
    return PublishedEvent("" if calls else text, form.has_reasoning, form.has_ids, None, form.usage, calls)


def _read_event(event: dict[str, Any], head: dict[str, Any]) -> PublishedEvent:
    for name in _HEAD_FIELDS:
        if name in event:
            head.setdefault(name, event[name])
    match event.get("choices"):
        case [{"index": 0} as choice]:
            pass
        case _:
            raise MalformedResponseError("an event has not one choice")
    fields = choice["delta"] if "delta" in choice else {"text": choice.get("text")}
    if not isinstance(fields, dict):
        raise MalformedResponseError("a delta is not an object")
    text, has_reasoning, calls = "", False, list[PublishedCall]()
    for name, value in fields.items():
        if name in ("content", "text") and isinstance(value, str):
            text += value
        elif name in ("reasoning", "reasoning_content") and isinstance(value, str):
            has_reasoning = has_reasoning or bool(value)
        elif name == "tool_calls" and isinstance(value, list):
            calls += map(_read_call, value)
        elif name != "role" and value not in EMPTY_VALUES:
            raise MalformedResponseError("a delta has something else than text")
    reason = choice.get("finish_reason")
    return PublishedEvent(
        text,
        has_reasoning,
        "token_ids" in choice,
        reason if isinstance(reason, str) else None,
        _usage_of(event.get("usage")),
        calls,
    )


def _read_call(call: Any) -> PublishedCall:
    match call:
        case {"index": int(index), "function": dict(function)}:
            name, arguments = function.get("name") or "", function.get("arguments") or ""
            if isinstance(name, str) and isinstance(arguments, str):
                return PublishedCall(index, name, arguments)
    return PublishedCall(-1, "", "")


def _usage_of(usage: Any) -> tuple[int, int] | None:
    match usage:
        case {"prompt_tokens": int(prompt), "completion_tokens": int(completion)} if prompt > 0 and completion > 0:
            return prompt, completion
    return None
