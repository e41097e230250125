"""JSON responses too are stored only if complete and successful, and unchanged."""

import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from tests.support.endpoints import record_body
from tests.support.examples import EXAMPLES
from tests.support.factories import JSON_VALUES, ODD_EVENT, chat, completion

LIMIT: Final = 1 << 20


def answer(**fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    return {"id": "c1", "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, **fields}


def choice(finish: Any = "stop", **message: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}


def test_a_json_response_is_stored_byte_for_byte() -> None:
    body = json.dumps(answer(), indent=3).encode()
    recording = record_body(chat(), body, LIMIT)
    assert recording == RecordedResponse(body=body, stream=None, prompt_tokens=3, completion_tokens=2)


def test_a_json_response_needs_no_usage() -> None:
    assert isinstance(record_body(chat(), json.dumps(answer(usage=None)).encode(), LIMIT), RecordedResponse)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"error": {"message": "x"}}, NotStoredReason.ERROR),
        ({"choices": None}, NotStoredReason.ERROR),
        ({"choices": [1]}, NotStoredReason.ERROR),
        ({"choices": []}, NotStoredReason.INCOMPLETE),
        ({"choices": [choice(None, content="x")]}, NotStoredReason.INCOMPLETE),
        ({"choices": [choice("abort", content="x")]}, NotStoredReason.INCOMPLETE),
        ({"choices": [choice("stop", content="x"), choice(None, content="y")]}, NotStoredReason.INCOMPLETE),
        ({"choices": [choice(content="")]}, NotStoredReason.EMPTY),
        ({"choices": [choice(content=None, tool_calls=[], refusal=None)]}, NotStoredReason.EMPTY),
    ],
)
def test_only_a_complete_and_successful_json_response_is_stored(
    fields: dict[str, Any], reason: NotStoredReason
) -> None:
    assert record_body(chat(), json.dumps(answer(**fields)).encode(), LIMIT) is reason


@settings(max_examples=3 * EXAMPLES)
@given(
    ODD_EVENT | JSON_VALUES,
    st.sampled_from([chat(), chat(n=2), chat(n="x"), completion(), completion(prompt=["a", 1])]),
)
def test_no_body_of_an_engine_raises_anything(body: Any, inference_request: InferenceRequest) -> None:
    assert isinstance(
        record_body(inference_request, json.dumps(body).encode(), LIMIT), RecordedResponse | NotStoredReason
    )
