"""A stream of /v1/responses that begins anew at another engine; see router.core.endpoints.continuation.anew_typed."""

from typing import Any, Final

import msgspec

from router.core.endpoints.continuation.anew_typed import AnewRecorder, published_events
from router.core.endpoints.endpoint import Recorder
from router.core.endpoints.recording.delta_template import StreamParts, TemplateRun
from router.core.endpoints.recording.json_repair import decode_repaired
from router.core.endpoints.recording.sse import payload
from router.core.endpoints.recording.typed_events import EventReader, TypedRecorder
from router.core.endpoints.requests.malformed import MalformedResponseError

Json = dict[str, Any]

_BEGINNING: Final = ("response.created", "response.in_progress", "response.queued")
_HEAD_FIELDS: Final = ("id", "created_at", "model")


class _NumberedEvent(msgspec.Struct):
    sequence_number: int | None = None


_decode_number = msgspec.json.Decoder(_NumberedEvent).decode


def begin_response_anew(recorder: Recorder, reader: EventReader) -> Recorder | str:
    """See Streaming.begin_anew. `reader`: a new one."""
    if not isinstance(recorder, TypedRecorder):
        return "endpoint"
    events = published_events(recorder)
    if isinstance(events, str):
        return events
    said = ReasoningItems()
    for event in events:
        if (obstacle := said.add(event)) is not None:
            return obstacle
    assert recorder.parts is not None  # else its events could not be read
    return AnewRecorder(recorder, reader, AnewResponses(said, _next_number(recorder.parts)))


def _next_number(parts: StreamParts) -> int | None:
    """The sequence number of the next event; None if the events have none."""
    last = None
    for part in parts.parts:
        if isinstance(part, TemplateRun):
            if part.texts and parts.templates[part.template_index].is_numbered:
                last = part.first_number + len(part.texts) - 1
        elif data := payload(part):
            number = decode_repaired(_decode_number, data).sequence_number
            last = number if number is not None else last
    return None if last is None else last + 1


class ReasoningItems:
    """What the client has: items of reasoning.

    - `head`: the fields of the response object that stay.
    - `items`: those that have ended. `open_item`: the one that has not; of it, `content` has the parts that have ended,
      `part` the event that began the open one, and `text` the text of that, `is_text_done` if it has ended.
    """

    def __init__(self) -> None:
        self.head: Json = {}
        self.items: list[Json] = []
        self.open_item: Json | None = None
        self.content: list[Json] = []
        self.part: Json | None = None
        self.text = ""
        self.is_text_done = False

    def add(self, event: Json) -> str | None:
        """Takes an event; returns why the stream cannot begin anew, in a word."""
        match event:
            case {"type": kind, "response": dict(response)} if kind in _BEGINNING:
                self.head = {name: response[name] for name in _HEAD_FIELDS if name in response}
            case {"type": "response.output_item.added", "item": {"type": "reasoning"} as item}:
                self.open_item, self.content = item, []
            case {"type": "response.output_item.added", "item": {"type": kind}}:
                return "text" if kind == "message" else "tools"
            case {"type": "response.content_part.added" | "response.reasoning_part.added"}:
                self.part, self.text, self.is_text_done = event, "", False
            case {"type": "response.reasoning_text.delta", "delta": str(delta)}:
                self.text += delta
            case {"type": "response.reasoning_text.done"}:
                self.is_text_done = True
            case {"type": "response.content_part.done" | "response.reasoning_part.done"}:
                self._end_part()
            case {"type": "response.output_item.done", "item": dict(item)}:
                self.items.append(item)
                self.open_item = None
            case _:
                return "reasoning"  # in a form that is not known, such as a summary
        return None

    def _end_part(self) -> Json:
        ended = {"type": "reasoning_text", "text": self.text}
        self.content.append(ended)
        self.part = None
        return ended

    def end(self) -> list[Json]:
        """Ends the open item, as incomplete; returns the events."""
        item, part = self.open_item, self.part
        if item is None:
            return []
        self.open_item = None
        index, events = len(self.items), list[Json]()
        if part is not None:
            place: Json = {name: part[name] for name in ("item_id", "output_index", "content_index") if name in part}
            if not self.is_text_done:
                events.append({"type": "response.reasoning_text.done", **place, "text": self.text})
            kind = part["type"].removesuffix("added") + "done"
            events.append({"type": kind, **place, "part": self._end_part()})
        # Not `completed`: the client may show it, and its next request repeats it.
        self.items.append({**item, "content": self.content, "status": "incomplete"})
        return [*events, {"type": "response.output_item.done", "output_index": index, "item": self.items[index]}]


class AnewResponses:
    """The reasoning of the first engine ends as an incomplete item. The output of the second one comes after it."""

    def __init__(self, said: ReasoningItems, next_number: int | None) -> None:
        self._said = said
        self._next_number = next_number
        self._shift = len(said.items) + (said.open_item is not None)

    def rewrite(self, event: Json) -> list[Json]:
        if event.get("type") in _BEGINNING:
            return []
        index, response = event.get("output_index"), event.get("response")
        if isinstance(index, int):
            event["output_index"] = index + self._shift
        # Before the second engine's first event: until that, a third one could still have gone on in its place.
        before = self._said.end()
        if isinstance(response, dict):
            # Of the last event. The response is kept and referred to by the id that the client got first.
            output = response.get("output")
            if not isinstance(output, list):
                raise MalformedResponseError("the response has no list of items")
            event["response"] = response | self._said.head | {"output": [*self._said.items, *output]}
        return [self._numbered(each) for each in (*before, event)]

    def _numbered(self, event: Json) -> Json:
        if self._next_number is not None:
            event["sequence_number"] = self._next_number
            self._next_number += 1
        return event
