import json

import pytest

from router.core.endpoints.conversations.background_response import (
    ended_response,
    foreground_body,
    queued_response,
    wants_stream,
)
from router.errors import ApiError


def test_what_is_generated_is_a_stream_that_knows_of_no_background() -> None:
    body = b'{"model":"m","input":"x","background":true,"metadata":{"a": 1.0}}'
    assert foreground_body(body) == b'{"model":"m","input":"x","metadata":{"a": 1.0},"stream":true}'
    assert json.loads(foreground_body(b'{"input":"x","background":true,"stream":false}')) == {
        "input": "x",
        "stream": True,
    }


def test_only_true_is_a_stream() -> None:
    assert wants_stream(b'{"input":"x","stream":true}')
    for rest in (b"", b',"stream":false', b',"stream":null'):
        assert not wants_stream(b'{"input":"x"%b}' % rest)


def test_a_queued_response_repeats_its_request() -> None:
    body = (
        b'{"model":"m","input":"x","instructions":"Be brief.","tools":null,"temperature":0.5,'
        b'"previous_response_id":"resp_0"}'
    )
    response = json.loads(queued_response(body, "resp_1", 17.5))
    assert response["id"] == "resp_1"
    assert (response["status"], response["background"], response["created_at"]) == ("queued", True, 17)
    assert (response["model"], response["instructions"], response["temperature"]) == ("m", "Be brief.", 0.5)
    assert (response["tools"], response["output"], response["error"], response["usage"]) == ([], [], None, None)
    assert response["previous_response_id"] == "resp_0"
    assert "input" not in response


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(429, "Full."), "rate_limit_exceeded"),
        (ApiError(503, "Full."), "server_error"),
        (ApiError(400, "Bad.", code="context_length_exceeded"), "context_length_exceeded"),
        (ApiError(400, "Bad."), "invalid_prompt"),
    ],
)
def test_a_failed_response_says_why(error: ApiError, code: str) -> None:
    failed = json.loads(ended_response(b'{"status":"in_progress","id":"r","error":null}', "failed", error))
    assert failed == {"status": "failed", "id": "r", "error": {"code": code, "message": error.message}}


def test_a_cancelled_response_has_no_error() -> None:
    assert json.loads(ended_response(b'{"status":"queued","error":null}', "cancelled")) == {
        "status": "cancelled", "error": None,
    }  # fmt: skip
