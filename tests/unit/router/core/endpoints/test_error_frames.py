"""A failing stream ends with an error in the format of its endpoint."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseCreatedEvent, ResponseFailedEvent

from router.core.endpoints.chat import CHAT
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.count_tokens import COUNT_TOKENS
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.errors.error_envelope import BrokenStream
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.recording.sse import payload, split_events
from router.core.endpoints.recording.typed_events import encode_event
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.table import ENDPOINTS
from router.errors import UPSTREAM, ApiError
from tests.support.endpoints import error_frame, make_recorder

ERROR = ApiError(502, "It broke off.", kind=UPSTREAM, code="engine_failed")


def test_messages_end_with_anthropics_event() -> None:
    frame = error_frame(MESSAGES, ERROR)
    assert frame.startswith(b"event: error\ndata: {")
    error = {"type": "api_error", "message": "It broke off."}
    assert json.loads(payload(frame) or b"") == {"type": "error", "error": error, "request_id": "request-1"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
@pytest.mark.parametrize("endpoint", [MESSAGES, COUNT_TOKENS])
def test_anthropics_clients_get_anthropics_type_of_each_status(endpoint: Endpoint, status: int, expected: str) -> None:
    error = ApiError(status, "No.", kind="something_else", raw=b'{"error": {"message": "as the engine sent it"}}')
    body = {"type": "error", "error": {"type": expected, "message": "No."}, "request_id": "request-1"}
    assert json.loads(endpoint.errors.body(error, "request-1")) == body


def test_a_stream_of_responses_ends_with_its_own_response_as_failed() -> None:
    opened = {"id": "resp_7", "object": "response", "model": "llama", "status": "in_progress", "output": []}
    first = encode_event({"type": "response.created", "response": opened, "sequence_number": 0})
    last = encode_event({"type": "response.output_text.delta", "delta": "so", "sequence_number": 6})
    last += encode_event({"type": "response.output_text.delta", "delta": " far", "sequence_number": 7})
    frame = RESPONSES.errors.frame(ERROR, BrokenStream("request-1", "llama", 5, first, last))
    assert frame.startswith(b"event: response.failed\ndata: {")
    event = json.loads(payload(frame) or b"")
    failed = {**opened, "status": "failed", "error": {"code": "server_error", "message": "It broke off."}}
    assert (event["type"], event["sequence_number"], event["response"]) == ("response.failed", 8, failed)
    assert event["error"]["message"] == "It broke off."  # openai-python raises for it


def test_a_stream_of_responses_of_which_nothing_was_sent_begins_and_fails() -> None:
    stream = BrokenStream("request-1", "llama", 5)
    first, last = (json.loads(payload(event) or b"") for event in split_events(RESPONSES.errors.frame(ERROR, stream)))
    created = ResponseCreatedEvent.model_validate(first, strict=True)
    failed = ResponseFailedEvent.model_validate(last, strict=True)
    assert (created.sequence_number, created.response.status, created.response.error) == (0, "in_progress", None)
    assert (failed.sequence_number, failed.response.status) == (1, "failed")
    for response in (created.response, failed.response):
        assert (response.id, response.model, response.created_at) == ("resp_request-1", "llama", 5)


def test_a_request_that_exceeds_the_context_fails_in_the_words_of_openais_streams() -> None:
    error = ApiError(400, "This model's maximum context length is 4096 tokens.", code="context_length_exceeded")
    event = failed_event(error)
    message = f"The request exceeds the context window of this model. {error.message}"
    assert event["response"]["error"] == {"code": "context_length_exceeded", "message": message}
    assert event["error"]["message"] == message


@pytest.mark.parametrize("sent", [b": waiting\n\n", b"data: not JSON\n\n", b'data: {"response": 7}\n\n'])
def test_a_stream_of_responses_without_a_response_ends_with_a_response_of_its_own(sent: bytes) -> None:
    frame = RESPONSES.errors.frame(ERROR, BrokenStream("request-1", "llama", 5, sent, sent))
    event = ResponseFailedEvent.model_validate(json.loads(payload(frame) or b""), strict=True)
    assert (event.sequence_number, event.response.id, event.response.status) == (0, "resp_request-1", "failed")
    assert (event.response.model, event.response.created_at) == ("llama", 5)
    assert event.response.error is not None
    assert event.response.error.message == "It broke off."


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ERROR, "server_error"),
        (ApiError(429, "Slowly.", code="rate_limit_exceeded"), "rate_limit_exceeded"),
        (ApiError(400, "Too long.", code="context_length_exceeded"), "context_length_exceeded"),
        (ApiError(400, "No."), "invalid_prompt"),
    ],
)
def test_a_failed_response_has_a_code_that_its_clients_know(error: ApiError, expected: str) -> None:
    assert failed_event(error)["response"]["error"]["code"] == expected


def failed_event(error: ApiError) -> dict[str, Any]:
    """The event that ends a stream of responses."""
    event: dict[str, Any] = json.loads(payload(split_events(error_frame(RESPONSES, error))[-1]) or b"")
    return event


def test_only_a_stream_of_responses_begins_for_an_error_and_only_for_a_request_that_exceeds_the_context() -> None:
    streamed = {endpoint.path: endpoint.errors.streamed_codes for endpoint in ENDPOINTS}
    assert {path: codes for path, codes in streamed.items() if codes} == {"/v1/responses": ("context_length_exceeded",)}


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_the_others_end_with_an_error_and_nothing_else(endpoint: Endpoint) -> None:
    assert error_frame(endpoint, ERROR) == ERROR.frame()


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if one.streaming is not None])
def test_every_recorder_knows_the_error_of_its_endpoint(endpoint: Endpoint) -> None:
    recorder = make_recorder(endpoint, 1000)
    *before, frame = split_events(error_frame(endpoint, ERROR))
    assert recorder.feed(b"".join(before)) == b"".join(before)
    assert recorder.feed(frame) == b""
    assert recorder.failure is not None
