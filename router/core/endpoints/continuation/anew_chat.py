"""A chat of which the client has only reasoning begins anew at another engine.

Theory of operation. The second engine gets the client's own request, so no parser of it has to begin in the middle of a
response. Its reasoning follows the first engine's in one stream. After it come its text, its calls of tools, its finish
reason and its usage. What it repeats of the first engine's reasoning is left out, see repeated_reasoning.
"""

from typing import Any, Final, NamedTuple

import msgspec

from router.core.endpoints.continuation.event_forms import EMPTY_VALUES, MAX_LITERAL_EVENTS, event_forms, literal_count
from router.core.endpoints.continuation.repeated_reasoning import (
    REASONING_FIELDS,
    FollowingReasoning,
    read_reasoning,
    reasoning_of,
)
from router.core.endpoints.continuation.second_stream import SecondChoiceStream
from router.core.endpoints.endpoint import Recorder
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.delta_template import StreamParts
from router.core.endpoints.recording.recording import ABORTED
from router.core.endpoints.recording.sse import payload
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS

_HEAD_FIELDS: Final = ("id", "created", "model", "system_fingerprint")
_OWN_FIELDS: Final = ("prompt_token_ids", "prompt_text", "metrics")  # of the engine that the client does not know
_OBSTACLES: Final = {"content": "text", "tool_calls": "tools", "function_call": "tools"}

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode


class _Thoughts(NamedTuple):
    """A stream without any text so far.

    `head`: what its events have in common. `id_events`: those that had ids of tokens.
    """

    head: dict[str, Any]
    id_events: int


def begin_anew(recorder: Recorder) -> Recorder | str:
    if not isinstance(recorder, ChoicesRecorder) or recorder.parts is None:
        return "too-large"
    try:
        thoughts = _read_thoughts(recorder.parts)
    except MALFORMED_RESPONSE_ERRORS:
        return "malformed"
    return thoughts if isinstance(thoughts, str) else AnewChat(recorder, thoughts)


class AnewChat(SecondChoiceStream):
    """A Recorder of an engine that begins the response of a chat anew. Its role, and what precedes its first token, is
    left out.
    """

    def __init__(self, recorder: ChoicesRecorder, thoughts: _Thoughts) -> None:
        super().__init__(recorder)
        self._thoughts = thoughts
        self._reasoning: FollowingReasoning | None = None  # made with the first event, since it reads the stream
        self._repeated_fields: list[str] = []  # those of the events that were left out
        self._carried_ids: list[Any] = []  # of events that were left out

    def _join(self) -> None:
        self._recorder.resume()
        if self._recorder.token_ids is not None:
            # No token of the first engine is part of what a third one would go on from.
            self._recorder.token_ids.keep(0, self._thoughts.id_events)

    def _rewrite_choice(self, event: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any] | None:
        if choice.get("finish_reason") == "abort":
            self.failure = ABORTED
            return None
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice["delta"] = {}
        delta.pop("role", None)
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            self._carried_ids += ids
        said = [name for name, value in delta.items() if value not in EMPTY_VALUES]
        is_end = choice.get("finish_reason") is not None
        reasoning = self._reasoning
        if not (said or is_end) and (reasoning is None or reasoning.compares):
            return None
        # Also if nothing of it is passed on: the engine works, and its silence is limited by `between_tokens`.
        self.started = True
        if reasoning is None:
            reasoning = self._reasoning = self._begin(choice)
        thoughts = [name for name in said if name in REASONING_FIELDS]
        text = reasoning.follow(reasoning_of(delta), is_last=is_end or len(thoughts) < len(said))
        if text is None:
            self._repeated_fields = thoughts
            return None
        if text or thoughts:
            delta |= dict.fromkeys(thoughts or self._repeated_fields, text)
        if isinstance(ids, list):
            choice["token_ids"], self._carried_ids = self._carried_ids, []
        return self._with_head(event)

    def _begin(self, choice: dict[str, Any]) -> FollowingReasoning:
        parts = self._recorder.parts
        reasoning = FollowingReasoning(read_reasoning(parts) if parts is not None else None)
        if choice.get("logprobs"):  # those of events that are left out would be lost
            reasoning.stop_comparing()
        return reasoning

    def _with_head(self, event: dict[str, Any]) -> dict[str, Any]:
        head = self._thoughts.head
        event |= {name: head[name] for name in _HEAD_FIELDS if name in event and name in head}
        for name in _OWN_FIELDS:
            event.pop(name, None)
        return event


def _read_thoughts(parts: StreamParts) -> _Thoughts | str:
    """What has been published; or why the stream cannot begin anew, in a word. Raises MALFORMED_RESPONSE_ERRORS."""
    if literal_count(parts) > MAX_LITERAL_EVENTS:
        return "no-template"
    head: dict[str, Any] = {}
    id_events = 0
    for form in event_forms(parts):
        event = _decode_event(payload(form.event) or b"{}")
        for name in _HEAD_FIELDS:
            if name in event:
                head.setdefault(name, event[name])
        match event.get("choices"):
            case [] | None:
                continue
            case [{"index": 0} as choice]:
                delta = choice.get("delta") or {}
            case _:
                return "choices"
        if choice.get("finish_reason") is not None:
            return "finished"
        if not isinstance(delta, dict):
            return "malformed"
        said = {name for name, value in delta.items() if value not in EMPTY_VALUES} - {"role"}
        if other := said.difference(REASONING_FIELDS):
            return _OBSTACLES.get(other.pop(), "malformed")
        id_events += form.events if "token_ids" in choice else 0
    return _Thoughts(head, id_events)
