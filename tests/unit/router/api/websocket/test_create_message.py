"""The messages of a client, and errors as messages."""

import json
from typing import Any

import pytest

from router.api.websocket.conversation import encode_request
from router.api.websocket.create_message import CreateMessage, error_message, parse_message, read_model
from router.errors import ApiError


def create(**fields: Any) -> CreateMessage:
    message = parse_message(json.dumps({"type": "response.create", **fields}).encode())
    assert message is not None
    return message


def test_the_request_has_the_fields_of_http_alone_and_streams() -> None:
    message = create(model="m", input="x", generate=True, stream=False, client_metadata={"turn": "1"}, top_k=5)
    assert json.loads(encode_request(message.fields)) == {"model": "m", "input": "x", "stream": True, "top_k": 5}


def test_values_stay_as_the_client_wrote_them() -> None:
    text = b'{"type": "response.create", "seed": 1.50e1, "tools": [{"b":1, "a" : 9007199254740993}], "x": "\\u00e9"}'
    message = parse_message(text)
    assert message is not None
    encoded = encode_request(message.fields)
    for value in (b"1.50e1", b'[{"b":1, "a" : 9007199254740993}]', b'"\\u00e9"'):
        assert value in encoded


def test_a_warm_up_and_a_turn_after_another_are_told_apart() -> None:
    assert not create(generate=False).generates
    assert list(create(generate=False).fields) == ["stream"]
    assert create().generates
    assert create(generate=None).generates
    assert create(previous_response_id="resp_1").previous_id == "resp_1"
    assert create(previous_response_id=None).previous_id is None


def test_the_model_of_a_warm_up_is_a_short_text() -> None:
    assert read_model(create(model="m")) == "m"
    assert read_model(create()) is None
    for model in (7, ["m"], "m" * 2000):
        with pytest.raises(ApiError) as caught:
            read_model(create(model=model))
        assert (caught.value.status, caught.value.param) == (400, "model")


def test_an_acknowledgement_asks_for_nothing() -> None:
    assert parse_message(b'{"type": "response.processed", "response_id": "resp_1"}') is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no JSON",
        b"[]",
        b"null",
        b"{}",
        b'{"type": null}',
        b'{"type": 7}',
        b'{"type": "response.append"}',
        b'{"type": "response.create", "previous_response_id": 7}',
        b'{"type": "response.create", "stream_id": "a"}',
        b'{"type": "response.create"',
        b'{"type": "response.create", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_any_other_message_is_refused(text: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_message(text)
    assert (caught.value.status, caught.value.code) == (400, "invalid_message")


def test_an_error_has_its_status_and_headers() -> None:
    body = ApiError(429, "Slow down.", code="rate_limit_exceeded").body()
    event = json.loads(error_message(429, body, {"retry-after": "3"}))
    assert (event["type"], event["status"], event["headers"]) == ("error", 429, {"retry-after": "3"})
    assert event["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"detail": "x"}', b'{"error": "text"}'])
def test_an_error_of_another_form_is_still_an_object(body: bytes) -> None:
    event = json.loads(error_message(502, body, {}))
    assert event["status"] == 502
    assert event["error"]["message"]
