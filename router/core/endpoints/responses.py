"""Answers of /v1/responses: when they are whole, and their event stream from their JSON.

A stream's last event holds the whole response object, so the JSON form of a stream is that object, byte for byte. The
other way round the events are made from the object as vLLM makes them, each text in one piece, where every item of the
answer is of a kind that is known here; nothing is lost then, since the last event holds the object again.

Source: https://platform.openai.com/docs/api-reference/responses-streaming, and vLLM's
entrypoints/openai/responses/streaming_events.py.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.recorded_response import NotStoredReason, RecordedResponse, ReportedUsage, parse_token_count
from router.core.endpoints.recording import record_json
from router.core.endpoints.typed_events import TYPED_EVENT_ERRORS, TypedRecorder, encode_event, is_nonempty

Json = dict[str, Any]

_FINAL_EVENTS: Final = ("response.completed", "response.incomplete")
_ERROR_EVENTS: Final = ("error", "response.failed")
_ITEMS_ADDED_EMPTY: Final = ("message", "reasoning")  # items that have no content yet when they are added
_FINAL_FIELDS: Final = (
    "usage", "incomplete_details", "completed_at", "input_messages", "output_messages", "kv_transfer_params",
    "ec_transfer_params", "metrics",
)  # fmt: skip


class _Details(msgspec.Struct):
    reason: str | None = None


class _ResponsesObject(msgspec.Struct):
    status: str
    output: list[Json]
    incomplete_details: _Details | None = None
    usage: Any = None
    error: Any = None

    @property
    def reported_usage(self) -> ReportedUsage:
        used = self.usage if isinstance(self.usage, dict) else {}
        return ReportedUsage(parse_token_count(used.get("input_tokens")), parse_token_count(used.get("output_tokens")))


class _ResponsesEvent(msgspec.Struct):
    type: str = ""
    response: msgspec.Raw = msgspec.Raw()
    delta: Any = None
    item: Any = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_ResponsesEvent).decode
_decode_events = msgspec.json.Decoder(list[_ResponsesEvent]).decode
_decode_response = msgspec.json.Decoder(_ResponsesObject).decode


class ResponsesRecorder(TypedRecorder):
    """The stream of a response. A piece of text or arguments is a token, and so is the name of a called function."""

    __slots__ = ("_final_response",)

    NON_TEXT_MARKERS = (b'"response"', b'"error"')

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._final_response: msgspec.Raw | None = None

    def _on_event(self, data: bytes) -> bool:
        event = _decode_event(data)
        if event.type in _ERROR_EVENTS or event.error is not None:
            self.failure = data
        elif event.type in _FINAL_EVENTS:
            self._final_response = event.response
            self.usage = _decode_response(event.response).reported_usage
            return True
        elif not self.started:
            self.started = is_nonempty(event.delta) or (
                isinstance(event.item, dict) and event.item.get("type") not in _ITEMS_ADDED_EMPTY
            )
        return False

    def _may_merge(self, begin: bytes, end: bytes) -> bool:
        return True  # nothing is joined: the last event has the whole answer

    def _build_body(self, payloads: list[bytes]) -> bytes | NotStoredReason | None:
        assert self._final_response is not None  # it is whole
        bad = _not_stored_reason(_decode_response(self._final_response))
        if bad is not None:
            return bad
        if len(_decode_events(b"[%b]" % b",".join(payloads))) != len(
            payloads
        ):  # none is broken which nobody has read yet
            raise ValueError("an event is no JSON of its own")
        return bytes(self._final_response)


def record_response(body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    """What is to be stored of a JSON answer with status 200, or why nothing is."""
    try:
        answer = _decode_response(body)
        bad = _not_stored_reason(answer)
    except TYPED_EVENT_ERRORS:
        return NotStoredReason.ERROR
    return bad if bad is not None else record_json(body, answer.reported_usage, limit)


def _not_stored_reason(answer: _ResponsesObject) -> NotStoredReason | None:
    """As for a chat, an answer that came to its limit of tokens is a whole one."""
    if answer.error is not None or answer.status == "failed":
        return NotStoredReason.ERROR
    why = answer.incomplete_details and answer.incomplete_details.reason
    if answer.status != "completed" and (answer.status, why) != ("incomplete", "max_output_tokens"):
        return NotStoredReason.INCOMPLETE
    return None if any(map(_has_content, answer.output)) else NotStoredReason.EMPTY


def _has_content(item: Json) -> bool:
    if item["type"] == "message":
        return any(is_nonempty(part.get("text") or part.get("refusal")) for part in item["content"])
    return True


def frames_from_response(body: bytes) -> bytes | None:
    """The event stream that says what a JSON answer said; None where there is none without loss."""
    response = msgspec.json.decode(body, type=Json)
    unknown: Json = {name: None for name in _FINAL_FIELDS if name in response}
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
    return b"".join(encode_event({**event, "sequence_number": number}) for number, event in enumerate(events))


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
