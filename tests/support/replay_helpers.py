"""Responses and their replays, for the tests of replaying."""

import json
from typing import Any, Final

from msgspec.structs import replace

from router.core.endpoints.chat import CHAT
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.core.endpoints.recording.replay import replay
from router.core.endpoints.recording.sse import DONE, payload, split_events
from router.core.types import Entry
from tests.support.endpoints import record_body
from tests.support.factories import (
    chat,
    chat_event,
    choice_delta,
    completion,
    entry_from,
    record_stream,
    recorded_response,
    sse_stream,
)

CHAT_REQUEST: Final = chat()
STREAM: Final = chat(stream=True)
STREAM_USAGE: Final = chat(stream=True, stream_options={"include_usage": True})
LIMIT: Final = 1 << 20


def tool_call_event(index: int, **fields: Any) -> dict[str, Any]:
    return chat_event(choice_delta(tool_calls=[{"index": index, **fields}]))


TOOL_CALLS: Final = [
    {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": "é \\n"}'}},
    {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
]


def replay_json(recording: RecordedResponse, request: InferenceRequest = CHAT_REQUEST) -> Any:
    """The JSON that a client without streaming receives from a recording."""
    return json.loads(replay(recording, replace(request, stream=False)) or b"null")


def record_and_replay_json(*events: Any, inference_request: InferenceRequest = STREAM) -> Any:
    """The JSON response that the entry of a stream gives; None if it gives none."""
    return replay_json(
        recorded_response(record_stream(sse_stream(*events), endpoint=inference_request.endpoint), inference_request)
    )


def stream_events(sent: bytes | None) -> list[Any]:
    """The events of a stream, which must end with `[DONE]`."""
    assert sent is not None
    *frames, done = split_events(sent)
    assert done == DONE
    return [json.loads(payload(frame) or b"") for frame in frames]


def entry_of_body(answer: Any, inference_request: InferenceRequest = CHAT_REQUEST) -> Entry:
    recording = record_body(inference_request, json.dumps(answer).encode(), LIMIT)
    assert isinstance(recording, RecordedResponse), recording
    return entry_from(recording)


def chat_response(*choices: dict[str, Any], **beside: Any) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion", "created": 7, "model": "m", "choices": [*choices], **beside}


def response_choice(index: int = 0, finish: str = "stop", *, beside: Any = None, **message: Any) -> dict[str, Any]:
    message = {"role": "assistant", **message}
    return {"index": index, "message": message, "finish_reason": finish, **(beside or {})}


def without_nulls(value: Any) -> Any:
    """JSON without its nulls: a null field means the same as an absent one."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def round_trip(body: Any, inference_request: InferenceRequest = CHAT_REQUEST) -> Any:
    """A JSON response after a replay as a stream, whose recording is replayed as JSON."""
    streaming = completion(stream=True, n=inference_request.fields.get("n", 1))
    if inference_request.endpoint is CHAT:
        streaming = chat(stream=True, n=inference_request.fields.get("n", 1))
    assert inference_request.endpoint.streaming is not None
    sent = inference_request.endpoint.streaming.frames_from_body(json.dumps(body).encode(), True)
    assert sent is not None
    return replay_json(
        recorded_response(record_stream(sent, endpoint=inference_request.endpoint), streaming), streaming
    )
