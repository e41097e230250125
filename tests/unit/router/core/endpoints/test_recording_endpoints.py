"""What is recorded of a JSON response at any endpoint: a complete one, byte for byte, and no other."""

import json
from typing import Any, Final

import pytest
from hypothesis import given

from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.table import ENDPOINT_BY_PATH
from tests.support.endpoints import record_body
from tests.support.factories import JSON_VALUES, load_capture

LIMIT: Final = 1 << 20
CAPTURES: Final = (
    "chat", "completion", "responses", "messages", "count-tokens", "tokenize", "detokenize", "embeddings", "pooling",
    "classify", "score", "score-v1", "rerank", "rerank-v1", "rerank-v2",
)  # fmt: skip
"""A response of vLLM of each endpoint."""

CAPTURED: Final = {name: load_capture(name) for name in CAPTURES}
ENDPOINTS: Final = pytest.mark.parametrize("name", CAPTURES)


def test_there_is_a_response_of_each_endpoint() -> None:
    assert {request.endpoint.path for request, _ in CAPTURED.values()} == ENDPOINT_BY_PATH.keys()


@ENDPOINTS
def test_a_complete_response_is_stored_byte_for_byte_unless_it_is_over_the_limit(name: str) -> None:
    request, body = CAPTURED[name]
    recorded = record_body(request, body, len(body))
    assert isinstance(recorded, RecordedResponse)
    assert (recorded.body, recorded.stream) == (body, None)
    assert record_body(request, body, len(body) - 1) is NotStoredReason.TOO_LARGE


@ENDPOINTS
def test_an_error_with_status_200_is_not_stored(name: str) -> None:
    request, body = CAPTURED[name]
    failed = {**json.loads(body), "error": {"message": "x"}}
    assert record_body(request, json.dumps(failed).encode(), LIMIT) is NotStoredReason.ERROR


@ENDPOINTS
def test_a_body_in_another_form_is_an_error(name: str) -> None:
    request, complete = CAPTURED[name]
    too_deep = b'{"error":' + b"[" * 100_000
    for body in (b"", b"x", b"[]", b"null", b"\xff", too_deep, complete[:-2], b'{"data": [{'):
        assert record_body(request, body, LIMIT) is NotStoredReason.ERROR, body[:20]


@ENDPOINTS
@given(value=JSON_VALUES)
def test_no_body_raises(name: str, value: Any) -> None:
    request, body = CAPTURED[name]
    fields = json.loads(body)
    for sent in (value, *({**fields, field: value} for field in fields), *({field: [value]} for field in fields)):
        recorded = record_body(request, json.dumps(sent).encode(), LIMIT)
        assert isinstance(recorded, NotStoredReason | RecordedResponse)
