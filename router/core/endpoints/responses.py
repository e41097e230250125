"""Answers of /v1/responses: when they are whole, and their event stream from their JSON.

A stream's last event holds the whole response object, so the JSON form of a stream is that object, byte for byte. The
other way round the events are made from the object as vLLM makes them, each text in one piece, where every item of the
answer is of a kind that is known here; nothing is lost then, since the last event holds the object again.

Source: https://platform.openai.com/docs/api-reference/responses-streaming, and vLLM's
entrypoints/openai/responses/streaming_events.py.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.recorded_response import NotKept, Recording, Usage, read_tokens
from router.core.endpoints.recording import whole_body
from router.core.endpoints.typed_events import NOT_AN_EVENT, TypedRecorder, frame, says_something

Json = dict[str, Any]

_LAST: Final = ("response.completed", "response.incomplete")
_FAILED: Final = ("error", "response.failed")
_OPENED: Final = ("message", "reasoning")  # items that have no content yet when they are added
_KNOWN_AT_THE_END: Final = (
    "usage", "incomplete_details", "completed_at", "input_messages", "output_messages", "kv_transfer_params",
    "ec_transfer_params", "metrics",
)  # fmt: skip


class _Details(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str
    output: list[Json]
    incomplete_details: _Details | None = None
    usage: Any = None
    error: Any = None

    @property
    def used(self) -> Usage:
        used = self.usage if isinstance(self.usage, dict) else {}
        return Usage(read_tokens(used.get("input_tokens")), read_tokens(used.get("output_tokens")))


class _Event(msgspec.Struct):
    type: str = ""
    response: msgspec.Raw = msgspec.Raw()
    delta: Any = None
    item: Any = None
    error: Any = None


_event = msgspec.json.Decoder(_Event).decode
_events = msgspec.json.Decoder(list[_Event]).decode
_response = msgspec.json.Decoder(_Response).decode


class ResponsesRecorder(TypedRecorder):
    """The stream of a response. A piece of text or arguments is a token, and so is the name of a called function."""

    __slots__ = ("_response",)

    MARKS = (b'"response"', b'"error"')

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._response: msgspec.Raw | None = None

    def _note(self, data: bytes) -> bool:
        event = _event(data)
        if event.type in _FAILED or event.error is not None:
            self.failure = data
        elif event.type in _LAST:
            self._response = event.response
            self.usage = _response(event.response).used
            return True
        elif not self.started:
            self.started = says_something(event.delta) or (
                isinstance(event.item, dict) and event.item.get("type") not in _OPENED
            )
        return False

    def _may_merge(self, begin: bytes, end: bytes) -> bool:
        return True  # nothing is joined: the last event has the whole answer

    def _answer(self, payloads: list[bytes]) -> bytes | NotKept | None:
        assert self._response is not None  # it is whole
        bad = _verdict(_response(self._response))
        if bad is not None:
            return bad
        if len(_events(b"[%b]" % b",".join(payloads))) != len(payloads):  # none is broken which nobody has read yet
            raise ValueError("an event is no JSON of its own")
        return bytes(self._response)


def record_response(body: bytes, limit: int) -> Recording | NotKept:
    """What is to be stored of a JSON answer with status 200, or why nothing is."""
    try:
        answer = _response(body)
        bad = _verdict(answer)
    except NOT_AN_EVENT:
        return NotKept.ERROR
    return bad if bad is not None else whole_body(body, answer.used, limit)


def _verdict(answer: _Response) -> NotKept | None:
    """As for a chat, an answer that came to its limit of tokens is a whole one."""
    if answer.error is not None or answer.status == "failed":
        return NotKept.ERROR
    why = answer.incomplete_details and answer.incomplete_details.reason
    if answer.status != "completed" and (answer.status, why) != ("incomplete", "max_output_tokens"):
        return NotKept.INCOMPLETE
    return None if any(map(_has_content, answer.output)) else NotKept.EMPTY


def _has_content(item: Json) -> bool:
    if item["type"] == "message":
        return any(says_something(part.get("text") or part.get("refusal")) for part in item["content"])
    return True


def frames_from_response(body: bytes) -> bytes | None:
    """The event stream that says what a JSON answer said; None where there is none without loss."""
    response = msgspec.json.decode(body, type=Json)
    unknown: Json = {name: None for name in _KNOWN_AT_THE_END if name in response}
    begun = {**response, **unknown, "output": [], "status": "in_progress"}
    events: list[Json] = [
        {"response": begun, "type": "response.created"},
        {"response": begun, "type": "response.in_progress"},
    ]
    for index, item in enumerate(response["output"]):
        made = _item_events(item)
        if made is None:
            return None
        events += ({**event, "output_index": index} for event in made)
    events.append({"response": response, "type": "response.completed"})
    return b"".join(frame({**event, "sequence_number": number}) for number, event in enumerate(events))


def _item_events(item: Json) -> list[Json] | None:
    match item:
        case {"type": "message", "content": list(parts)}:
            between = _parts_events(item, parts, "output_text")
            opened = {**item, "content": []}
        case {"type": "reasoning", "content": list(parts), "summary": []} if not item.get("encrypted_content"):
            between = _parts_events(item, parts, "reasoning_text")
            opened = {**item, "content": None}
        case {"type": "function_call", "arguments": str(arguments)}:
            about = {"item_id": item.get("id")}
            between = (
                [{"delta": arguments, **about, "type": "response.function_call_arguments.delta"}] if arguments else []
            )
            done = {"arguments": arguments, **about, "name": item.get("name")}
            between.append({**done, "type": "response.function_call_arguments.done"})
            opened = {**item, "arguments": ""}
        case _:
            return None
    if between is None:
        return None
    opened["status"] = "in_progress"
    return [
        {"item": opened, "type": "response.output_item.added"},
        *between,
        {"item": item, "type": "response.output_item.done"},
    ]


def _parts_events(item: Json, parts: list[Json], kind: str) -> list[Json] | None:
    """The events of an item's parts, which must all be of one kind; None for parts with more to them than text."""
    events: list[Json] = []
    beside: Json = {"logprobs": []} if kind == "output_text" else {}
    for index, part in enumerate(parts):
        if part["type"] != kind or part.get("annotations") or part.get("logprobs"):
            return None
        about = {"content_index": index, "item_id": item["id"]}
        text = part["text"]
        events.append({**about, "part": {**part, "text": "", **beside}, "type": "response.content_part.added"})
        if text:
            events.append({**about, "delta": text, **beside, "type": f"response.{kind}.delta"})
        events.append({**about, "text": text, **beside, "type": f"response.{kind}.done"})
        events.append({**about, "part": part, "type": "response.content_part.done"})
    return events
