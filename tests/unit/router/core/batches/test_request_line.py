"""Lines of a batch's input: requests of the batch, or entries of its error file."""

import json
from typing import Any

import pytest

from router.core.batches.request_line import BadLine, RequestLine, is_object, parse_line

CHAT = "/v1/chat/completions"


def line(**changed: Any) -> bytes:
    fields = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "llama"}} | changed
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def test_a_request_keeps_the_bytes_of_its_body() -> None:
    text = b'{"custom_id": "\\u00e4", "method": "POST", "url": "%b", "body": {"n" :1.0,"model":"m"} }' % CHAT.encode()
    assert parse_line(text, CHAT) == RequestLine("ä", b'{"n" :1.0,"model":"m"}', "m")


def test_what_is_wrong_with_a_body_its_endpoint_says() -> None:
    for body in ({}, {"model": 7}, {"model": None}, {"stream": "yes"}):
        parsed = parse_line(line(body=body), CHAT)
        assert isinstance(parsed, RequestLine)
        assert parsed.model == ""


@pytest.mark.parametrize(
    ("changed", "code", "custom_id"),
    [
        ({"custom_id": ...}, "missing_custom_id", None),
        ({"custom_id": ""}, "missing_custom_id", None),
        ({"custom_id": 7}, "missing_custom_id", None),
        ({"custom_id": "x" * 513}, "missing_custom_id", None),
        ({"method": "GET"}, "invalid_method", "a"),
        ({"method": ...}, "invalid_method", "a"),
        ({"url": "/v1/embeddings"}, "invalid_url", "a"),
        ({"url": ...}, "invalid_url", "a"),
        ({"body": ...}, "missing_body", "a"),
        ({"body": [1]}, "missing_body", "a"),
        ({"body": "{}"}, "missing_body", "a"),
        ({"body": {"stream": True}}, "unsupported_stream", "a"),
        ({"body": {"background": True}}, "unsupported_background", "a"),
        ({"body": {"background": "no", "stream": True}}, "unsupported_stream", "a"),
        ({"body": {"model": 7, "stream": True}}, "unsupported_stream", "a"),
    ],
)
def test_what_is_no_request_of_the_batch_says_why(changed: dict[str, Any], code: str, custom_id: str | None) -> None:
    bad = parse_line(line(**changed), CHAT)
    assert isinstance(bad, BadLine)
    assert (bad.code, bad.custom_id) == (code, custom_id)


def test_only_objects_are_lines() -> None:
    for text in (b"", b"7", b"[]", b'"x"', b"{", b"\xff", b"[" * 100_000):
        assert not is_object(text)
        bad = parse_line(text, CHAT)
        assert isinstance(bad, BadLine)
        assert bad.code == "invalid_json"
    assert is_object(b"{}")
