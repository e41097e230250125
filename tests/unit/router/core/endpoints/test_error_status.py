"""The status of an error that an engine reports in a response with status 200."""

from typing import Any

import pytest

from router.core.endpoints.errors.error_status import error_status


@pytest.mark.parametrize(
    ("value", "status"),
    [
        # A number counts before any word.
        ({"error": {"code": 422, "type": "server_error"}}, 422),
        ({"error": {"code": "413", "type": "server_error"}}, 413),
        ({"error": {"code": 500, "type": "invalid_request_error"}}, 500),
        # TGI 3 writes 422 into each error of a stream; its other errors have a type.
        ({"error": {"message": "Input validation error: x", "http_status_code": 422}}, 422),
        ({"error": {"message": "Template error: x", "http_status_code": 422}}, 422),
        ({"error": {"message": "Request failed during generation: Server error: x", "http_status_code": 422}}, 500),
        ({"error": {"message": "Incomplete generation stream", "http_status_code": 422}}, 500),
        ({"error": {"message": "Stream event serialization error", "http_status_code": 422}}, 500),
        ({"error": {"message": "Model is overloaded", "http_status_code": 422}}, 429),
        ({"error": {"message": ["x"], "http_status_code": 422}}, 422),
        ({"error": "x", "error_type": "validation", "http_status_code": 422}, 422),
        ({"error": "x", "error_type": "missing_template_variable", "http_status_code": 422}, 422),
        ({"error": "x", "error_type": "generation", "http_status_code": 424}, 500),
        ({"error": "x", "error_type": "overloaded", "http_status_code": 422}, 429),
        ({"error": {"code": 400, "type": "exceed_context_size_error"}}, 400),  # llama.cpp
        ({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}, 429),  # Google
        ({"object": "error", "type": "BadRequestError", "code": 400}, 400),  # vLLM up to 0.9
        # OpenAI: the code says more than the type.
        ({"type": "response.failed", "response": {"error": {"code": "context_length_exceeded"}}}, 400),
        ({"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}}, 400),
        ({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, 500),
        ({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}, 429),
        ({"type": "error", "code": "context_length_exceeded", "message": "x"}, 400),
        ({"status": "failed", "error": {"code": "invalid_prompt", "message": "x"}}, 400),
        ({"error": {"type": "invalid_request_error", "code": None}}, 400),
        ({"error": {"type": "invalid_request_error", "code": "invalid_api_key"}}, 401),
        ({"error": {"type": "invalid_request_error", "code": "model_not_found"}}, 404),
        ({"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}, 429),
        ({"error": {"type": "invalid_request_error", "code": "content_policy_violation"}}, 400),
        # Anthropic.
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "x"}}, 400),
        ({"type": "error", "error": {"type": "request_too_large", "message": "x"}}, 413),
        ({"type": "error", "error": {"type": "not_found_error", "message": "x"}}, 404),
        ({"type": "error", "error": {"type": "authentication_error", "message": "x"}}, 401),
        ({"type": "error", "error": {"type": "permission_error", "message": "x"}}, 403),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "x"}}, 429),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, 429),
        ({"type": "error", "error": {"type": "api_error", "message": "x"}}, 500),
        ({"type": "error", "error": {"type": "internal_error", "message": "x"}}, 500),  # vLLM
        # vLLM and SGLang.
        ({"error": {"type": "BadRequestError"}}, 400),
        ({"error": {"type": "UnprocessableEntityError"}}, 422),
        ({"error": {"type": "InternalServerError"}}, 500),
        # TGI.
        ({"error": "x", "error_type": "validation"}, 422),
        ({"error": "x", "error_type": "template_error"}, 422),
        ({"error": "x", "error_type": "overloaded"}, 429),
        ({"error": "x", "error_type": "generation"}, 500),
        ({"error": "x", "error_type": "incomplete_generation"}, 500),
        ({"error": "Input validation error: `inputs` must have less than 1024 tokens"}, 422),
        ({"error": "Template error: no chat template"}, 422),
        ({"error": "Model is overloaded"}, 429),
        # OpenAI and Azure: what is wrong with a field or an image.
        ({"error": {"type": "invalid_request_error", "code": "integer_above_max_value"}}, 400),
        ({"type": "response.failed", "response": {"error": {"code": "image_too_small"}}}, 400),
        ({"type": "response.failed", "response": {"error": {"code": "failed_to_download_image"}}}, 400),
        ({"error": {"code": "tokens_limit_reached"}}, 400),
        ({"error": {"code": "invalid_token_id"}}, 400),  # no invalid token of access
        # Google, by its word alone.
        ({"error": {"status": "INVALID_ARGUMENT"}}, 400),
        # No word that is known.
        ({"error": {"message": "x", "type": "strange", "code": True}}, 500),
        ({"error": {"message": "x", "code": 200}}, 500),
        ({"error": {"message": "invalid", "type": "invalid" * 100}}, 500),
        ({"error": "x"}, 500),
        ({"error": ["x"]}, 500),
        ({}, 500),
        ("x", 500),
        (None, 500),
    ],
)
def test_the_status_of_a_reported_error(value: Any, status: int) -> None:
    assert error_status(value) == status
