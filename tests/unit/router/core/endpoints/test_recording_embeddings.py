"""Embeddings are stored if there is a vector for each input, and only as JSON."""

import json
from typing import Any, Final

import pytest
from hypothesis import given

from router.core.endpoints.embeddings import EMBEDDINGS
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.replay import replay
from tests.support.endpoints import record_body
from tests.support.factories import JSON_VALUES, embeddings, entry_from, load_capture, request

LIMIT: Final = 1 << 20
USER: Final = {"role": "user", "content": "Hi"}


def answer(*vectors: Any, **beside: Any) -> bytes:
    data = [{"index": at, "object": "embedding", "embedding": vector} for at, vector in enumerate(vectors)]
    usage = {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": usage, **beside}).encode()


@pytest.mark.parametrize(
    ("input_", "count"),
    [("x", 1), ("", 1), ([1, 2], 1), (["x"], 1), (["x", "y"], 2), ([[1], [2], [3]], 3), ([USER, USER], 1),
     ([[USER], [USER]], 2)],
)  # fmt: skip
def test_a_response_is_complete_with_a_vector_for_each_input(input_: Any, count: int) -> None:
    parsed_request = embeddings(input=input_)
    body = answer(*[[0.5, -0.5]] * count)
    recording = record_body(parsed_request, body, LIMIT)
    assert recording == RecordedResponse(body=body, stream=None, prompt_tokens=3, completion_tokens=0)
    for other in (count - 1, count + 1):
        assert record_body(parsed_request, answer(*[[0.5]] * other), LIMIT) is NotStoredReason.INCOMPLETE


def test_a_conversation_in_place_of_the_input_is_one_input_and_several_are_several() -> None:
    parsed_request = request(EMBEDDINGS, {"model": "m", "messages": [USER, USER]})
    assert isinstance(record_body(parsed_request, answer([0.5]), LIMIT), RecordedResponse)
    parsed_request = request(EMBEDDINGS, {"model": "m", "messages": [[USER], [USER]]})
    assert isinstance(record_body(parsed_request, answer([0.5], [0.5]), LIMIT), RecordedResponse)


def test_vectors_in_base64_are_stored_unchanged() -> None:
    parsed_request = embeddings(encoding_format="base64")
    recording = record_body(parsed_request, answer("AAAAPwAAAL8="), LIMIT)
    assert isinstance(recording, RecordedResponse)
    assert replay(entry_from(recording), parsed_request) == answer("AAAAPwAAAL8=")
    assert replay(entry_from(recording), embeddings(encoding_format="base64", stream=True)) == answer("AAAAPwAAAL8=")


@pytest.mark.parametrize("vector", [[], "", None])
def test_an_empty_vector_is_not_stored(vector: Any) -> None:
    assert record_body(embeddings(), answer(vector), LIMIT) is NotStoredReason.EMPTY


@given(JSON_VALUES)
def test_no_input_makes_the_recorder_fail(value: Any) -> None:
    parsed_request = embeddings(input=[value])
    assert isinstance(record_body(parsed_request, answer([0.5]), LIMIT), NotStoredReason | RecordedResponse)


@pytest.mark.parametrize("name", ["embeddings", "embeddings-base64", "embeddings-tokens", "embeddings-messages"])
def test_a_response_of_a_real_vllm_server_is_stored(name: str) -> None:
    captured_request, body = load_capture(name)
    recording = record_body(captured_request, body, LIMIT)
    assert isinstance(recording, RecordedResponse)
    assert (recording.body, recording.prompt_tokens > 0, recording.completion_tokens) == (body, True, 0)
