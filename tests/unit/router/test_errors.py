"""Errors have OpenAI's format, as a body and as an event, and reveal no internals."""

import json

import pytest

from router.core.endpoints.recording.sse import payload, split_events
from router.errors import ApiError, bad_request, internal_error, unavailable, unknown_model

ERRORS = [
    bad_request("Wrong.", param="messages[0].role", code="x"),
    bad_request('With "quotes"\nand lines, é.'),
    unknown_model("gpt-9"),
    unavailable("Busy."),
    internal_error(),
    ApiError(401, "Who?", kind="authentication_error"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_has_openais_four_fields(error: ApiError) -> None:
    assert json.loads(error.body()) == {
        "error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    }


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_in_a_stream_is_one_event_and_no_end(error: ApiError) -> None:
    assert split_events(error.frame()) == [error.frame()]
    assert payload(error.frame()) == error.body()
    assert b"[DONE]" not in error.frame()


def test_an_engines_message_is_forwarded_unchanged() -> None:
    raw = b'{"error": {"message": "too long", "type": "BadRequestError", "param": null, "code": 400}}'
    error = ApiError(400, "the engine refused the request", raw=raw)
    assert error.body() is raw


def test_the_engines_own_body_is_not_an_event() -> None:
    error = ApiError(400, "the engine refused the request", raw=b"{\n}")
    assert json.loads(payload(error.frame()) or b"")["error"]["message"] == "the engine refused the request"


def test_each_kind_has_its_status() -> None:
    assert [error.status for error in ERRORS] == [400, 400, 404, 503, 500, 401]
    assert unknown_model("x").code == "model_not_found"
    assert unknown_model("x").param == "model"


def test_a_503_has_a_retry_after() -> None:
    assert unavailable("Busy.").retry_after == 1
    assert unavailable("Busy.", retry_after=7).retry_after == 7
    assert bad_request("Wrong.").retry_after is None
