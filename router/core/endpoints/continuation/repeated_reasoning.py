"""Where a second engine repeats the reasoning of the first one.

At temperature 0, an engine that gets the same request mostly begins with the same reasoning. As long as it does,
nothing of it is new for the client. If it continues where the first engine broke off, the client gets the rest alone.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.recording.delta_template import StreamParts, TemplateRun
from router.core.endpoints.recording.sse import payload
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS, MalformedResponseError

SEPARATOR: Final = "\n\n"
"""Between the reasoning of one engine and that of the next."""

REASONING_FIELDS: Final = ("reasoning", "reasoning_content")

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode


class FollowingReasoning:
    """Makes the reasoning of a second engine follow that of the first one.

    - Nothing of it is new as long as it repeats the first engine's.
    - If it repeats all of that, what comes after it follows directly.
    - If it turns out to differ, all of it follows, after a separator.
    """

    def __init__(self, first: str | None) -> None:
        """`first`: the reasoning that the client has; None if it is not known, so that nothing is taken for it."""
        self.compares = first is not None
        self._first = first or ""
        self._repeated = 0
        self._is_separated = first == ""

    def stop_comparing(self) -> None:
        """Only before the first text."""
        self.compares = False

    def follow(self, text: str, *, is_last: bool) -> str | None:
        """What of the text the client gets; None as long as nothing is new. `is_last`: something else comes with it."""
        if self.compares:
            # Engines cut the same reasoning into other events, so a text may end anywhere in the rest, or after it.
            if not is_last and self._first.startswith(text, self._repeated):
                self._repeated += len(text)
                return None
            self.compares = False
            rest = self._first[self._repeated :]
            if text.startswith(rest):
                self._is_separated = True
                return text[len(rest) :]
            text = self._first[: self._repeated] + text
        if self._is_separated or not text:
            return text
        self._is_separated = True
        return SEPARATOR + text


def reasoning_of(delta: dict[str, Any]) -> str:
    texts = [delta.get(name) for name in REASONING_FIELDS]
    return next((text for text in texts if isinstance(text, str) and text), "")


def read_reasoning(parts: StreamParts) -> str | None:
    """The reasoning of a chat's events; None if they cannot be read."""
    said: list[str] = []
    try:
        for part in parts.parts:
            if not isinstance(part, TemplateRun):
                said.append(_reasoning_of_event(part))
            elif part.texts:
                template = parts.templates[part.template_index]
                # All events of a template have their text in the same field.
                if _reasoning_of_event(b"%bx%b" % (template.begin, template.end)) != "x":
                    return None
                said += _decode_texts(b'["%b"]' % b'","'.join(part.texts))
    except MALFORMED_RESPONSE_ERRORS:
        return None
    return "".join(said)


def _reasoning_of_event(event: bytes) -> str:
    match _decode_event(payload(event) or b"{}").get("choices"):
        case [] | None:
            return ""
        case [{"delta": dict(delta)}]:
            return reasoning_of(delta)
        case _:
            raise MalformedResponseError("an event has not one choice with a delta")
