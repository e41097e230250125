"""/v1/messages: when a response is complete, and the conversion of stream and JSON into each other.

A stream begins with `message_start`, which has the message without its content. The content blocks follow, each with a
start, deltas and a stop. `message_delta` has the stop reason and the usage; `message_stop` is the end. Known deltas are
joined. An unknown event or delta, or tool arguments that are not JSON (cut off at the token limit), has no place in
JSON; such an entry serves streams only.

Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming, and vLLM's entrypoints/anthropic/serving.py.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.continuation.anew_messages import begin_message_anew
from router.core.endpoints.endpoint import Conversation, Endpoint, InferenceRequest, Recorder, Streaming
from router.core.endpoints.errors.anthropic_errors import ANTHROPIC_ERRORS
from router.core.endpoints.recording.answer_shapes import AnswerShapes
from router.core.endpoints.recording.delta_merge import may_merge
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse, ReportedUsage
from router.core.endpoints.recording.recording import record_json
from router.core.endpoints.recording.typed_events import TypedRecorder, encode_event, is_nonempty
from router.core.endpoints.recording.usage import parse_token_count
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS, MalformedResponseError
from router.core.endpoints.requests.request_fields import InputMessage, RequestFields, no_messages_error
from router.core.endpoints.requests.server_state import find_messages_state
from router.errors import ApiError

Json = dict[str, Any]

_DELTA_FIELDS: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""By the type of a delta: the field that has its text. In the block, the field of the same name has the joined text."""

_TEXT_FIELDS: Final = frozenset(("text", "thinking", "partial_json"))
_MERGED_DELTAS: Final = ("text_delta", "thinking_delta", "input_json_delta")

_EVENT_FIELDS: Final = {
    "message_start": {"type", "message"},
    "content_block_start": {"type", "index", "content_block"},
    "content_block_delta": {"type", "index", "delta"},
    "content_block_stop": {"type", "index"},
    "message_delta": {"type", "delta", "usage"},
    "message_stop": {"type"},
    "ping": {"type"},
}
"""By the type of an event: its fields for which JSON has a place. With any other field, a stream has no JSON form."""


# Tokens of the prompt that `input_tokens` does not include.
_CACHED_TOKEN_FIELDS: Final = ("cache_creation_input_tokens", "cache_read_input_tokens")


class _MessagesFields(RequestFields, kw_only=True):
    max_tokens: int
    messages: list[InputMessage] = msgspec.field(default_factory=list)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None

    def validate(self) -> ApiError | None:
        return None if self.messages else no_messages_error()


class _MessagesResponse(msgspec.Struct):
    type: str = ""
    content: list[Json] = msgspec.field(default_factory=list)
    stop_reason: str | None = None
    usage: Any = None
    error: Any = None


class _MessagesEvent(msgspec.Struct):
    type: str = ""
    message: _MessagesResponse | None = None
    content_block: Json | None = None
    delta: Json | None = None
    usage: Any = None
    error: Any = None
    object: Any = None


_decode_event = msgspec.json.Decoder(_MessagesEvent).decode
_decode_events = msgspec.json.Decoder(list[Json]).decode
_decode_message = msgspec.json.Decoder(_MessagesResponse).decode
_encode = msgspec.json.Encoder().encode


def _merge_usage(value: Any, previous: ReportedUsage | None = None) -> ReportedUsage:
    # `message_start` and `message_delta` may both have a usage; the later one may lack `input_tokens`.
    previous = previous or ReportedUsage()
    if not isinstance(value, dict):
        return previous
    prompt, completion = previous.prompt_tokens, value.get("output_tokens")
    if value.get("input_tokens") is not None:
        prompt = sum(parse_token_count(value.get(name)) for name in ("input_tokens", *_CACHED_TOKEN_FIELDS))
    return ReportedUsage(prompt, previous.completion_tokens if completion is None else parse_token_count(completion))


class MessagesReader:
    """See EventReader. A piece of text, thinking or arguments counts as a token, and a tool's name."""

    def __init__(self) -> None:
        self.non_text_markers: tuple[bytes, ...] = (
            b'"message_start"', b'"message_delta"', b'"message_stop"', b'"error"',
        )  # fmt: skip
        self.started = False
        self.failure: bytes | None = None
        self.usage: ReportedUsage | None = None
        self._stop_reason: Any = None

    def on_event(self, data: bytes) -> bool:
        event = _decode_event(data)
        if event.error is not None or "error" in (event.type, event.object):
            self.failure = data
        elif event.type == "message_start" and event.message is not None:
            self.usage = _merge_usage(event.message.usage)
        elif event.type == "message_delta":
            self.usage = _merge_usage(event.usage, self.usage)
            self._stop_reason = (event.delta or {}).get("stop_reason")
        elif event.type == "content_block_start":
            self.started = self.started or _has_content(event.content_block or {})
        elif event.type == "content_block_delta":
            delta = event.delta or {}
            self.started = self.started or any(name != "type" and is_nonempty(delta[name]) for name in delta)
        return event.type == "message_stop"

    def may_merge(self, begin: bytes, end: bytes) -> bool:
        return may_merge(begin, end, _TEXT_FIELDS, _text_container)

    def build_body(self, payloads: list[bytes]) -> bytes | NotStoredReason | None:
        if self._stop_reason is None:
            return NotStoredReason.INCOMPLETE
        if not self.started:
            return NotStoredReason.EMPTY
        # One call of the decoder for all; payloads that are only valid together would pass, so compare the numbers.
        events = _decode_events(b"[%b]" % b",".join(payloads))
        if len(events) != len(payloads):
            raise MalformedResponseError("an event is not a JSON object")
        message = _join_events(events)
        return None if message is None else _encode(message)


def _text_container(event: Any) -> Any:
    """See delta_merge.FindContainer."""
    delta = event.pop("delta", None)
    if type(delta) is not dict or event.pop("type", None) != "content_block_delta":
        return None
    return delta if delta.pop("type", None) in _MERGED_DELTAS and event.keys() == {"index"} else None


def record_message(_: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    try:
        message = _decode_message(body)
    except MALFORMED_RESPONSE_ERRORS:
        return NotStoredReason.ERROR
    if message.type != "message" or message.error is not None:
        return NotStoredReason.ERROR
    if message.stop_reason is None:
        return NotStoredReason.INCOMPLETE
    if not any(map(_has_content, message.content)):
        return NotStoredReason.EMPTY
    return record_json(body, _merge_usage(message.usage), limit)


def _has_content(block: Json) -> bool:
    return any(name != "type" and is_nonempty(value) for name, value in block.items())


def _join_events(events: list[Json]) -> Json | None:
    """The message with all the information of the events; None if no JSON has it.

    Raises MalformedResponseError for events of another form than those of a message.
    """
    message = _started_message(events)
    if message["content"]:
        return None  # it would be replaced by the blocks
    usage: Json = _object_or_empty(message.get("usage"))
    blocks: dict[int, Json] = {}
    arguments: dict[int, str] = {}  # by index, the JSON text of a tool's `input`
    for event in events:
        kind = event.get("type")
        if not isinstance(kind, str):
            raise MalformedResponseError("an event has no type")
        if event.keys() - _EVENT_FIELDS.get(kind, set()):
            return None
        match event:
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                if index in blocks:
                    return None
                blocks[index] = {**block}
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)}:
                if index not in blocks:
                    raise MalformedResponseError("a delta of a block that has not begun")
                if not _join_delta(blocks[index], arguments, index, delta):
                    return None
            case {"type": "message_delta", "delta": dict(delta)}:
                message |= delta
                usage |= {
                    name: value for name, value in _object_or_empty(event.get("usage")).items() if value is not None
                }
            case {"type": "content_block_start" | "content_block_delta" | "message_delta"}:
                raise MalformedResponseError("an event has no index, or no block or delta")
    for index, text in arguments.items():
        try:
            blocks[index]["input"] = msgspec.json.decode(text)
        except msgspec.DecodeError:  # cut off at the token limit
            return None
    message["content"] = [blocks[index] for index in sorted(blocks)]
    return {**message, "usage": usage}


def _started_message(events: list[Json]) -> Json:
    started = [event for event in events if event.get("type") == "message_start"]
    match started:
        case [{"message": {"content": _} as message}]:
            return {**message}
    raise MalformedResponseError("the stream has no message_start, or several, or one without content")


def _object_or_empty(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _join_delta(block: Json, arguments: dict[int, str], index: int, delta: Json) -> bool:
    """Adds a delta to its block or to `arguments`; False if the delta is unknown or has a field besides its text."""
    match delta:
        case {"type": "input_json_delta", "partial_json": str(piece)} if len(delta) == 2:
            if text := arguments.get(index, "") + piece:  # without any text, the block keeps its `input`
                arguments[index] = text
            return True
    kind = delta.get("type")
    if not isinstance(kind, str):
        raise MalformedResponseError("a delta has no type")
    name = _DELTA_FIELDS.get(kind, "")
    value = delta.get(name)
    if not isinstance(value, str) or len(delta) != 2:
        return False
    text = block.get(name) or ""
    if not isinstance(text, str):
        return False
    block[name] = text + value
    return True


def frames_from_message(body: bytes, _include_usage: bool) -> bytes | None:
    """The event stream with all the information of a JSON response; None if a block has an unknown form.

    The events always have the usage.
    """
    message = msgspec.json.decode(body, type=Json)
    usage = message.pop("usage", None) or {}
    content = message.pop("content", None)
    if not (isinstance(content, list) and isinstance(usage, dict) and "stop_reason" in message):
        return None
    last = {"stop_reason": message.pop("stop_reason"), "stop_sequence": message.pop("stop_sequence", None)}
    first = {**message, "content": [], **dict.fromkeys(last), "usage": {**usage, "output_tokens": 0}}
    events: list[Json] = [{"type": "message_start", "message": first}]
    for index, block in enumerate(content):
        block_events = _block_start_and_deltas(block)
        if block_events is None:
            return None
        start, *deltas = block_events
        events.append({"type": "content_block_start", "content_block": start, "index": index})
        events += ({"type": "content_block_delta", "delta": delta, "index": index} for delta in deltas)
        events.append({"type": "content_block_stop", "index": index})
    events += ({"type": "message_delta", "delta": last, "usage": usage}, {"type": "message_stop"})
    return b"".join(map(encode_event, events))


def _block_start_and_deltas(block: Any) -> list[Json] | None:
    """The `content_block` of a block's start event, then its deltas; None for an unknown form of a block."""
    match block:
        case {"type": "text", "text": str(text)}:
            return [{**block, "text": ""}, *([{"type": "text_delta", "text": text}] if text else [])]
        case {"type": "thinking", "thinking": str(thinking)}:
            start = {**block, "thinking": ""}
            signature = start.pop("signature", None)
            deltas = [{"type": "thinking_delta", "thinking": thinking}] if thinking else []
            return [start, *deltas, *([{"type": "signature_delta", "signature": signature}] if signature else [])]
        case {"type": "tool_use", "input": dict(arguments)}:
            return [{**block, "input": {}}, {"type": "input_json_delta", "partial_json": _encode(arguments).decode()}]
        case {"type": "redacted_thinking"}:  # it has no deltas: its data is encrypted, and is sent in the start event
            return [block]
    return None


def _begin_anew(recorder: Recorder) -> Recorder | str:
    return begin_message_anew(recorder, MessagesReader())


def _make_recorder(limit: int, _: AnswerShapes | None) -> TypedRecorder:
    return TypedRecorder(MessagesReader(), limit)


MESSAGES: Final = Endpoint(
    path="/v1/messages",
    operation="chat",
    accepts_x_api_key=True,  # Anthropic's clients send it
    fields_type=_MessagesFields,
    input=Conversation("messages", system_field="system"),
    find_server_state=find_messages_state,
    samples=True,
    applies_logit_fields=False,
    may_fall_back=True,
    record_body=record_message,
    streaming=Streaming(
        needs_usage_option=False,
        make_recorder=_make_recorder,
        replay_end=b"",
        frames_from_body=frames_from_message,
        begin_anew=_begin_anew,
        # As Anthropic sends it; its clients skip it, also before `message_start`.
        heartbeat=b'event: ping\ndata: {"type": "ping"}\n\n',
    ),
    errors=ANTHROPIC_ERRORS,
)
