"""An engine's error in any format becomes an OpenAI error with the engine's message."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.errors.engine_errors import (
    is_error_body,
    is_failed_generation,
    is_refusal,
    parse_refusal,
    parse_reported_error,
    unfinished_error,
)
from router.core.endpoints.errors.engine_message import MAX_MESSAGE, MAX_SUMMARY, summary
from router.errors import ApiError

ADDRESS = "10.0.0.7:8000"


def refused(body: Any, status: int = 400) -> ApiError:
    return parse_refusal(status, body if isinstance(body, bytes) else json.dumps(body).encode(), address=ADDRESS)


@pytest.mark.parametrize("status", [400, 402, 404, 405, 406, 409, 410, 413, 415, 422, 424, 451, 499, 501])
def test_errors_that_are_the_clients(status: int) -> None:
    assert is_refusal(status)


@pytest.mark.parametrize("status", [200, 301, 401, 403, 407, 408, 425, 429, 500, 502, 503, 504])
def test_errors_that_are_not_the_clients(status: int) -> None:
    assert not is_refusal(status)


@pytest.mark.parametrize(
    ("status", "body", "failed"),
    [
        (424, b'{"error": "Request failed during generation: x", "error_type": "generation"}', True),
        (422, b'{"error": "x", "error_type": "generation"}', False),
        (424, b'{"error": {"message": "Error retrieving tool list", "type": "external_connector_error"}}', False),
        (424, b'["generation"]', False),
        (424, b"", False),
    ],
)
def test_a_424_is_a_failure_of_the_engine_only_in_the_form_of_tgi(status: int, body: bytes, *, failed: bool) -> None:
    assert is_failed_generation(status, body) is failed


def test_openais_format_is_forwarded_unchanged() -> None:
    body = b'{ "error": {"message": "x", "code": 400} }'
    refusal = refused(body)
    assert (refusal.status, refusal.body()) == (400, body)


def test_anthropics_format_becomes_openais() -> None:
    refusal = refused({"type": "error", "error": {"type": "BadRequestError", "message": "Too long."}})
    error = {"message": "Too long.", "type": "BadRequestError", "param": None, "code": None}
    assert json.loads(refusal.body()) == {"error": error}


def test_the_format_of_older_vllm_becomes_openais() -> None:
    refusal = refused({"object": "error", "message": "x", "type": "BadRequestError", "param": "n", "code": 400})
    error = {"message": "x", "type": "BadRequestError", "param": "n", "code": None}
    assert json.loads(refusal.body()) == {"error": error}


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"detail": "No such token."}, "No such token.", None),
        (
            {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "Field required"}, {"msg": "Wrong"}]},
            "`messages.0.role`: Field required; Wrong",
            "messages.0.role",
        ),
        ({"detail": ["x", 1, {}]}, "x", None),
        ({"error": "Input validation error", "error_type": "validation"}, "Input validation error", None),
        ({"message": "x"}, "x", None),
        ("just text", "just text", None),
        (b"upstream says: too large\n", "upstream says: too large", None),
        (b'{"detail": "cut of', "cut of", None),
        ({"detail": "a\nb\tc\u202e d\x00"}, "a b c d", None),
    ],
)
def test_other_formats_become_openais(body: Any, message: str, param: str | None) -> None:
    refusal = refused(body)
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    assert json.loads(refusal.body()) == {"error": error}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"error": {"a": 1}}', b"<html>10.0.0.7</html>", b"\xff"])
def test_an_error_without_a_message_is_still_the_clients(body: bytes) -> None:
    assert refused(body).status == 400
    assert refused(body).body().count(b'"message":"') == 1


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": f"Could not reach http://{ADDRESS}/x", "code": 400}},
        {"detail": f"Could not reach http://{ADDRESS}/x"},
        f"Could not reach http://{ADDRESS}/x",
    ],
)
def test_the_address_of_the_engine_is_removed(body: Any) -> None:
    assert ADDRESS.encode() not in refused(body).body()
    assert b"Could not reach" in refused(body).body()


def test_a_long_message_is_truncated() -> None:
    body = json.dumps({"error": {"message": "é" * 100_000, "code": 400}}).encode()
    refusal = parse_refusal(400, body[: 64 << 10], complete=False)
    assert refusal.message == "é" * (MAX_MESSAGE - 1) + "…"
    assert len(refusal.body()) < 10_000


@pytest.mark.parametrize(
    ("status", "body", "reported_status", "code"),
    [
        (404, {"error": {"message": "The model `x` does not exist.", "param": "model"}}, 404, "model_not_found"),
        (404, {"detail": "Not Found"}, 404, "unsupported_endpoint"),
        (404, b"", 404, "unsupported_endpoint"),
        (405, {"detail": "Method Not Allowed"}, 404, "unsupported_endpoint"),
        (501, {"error": {"message": "The model does not support Embeddings API"}}, 400, None),
    ],
)
def test_features_that_an_engine_lacks(status: int, body: Any, reported_status: int, code: str | None) -> None:
    refusal = refused(body, status)
    assert (refusal.status, refusal.code, refusal.raw) == (reported_status, code, None)


def test_a_missing_earlier_response_is_reported_unchanged() -> None:
    body = b'{"error": {"message": "x", "type": "invalid_request_error", "param": "response_id", "code": 404}}'
    assert (refused(body, 404).status, refused(body, 404).body()) == (404, body)


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (b'{"error": {"message": "Grammar error", "type": "BadRequestError", "code": 400}}', 400),
        (b'{"error": {"message": "x", "code": 404}}', 400),
        (b'{"error": {"message": "x", "code": 500}}', None),
        (b'{"error": {"message": "x", "code": 429}}', None),
        (b'{"error": {"message": "x", "code": true}}', None),
        (b'{"error": {"message": "x", "code": "400"}}', 400),
        (b'{"error": {"code": 400}}', 400),
        (b'{"error": "x"}', None),
        (b"an event was not JSON", None),
    ],
)
def test_an_error_in_a_stream_is_the_clients_if_its_status_is(payload: bytes, status: int | None) -> None:
    refusal = parse_reported_error(payload).refusal
    assert (refusal.status if refusal is not None else None) == status


def test_a_reported_refusal_has_the_engines_message_and_word_and_none_of_its_words_is_a_label() -> None:
    error = {"message": "Too long.", "type": "invalid_request_error", "code": "context_length_exceeded"}
    reported = parse_reported_error(json.dumps({"type": "response.failed", "response": {"error": error}}).encode())
    assert reported.refusal is not None
    assert (reported.status, reported.summary) == (400, "Too long.")
    assert json.loads(reported.refusal.body()) == {"error": {**error, "param": None}}
    assert reported.refusal.frame() == b"data: %b\n\n" % reported.refusal.body()
    assert reported.refusal.reason == "invalid_request_error"


@pytest.mark.parametrize("flat", [False, True])
def test_a_reported_refusal_keeps_the_status_that_is_its_code(flat: bool) -> None:
    error = {"message": f"Too long for {ADDRESS}.", "type": "BadRequestError", "code": 400}
    value = {"object": "error", **error} if flat else {"error": error, "choices": []}
    refusal = parse_reported_error(json.dumps(value, indent=1).encode(), ADDRESS).refusal
    assert refusal is not None
    shown = {"message": "Too long for the engine.", "type": "BadRequestError", "param": None, "code": 400}
    assert json.loads(refusal.body()) == {"error": shown}
    assert refusal.frame() == b"data: %b\n\n" % refusal.body()


@pytest.mark.parametrize("code", [404, "400", 400.5, True])
def test_a_reported_refusal_has_no_code_that_is_not_its_status(code: Any) -> None:
    error = {"message": "No.", "type": "invalid_request_error", "code": code}
    refusal = parse_reported_error(json.dumps({"error": error}).encode(), ADDRESS).refusal
    assert refusal is not None
    assert (refusal.status, json.loads(refusal.body())["error"]["code"]) == (400, None)


def test_a_refusal_of_several_lines_is_one_line_in_a_stream() -> None:
    assert refused(b'{"error":\n{"message": "x"}}').frame().count(b"\n") == 2


@pytest.mark.parametrize("code", ["two words", "1st", "x" * 65, "", 7, None])
def test_a_code_that_is_no_word_is_left_out(code: Any) -> None:
    assert refused({"detail": "x", "code": code}).code is None


@pytest.mark.parametrize(
    ("body", "is_error"),
    [
        (b'{"error": "x"}', True),
        (b'{"type": "error", "message": "x"}', True),
        (b'{"object": "error", "message": "x"}', True),
        (b'{"error": null}', False),
        (b'{"choices": []}', False),
        (b"[1]", False),
        (b"{", False),
    ],
)
def test_what_a_body_with_status_200_is_an_error_by(body: bytes, is_error: bool) -> None:
    assert is_error_body(body) is is_error


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": {"message": "CUDA out of memory"}}, "CUDA out of memory"),
        ({"detail": "a\nb\x00\u202ec"}, "a b c"),
        (b"upstream connect error", "upstream connect error"),
        ({"error": f"no route to {ADDRESS} and 10.0.0.8:81"}, "no route to the engine and (address)"),
        ({"error": "GET http://10.0.0.9/v1?key=abc failed"}, "GET (URL) failed"),
        ({"error": "Incorrect API key provided: sk-abc123def"}, "Incorrect API key provided: ***"),
        ({"error": "Authorization: Bearer eyJhbGciOi"}, "Authorization: ***"),
        (b"<html>oops</html>", ""),
        (b"", ""),
        ({"error": "x" * 500}, "x" * (MAX_SUMMARY - 1) + "…"),
    ],
)
def test_a_summary_is_one_line_without_secrets_and_addresses(body: Any, expected: str) -> None:
    assert summary(body if isinstance(body, bytes) else json.dumps(body).encode(), ADDRESS) == expected


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        (b'{"error": {"code": 400}}', b'{"error": {"code": 400}}'),
        (b'event: error\ndata: {"error": "no"}\n', b'{"error": "no"}'),
        (b'data: {"error": {"mess', None),
        (b'data: {"choices": []}', None),
        (b"", None),
    ],
)
def test_what_a_stream_ends_with_is_an_error_only_if_it_is_whole(rest: bytes, error: bytes | None) -> None:
    assert unfinished_error(rest) == error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "detail", "msg", "loc", "type", "param", "code", "object"]), inner
        )
    ),
)


@given(st.sampled_from([400, 404, 405, 413, 422, 501]), st.binary(max_size=200) | JSON, st.booleans())
def test_any_refusal_can_be_parsed(status: int, body: Any, complete: bool) -> None:
    written = body if isinstance(body, bytes) else json.dumps(body).encode()
    refusal = parse_refusal(status, written, complete=complete, address=ADDRESS)
    assert refusal.status in (400, 404, 413, 422)
    assert json.loads(refusal.body())["error"]["message"]
    assert refusal.message.isprintable()
    parse_reported_error(written)
    summary(written)
    is_error_body(written)
    unfinished_error(written)
