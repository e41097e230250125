"""The forms of the events of a stream, for what need not be known of each of them."""

from typing import Any, Final, NamedTuple

import msgspec

from router.core.endpoints.recording.delta_template import StreamParts, TemplateRun
from router.core.endpoints.recording.sse import payload

EMPTY_VALUES: Final[tuple[Any, ...]] = (None, "", [], {})

MAX_LITERAL_EVENTS: Final = 1000
"""Events that may be decoded one by one, which is what events without a template need."""

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode


class EventForm(NamedTuple):
    """Events that differ only in their text: one of them, with the text `x`, and the number of all."""

    event: bytes
    events: int


def literal_count(parts: StreamParts) -> int:
    return sum([not isinstance(part, TemplateRun) for part in parts.parts])


def event_forms(parts: StreamParts) -> list[EventForm]:
    """Each event without a template, in their order, and then each template that has events.

    It takes no longer for a template with more events.
    """
    forms = [EventForm(part, 1) for part in parts.parts if not isinstance(part, TemplateRun)]
    counts = [0] * len(parts.templates)
    for part in parts.parts:
        if isinstance(part, TemplateRun):
            counts[part.template_index] += len(part.texts)
    for template, count in zip(parts.templates, counts, strict=True):
        if count:
            forms.append(EventForm(b"%bx%b" % (template.begin_with(0), template.end_with(0)), count))
    return forms


def said_fields(parts: StreamParts) -> set[str]:
    """The fields of deltas that had a value, without the role. Raises MALFORMED_RESPONSE_ERRORS."""
    said: set[str] = set()
    for form in event_forms(parts):
        match _decode_event(payload(form.event) or b"{}").get("choices"):
            case [{"delta": dict(delta)}]:
                said.update(name for name, value in delta.items() if value not in EMPTY_VALUES)
    return said - {"role"}
