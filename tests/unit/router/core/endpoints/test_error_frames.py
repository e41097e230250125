"""A failing stream ends with an error in the format of its endpoint."""

import json

import pytest

from router.core.endpoints.chat import CHAT
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.sse import payload
from router.core.endpoints.table import ENDPOINTS
from router.errors import UPSTREAM, ApiError
from tests.support.endpoints import error_frame, make_recorder

ERROR = ApiError(502, "It broke off.", kind=UPSTREAM, code="engine_failed")


def test_messages_end_with_anthropics_event() -> None:
    frame = error_frame(MESSAGES, ERROR)
    assert frame.startswith(b"event: error\ndata: {")
    error = {"type": "upstream_error", "message": "It broke off."}
    assert json.loads(payload(frame) or b"") == {"type": "error", "error": error}


def test_responses_end_with_openais_event_and_the_error_on_which_its_clients_raise() -> None:
    frame = error_frame(RESPONSES, ERROR)
    assert frame.startswith(b"event: error\ndata: {")
    about = {"message": "It broke off.", "code": "engine_failed", "param": None}
    error = {"type": "upstream_error", **about}
    assert json.loads(payload(frame) or b"") == {"type": "error", **about, "error": error}


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_the_others_end_with_an_error_and_nothing_else(endpoint: Endpoint) -> None:
    assert error_frame(endpoint, ERROR) == ERROR.frame()


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if one.streaming is not None])
def test_every_recorder_knows_the_error_of_its_endpoint(endpoint: Endpoint) -> None:
    recorder = make_recorder(endpoint, 1000)
    assert recorder.feed(error_frame(endpoint, ERROR)) == b""
    assert recorder.failure is not None
