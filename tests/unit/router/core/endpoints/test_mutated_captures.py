"""Responses of real vLLM with one or two values replaced or removed: they are stored or not, and nothing raises."""

import json
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.endpoints.recording.answer_shapes import AnswerShapes
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.replay import replay
from router.core.endpoints.recording.sse import payload, split_events
from tests.support.endpoints import record_body
from tests.support.examples import EXAMPLES
from tests.support.factories import JSON_VALUES, load_capture

LIMIT: Final = 1 << 20
STREAMS: Final = (
    "chat-logprobs-stream", "chat-n2-stream", "chat-tool-required-stream", "chat-stream-usage",
    "completion-stream-echo-logprobs", "completion-stream-usage",
    "messages-stream", "messages-tool-stream", "responses-stream", "responses-tool-stream",
)  # fmt: skip
BODIES: Final = (
    "chat-logprobs", "chat-n2", "chat-tool-required", "completion-echo-logprobs", "completion-token-ids",
    "completion-two-prompts", "embeddings", "messages", "messages-tool", "responses", "responses-tool",
)  # fmt: skip

REMOVED: Final = object()
ODD_VALUES: Final[tuple[Any, ...]] = (None, 0, "", [], {}, [None], [0], [{}], "x", True)
REPLACEMENTS: Final = st.just(REMOVED) | st.sampled_from(ODD_VALUES) | JSON_VALUES


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of each value inside of a JSON value."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in items for inner in paths_of(item, (*path, key)))]


def mutate(value: Any, draw: Any) -> Any:
    path = draw(st.sampled_from(paths_of(value)))
    new_value = draw(REPLACEMENTS)
    if not path:
        return {} if new_value is REMOVED else new_value
    copy = json.loads(json.dumps(value))
    container = copy
    for key in path[:-1]:
        container = container[key]
    if new_value is REMOVED:
        del container[path[-1]]
    else:
        container[path[-1]] = new_value
    return copy


def check_replay(recording: RecordedResponse | NotStoredReason, request: Any) -> None:
    assert isinstance(recording, RecordedResponse | NotStoredReason)
    if isinstance(recording, RecordedResponse):
        for stream in (True, False):
            if not stream or request.endpoint.streaming is not None:
                assert isinstance(replay(recording, msgspec.structs.replace(request, stream=stream)), bytes | None)


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=EXAMPLES * 3 // 5)
@given(data=st.data())
def test_a_stream_with_changed_values_raises_nothing(name: str, data: st.DataObject) -> None:
    request, sent = load_capture(name)
    frames = split_events(sent)
    # The last events have what decides, so they are drawn more often.
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(frames) - 1) | st.integers(max(0, len(frames) - 4), len(frames) - 1))
        event = payload(frames[at])
        if event is None or event == b"[DONE]":
            continue
        head = frames[at].partition(b"data: ")[0]
        frames[at] = b"%bdata: %b\n\n" % (head, json.dumps(mutate(json.loads(event), data.draw)).encode())
    assert request.endpoint.streaming is not None
    recorder = request.endpoint.streaming.make_recorder(LIMIT, AnswerShapes())
    for frame in frames:
        recorder.feed(frame)
    check_replay(recorder.recorded_response(request), request)


@pytest.mark.parametrize("name", BODIES)
@settings(max_examples=EXAMPLES * 3 // 5)
@given(data=st.data())
def test_a_body_with_changed_values_raises_nothing(name: str, data: st.DataObject) -> None:
    request, sent = load_capture(name)
    body = json.loads(sent)
    for _ in range(data.draw(st.integers(1, 2))):
        body = mutate(body, data.draw)
    check_replay(record_body(request, json.dumps(body).encode(), LIMIT), request)
