"""A stream that fails says so in the shape of its endpoint, and an engine's refusal is told in OpenAI's."""

import json

import pytest

from router.core.error_shapes import engine_refusal, error_frame
from router.core.recorders import recorder_for
from router.core.sse import payload
from router.core.types import Endpoint
from router.errors import UPSTREAM, ApiError

ERROR = ApiError(502, "It broke off.", kind=UPSTREAM, code="engine_failed")


def test_messages_end_with_anthropics_event() -> None:
    frame = error_frame(Endpoint.MESSAGES, ERROR)
    assert frame.startswith(b"event: error\ndata: {")
    error = {"type": "upstream_error", "message": "It broke off."}
    assert json.loads(payload(frame) or b"") == {"type": "error", "error": error}


def test_responses_end_with_openais_event_and_the_error_on_which_its_clients_raise() -> None:
    frame = error_frame(Endpoint.RESPONSES, ERROR)
    assert frame.startswith(b"event: error\ndata: {")
    about = {"message": "It broke off.", "code": "engine_failed", "param": None}
    error = {"type": "upstream_error", **about}
    assert json.loads(payload(frame) or b"") == {"type": "error", **about, "error": error}


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
def test_the_others_end_with_an_error_and_nothing_else(endpoint: Endpoint) -> None:
    assert error_frame(endpoint, ERROR) == ERROR.frame()


@pytest.mark.parametrize("endpoint", [one for one in Endpoint if one is not Endpoint.EMBEDDINGS])
def test_every_recorder_knows_the_error_of_its_endpoint(endpoint: Endpoint) -> None:
    recorder = recorder_for(endpoint, 1000)
    assert recorder.feed(error_frame(endpoint, ERROR)) == b""
    assert recorder.failure is not None


def test_a_refusal_in_openais_shape_goes_on_as_it_stands() -> None:
    body = b'{ "error": {"message": "x", "code": 400} }'
    refusal = engine_refusal(400, body)
    assert refusal is not None
    assert (refusal.status, refusal.body()) == (400, body)


def test_a_refusal_in_anthropics_shape_becomes_openais() -> None:
    refusal = engine_refusal(400, b'{"type": "error", "error": {"type": "BadRequestError", "message": "Too long."}}')
    assert refusal is not None
    assert refusal.status == 400
    error = {"message": "Too long.", "type": "BadRequestError", "param": None, "code": None}
    assert json.loads(refusal.body()) == {"error": error}


@pytest.mark.parametrize(
    ("status", "told"), [(400, True), (413, True), (422, True), (401, False), (404, False), (429, False), (500, False)]
)
def test_only_what_is_the_clients_fault_is_told(status: int, told: bool) -> None:
    body = b'{"error": {"message": "x", "type": "NotFoundError", "param": "model", "code": 404}}'
    assert (engine_refusal(status, body) is not None) is told


def test_an_earlier_response_that_is_not_there_is_the_clients_business() -> None:
    body = b'{"error": {"message": "x", "type": "invalid_request_error", "param": "response_id", "code": 404}}'
    refusal = engine_refusal(404, body)
    assert refusal is not None
    assert (refusal.status, refusal.body()) == (404, body)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'"error"', b'{"detail": "x"}', b'{"type": "error", "error": 1}']
)
def test_what_is_no_error_is_no_refusal(body: bytes) -> None:
    assert engine_refusal(400, body) is None
