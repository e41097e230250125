"""/v1/responses: when a response is complete, and the conversion of stream and JSON into each other.

The final event of a stream has the complete response object, so the JSON form of a stream is this object, byte for
byte. From JSON, the events are made as vLLM makes them, with each text in one piece, if all items of the output are of
a known form. Nothing is lost then, since the final event has the object again.

Source: https://platform.openai.com/docs/api-reference/responses-streaming, and vLLM's
entrypoints/openai/responses/streaming_events.py.
"""

from functools import partial
from typing import Any, Final

import msgspec

from router.core.endpoints.continuation.anew_responses import begin_response_anew
from router.core.endpoints.endpoint import Conversation, Endpoint, InferenceRequest, Recorder, Streaming
from router.core.endpoints.errors.responses_errors import RESPONSES_ERRORS
from router.core.endpoints.recording.answer_shapes import AnswerShapes
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse, ReportedUsage
from router.core.endpoints.recording.recording import record_json
from router.core.endpoints.recording.typed_events import TypedRecorder, encode_event, is_nonempty
from router.core.endpoints.recording.usage import parse_token_count
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS, MalformedResponseError
from router.core.endpoints.requests.request_fields import RequestFields, missing_field_error
from router.core.endpoints.requests.server_state import find_server_state
from router.errors import ApiError

Json = dict[str, Any]

_FINAL_EVENTS: Final = ("response.completed", "response.incomplete")
_ERROR_EVENTS: Final = ("error", "response.failed")
_ITEMS_ADDED_EMPTY: Final = ("message", "reasoning")  # items whose `output_item.added` event has no content yet
# Fields of the response object that are null until it is complete.
_FINAL_FIELDS: Final = (
    "usage", "incomplete_details", "completed_at", "input_messages", "output_messages", "kv_transfer_params",
    "ec_transfer_params", "metrics",
)  # fmt: skip


class _InputItem(msgspec.Struct):
    role: str | None = None
    content: str | list[dict[str, Any]] | None = None


class _ResponsesFields(RequestFields):
    input: str | list[_InputItem] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None

    def validate(self) -> ApiError | None:
        return missing_field_error("input") if self.input in (None, []) else None

    def max_answer_tokens(self) -> int | None:
        return self.max_output_tokens


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
    object: Any = None


_decode_event = msgspec.json.Decoder(_ResponsesEvent).decode
_decode_events = msgspec.json.Decoder(list[_ResponsesEvent]).decode
_decode_response = msgspec.json.Decoder(_ResponsesObject).decode


class ResponsesReader:
    """See EventReader. A piece of text or arguments counts as a token, and the name of a called function."""

    def __init__(self) -> None:
        self.non_text_markers: tuple[bytes, ...] = (b'"response"', b'"error"')
        self.started = False
        self.failure: bytes | None = None
        self.usage: ReportedUsage | None = None
        self._final_response: msgspec.Raw | None = None

    def on_event(self, data: bytes) -> bool:
        event = _decode_event(data)
        if event.type in _ERROR_EVENTS or event.error is not None or event.object == "error":
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

    def may_merge(self, begin: bytes, end: bytes) -> bool:
        return True  # nothing is joined: the final event has the complete response

    def build_body(self, payloads: list[bytes]) -> bytes | NotStoredReason | None:
        assert self._final_response is not None  # set by the final event
        bad = _not_stored_reason(_decode_response(self._final_response))
        if bad is not None:
            return bad
        # The events that matched a template have not been decoded yet. One call of the decoder for all; payloads that
        # are only valid together would pass, so compare the numbers.
        if len(_decode_events(b"[%b]" % b",".join(payloads))) != len(payloads):
            raise MalformedResponseError("an event is not a JSON object")
        return bytes(self._final_response)


def record_response(_: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    try:
        response = _decode_response(body)
        bad = _not_stored_reason(response)
    except MALFORMED_RESPONSE_ERRORS:
        return NotStoredReason.ERROR
    return bad if bad is not None else record_json(body, response.reported_usage, limit)


def _not_stored_reason(response: _ResponsesObject) -> NotStoredReason | None:
    if response.error is not None or response.status == "failed":
        return NotStoredReason.ERROR
    why = response.incomplete_details and response.incomplete_details.reason
    # As for a chat, a response that ends at its token limit is complete.
    if response.status != "completed" and (response.status, why) != ("incomplete", "max_output_tokens"):
        return NotStoredReason.INCOMPLETE
    return None if any(map(_has_content, response.output)) else NotStoredReason.EMPTY


def _has_content(item: Json) -> bool:
    match item:
        case {"type": "message", "content": list(parts)} if all(isinstance(part, dict) for part in parts):
            return any(is_nonempty(part.get("text") or part.get("refusal")) for part in parts)
        case {"type": kind} if kind != "message":
            return True
    raise MalformedResponseError("an item of the output has no type, or a message has no content")


def frames_from_response(body: bytes, _include_usage: bool) -> bytes | None:
    """The event stream with all the information of a JSON response; None if an item has an unknown form.

    The final event always has the usage.
    """
    response = msgspec.json.decode(body, type=Json)
    output = response.get("output")
    if not isinstance(output, list):
        return None
    unset: Json = {name: None for name in _FINAL_FIELDS if name in response}
    initial = {**response, **unset, "output": [], "status": "in_progress"}
    events: list[Json] = [
        {"response": initial, "type": "response.created"},
        {"response": initial, "type": "response.in_progress"},
    ]
    for index, item in enumerate(output):
        item_events = _item_events(item)
        if item_events is None:
            return None
        events += ({**event, "output_index": index} for event in item_events)
    events.append({"response": response, "type": "response.completed"})
    return b"".join(encode_event({**event, "sequence_number": number}) for number, event in enumerate(events))


def _item_events(item: Any) -> list[Json] | None:
    """The events of an item of the output; None for an item of an unknown form."""
    match item:
        case {"type": "message", "content": list(parts)}:
            content_events = _parts_events(item, parts, "output_text")
            added = {**item, "content": []}
        case {"type": "reasoning", "content": list(parts), "summary": []} if not item.get("encrypted_content"):
            content_events = _parts_events(item, parts, "reasoning_text")
            added = {**item, "content": None}
        case {"type": "function_call", "arguments": str(arguments)}:
            ids = {"item_id": item.get("id")}
            content_events = (
                [{"delta": arguments, **ids, "type": "response.function_call_arguments.delta"}] if arguments else []
            )
            done = {"arguments": arguments, **ids, "name": item.get("name")}
            content_events.append({**done, "type": "response.function_call_arguments.done"})
            added = {**item, "arguments": ""}
        case _:
            return None
    if content_events is None:
        return None
    added["status"] = "in_progress"
    return [
        {"item": added, "type": "response.output_item.added"},
        *content_events,
        {"item": item, "type": "response.output_item.done"},
    ]


def _parts_events(item: Json, parts: list[Any], kind: str) -> list[Json] | None:
    """The events of an item's parts; None if a part is not of type `kind`, or has annotations or log probabilities."""
    events: list[Json] = []
    logprobs: Json = {"logprobs": []} if kind == "output_text" else {}
    for index, part in enumerate(parts):
        match part:
            case {"type": part_kind, "text": str(text)} if part_kind == kind and "id" in item:
                if part.get("annotations") or part.get("logprobs"):
                    return None
            case _:
                return None
        ids = {"content_index": index, "item_id": item["id"]}
        events.append({**ids, "part": {**part, "text": "", **logprobs}, "type": "response.content_part.added"})
        if text:
            events.append({**ids, "delta": text, **logprobs, "type": f"response.{kind}.delta"})
        events.append({**ids, "text": text, **logprobs, "type": f"response.{kind}.done"})
        events.append({**ids, "part": part, "type": "response.content_part.done"})
    return events


def _begin_anew(recorder: Recorder) -> Recorder | str:
    return begin_response_anew(recorder, ResponsesReader())


def _make_recorder(limit: int, _: AnswerShapes | None) -> TypedRecorder:
    return TypedRecorder(ResponsesReader(), limit)


RESPONSES: Final = Endpoint(
    path="/v1/responses",
    operation="chat",
    fields_type=_ResponsesFields,
    input=Conversation("input", system_field="instructions"),
    echoed_fields={
        "user": "echoed in the response",
        "metadata": "echoed in the response",
        "service_tier": "echoed in the response",
        "store": "echoed in the response by OpenAI; also stores the response for later requests to refer to",
        "request_id": "becomes the response's id",
    },
    find_server_state=partial(find_server_state, ("previous_response_id", "conversation", "background", "prompt")),
    samples=True,
    applies_logit_fields=True,
    may_fall_back=True,
    record_body=record_response,
    streaming=Streaming(
        needs_usage_option=False,
        make_recorder=_make_recorder,
        replay_end=b"",
        frames_from_body=frames_from_response,
        begin_anew=_begin_anew,
    ),
    errors=RESPONSES_ERRORS,
)
