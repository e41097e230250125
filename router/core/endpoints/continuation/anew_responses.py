"""A stream of /v1/responses that begins anew at another engine; see router.core.endpoints.continuation.anew_typed."""

from typing import Any, Final

import msgspec

from router.core.endpoints.continuation.anew_typed import AnewRecorder, published_events
from router.core.endpoints.continuation.repeated_reasoning import FollowingReasoning
from router.core.endpoints.endpoint import Recorder
from router.core.endpoints.recording.delta_template import StreamParts, TemplateRun
from router.core.endpoints.recording.json_repair import decode_repaired
from router.core.endpoints.recording.sse import payload
from router.core.endpoints.recording.typed_events import EventReader, TypedRecorder
from router.core.endpoints.requests.malformed import MalformedResponseError

Json = dict[str, Any]

_BEGINNING: Final = ("response.created", "response.in_progress", "response.queued")
_ANSWER_MARKERS: Final = {
    b'"response.output_text.delta"': "text",
    b'"response.function_call_arguments.delta"': "tools",
}
_HEAD_FIELDS: Final = ("id", "created_at", "model")


class _NumberedEvent(msgspec.Struct):
    sequence_number: int | None = None


_decode_number = msgspec.json.Decoder(_NumberedEvent).decode


def begin_response_anew(recorder: Recorder, reader: EventReader) -> Recorder | str:
    """See Streaming.begin_anew. `reader`: a new one."""
    if not isinstance(recorder, TypedRecorder):
        return "endpoint"
    events = published_events(recorder, _ANSWER_MARKERS)
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
    - `items`: those that have ended. `open_item`: the one that has not; `part`: the event that began its part, and
      `text`: what that has said.
    - `is_text_done`: only the end of the part, or of the item, is missing.
    """

    def __init__(self) -> None:
        self.head: Json = {}
        self.items: list[Json] = []
        self.open_item: Json | None = None
        self.part: Json | None = None
        self.text = ""
        self.is_text_done = self.is_part_done = False

    def add(self, event: Json) -> str | None:
        """Takes an event; returns why the stream cannot begin anew, in a word."""
        match event:
            case {"type": kind, "response": dict(response)} if kind in _BEGINNING:
                self.head = {name: response[name] for name in _HEAD_FIELDS if name in response}
            case {"type": "response.output_item.added", "item": {"type": "reasoning"} as item}:
                self.open_item, self.part, self.text = item, None, ""
                self.is_text_done = self.is_part_done = False
            case {"type": "response.output_item.added", "item": {"type": kind}}:
                return "text" if kind == "message" else "tools"
            case {"type": "response.content_part.added" | "response.reasoning_part.added"} if self.part is None:
                self.part = event
            case {"type": "response.reasoning_text.delta", "delta": str(delta)}:
                self.text += delta
            case {"type": "response.reasoning_text.done"}:
                self.is_text_done = True
            case {"type": "response.content_part.done" | "response.reasoning_part.done"}:
                self.is_part_done = True
            case {"type": "response.output_item.done", "item": dict(item)}:
                self.items.append(item)
                self.open_item = None
            case _:
                return "reasoning"  # in a form that is not known, such as a summary
        return None

    def end(self) -> list[Json]:
        """Ends the open item, as incomplete; returns the events."""
        item, part = self.open_item, self.part
        if item is None:
            return []
        self.open_item = None
        index, events, content = len(self.items), list[Json](), list[Json]()
        if part is not None:
            content = [{"type": "reasoning_text", "text": self.text}]
            place: Json = {name: part[name] for name in ("item_id", "output_index", "content_index") if name in part}
            if not self.is_text_done:
                events.append({"type": "response.reasoning_text.done", **place, "text": self.text})
            if not self.is_part_done:
                kind = part["type"].removesuffix("added") + "done"
                events.append({"type": kind, **place, "part": content[0]})
        # Not `completed`: the client may show it, and its next request repeats it.
        self.items.append({**item, "content": content, "status": "incomplete"})
        return [*events, {"type": "response.output_item.done", "output_index": index, "item": self.items[index]}]


class AnewResponses:
    """The second engine's reasoning goes on in the item in which the first one stopped. Its other items come after it.

    Two items of reasoning in a row would be a message of the assistant each when the conversation goes on, which not
    every chat template takes. So if the first engine's has ended, the second one's is left out.
    """

    def __init__(self, said: ReasoningItems, next_number: int | None) -> None:
        self._said = said
        self._next_number = next_number
        self._thinking = FollowingReasoning(said.text)
        self._indexes: dict[Any, int] = {}
        self._next_index = len(said.items) + (said.open_item is not None)
        self._joined: Json | None = None  # the item of both engines
        # Indexes at the second engine. Its last event may have other ids than the events before it.
        self._joined_index: Any = None
        self._left_out: list[Any] = []

    def rewrite(self, event: Json) -> list[Json]:
        if event.get("type") in _BEGINNING:
            return []
        index, response = event.get("output_index"), event.get("response")
        events = [event]
        if index is not None and index not in self._indexes and index not in self._left_out:
            events = self._begin(index, event)
        elif index in self._left_out:
            events = []
        elif index is not None and index == self._joined_index:
            events = self._join(event)
        elif isinstance(response, dict):
            # Of the last event. The response is kept and referred to by the id that the client got first.
            events = [*self._said.end(), event]
            event["response"] = response | self._said.head | {"output": self._output(response.get("output"))}
        for each in events:
            if each is event and index in self._indexes:
                each["output_index"] = self._indexes[index]
        return [self._numbered(each) for each in events]

    def _begin(self, index: Any, event: Json) -> list[Json]:
        """The events for the first one of an item."""
        item, said = event.get("item"), self._said
        if isinstance(item, dict) and item.get("type") == "reasoning":
            if said.open_item is not None and not said.is_text_done:
                self._joined, self._joined_index = said.open_item, index
                said.open_item = None
                self._indexes[index] = len(said.items)
                return []
            if said.open_item is not None or said.items:
                self._left_out.append(index)
                return said.end()
        ended = said.end()
        self._indexes[index] = self._next_index
        self._next_index += 1
        return [*ended, event]

    def _join(self, event: Json) -> list[Json]:
        """The events for one of the item of both engines, without what the second one repeats."""
        assert self._joined is not None  # as its index is
        match event:
            case {"item": dict(item)}:
                return [event | {"item": self._whole(item), "output_index": len(self._said.items)}]
        event["item_id"] = self._joined.get("id")
        match event:
            case {"type": "response.content_part.added" | "response.reasoning_part.added"} if self._said.part:
                return []
            case {"type": "response.reasoning_text.delta", "delta": str(delta)}:
                text = self._thinking.follow(delta, is_last=False)
                event["delta"] = text
                self._said.text += text or ""
                return [event] if text else []
            case {"type": "response.reasoning_text.done"}:
                rest = self._thinking.follow("", is_last=True)
                self._said.text += rest or ""
                event["text"] = self._said.text
                place = {name: value for name, value in event.items() if name not in ("type", "text")}
                place["output_index"] = len(self._said.items)
                return [{"type": "response.reasoning_text.delta", **place, "delta": rest}, event] if rest else [event]
            case {"part": dict(part)}:
                event["part"] = part | {"text": self._said.text}
        return [event]

    def _whole(self, item: Json) -> Json:
        assert self._joined is not None  # as its index is
        content = item.get("content")
        parts = content[1:] if isinstance(content, list) else []
        whole = {"type": "reasoning_text", "text": self._said.text}
        return item | {"id": self._joined.get("id"), "content": [whole, *parts]}

    def _output(self, items: Any) -> list[Json]:
        if not isinstance(items, list):
            raise MalformedResponseError("the response has no list of items")
        output = list(self._said.items)
        for index, item in enumerate(items):
            if index not in self._left_out:
                output.append(self._whole(item) if index == self._joined_index else item)
        return output

    def _numbered(self, event: Json) -> Json:
        if self._next_number is not None:
            event["sequence_number"] = self._next_number
            self._next_number += 1
        return event
