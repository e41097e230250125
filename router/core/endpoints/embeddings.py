"""/v1/embeddings. Responses are always JSON, and complete if there is a vector for each input.

Source: https://platform.openai.com/docs/api-reference/embeddings, and vLLM's entrypoints/pooling/embed/protocol.py,
which accepts a conversation as an input too, in `input` or in `messages`.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.endpoint import EncodedInput, Endpoint, InferenceRequest
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.recording import record_json
from router.core.endpoints.recording.usage import estimate_usage, parse_usage
from router.core.endpoints.requests.request_fields import RequestFields, missing_field_error
from router.core.endpoints.vectors import has_missing_numbers
from router.errors import ApiError, bad_request

_EMPTY_VECTORS: Final = (b"", b"[]", b'""', b"null")


class _EmbeddingsFields(RequestFields):
    input: str | list[Any] | None = None
    messages: list[Any] | None = None  # vLLM's, in place of `input`
    dimensions: int | None = None
    encoding_format: str | None = None

    def validate(self) -> ApiError | None:
        if self.input in (None, []) and not self.messages:
            return missing_field_error("input")
        if self.encoding_format not in (None, "float", "base64"):
            # For `bytes` and `bytes_only`, vLLM sends a body that is not JSON.
            return bad_request("`encoding_format` must be `float` or `base64`.", param="encoding_format")
        return None


class _Vector(msgspec.Struct):
    embedding: msgspec.Raw = msgspec.Raw()


class _EmbeddingsResponse(msgspec.Struct):
    data: list[_Vector]
    usage: Any = None
    error: Any = None


_decode_response = msgspec.json.Decoder(_EmbeddingsResponse).decode


def record_embeddings(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    try:
        response = _decode_response(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NotStoredReason.ERROR
    if response.error is not None:
        return NotStoredReason.ERROR
    if len(response.data) != _input_count(request):
        return NotStoredReason.INCOMPLETE
    if any(bytes(vector.embedding) in _EMPTY_VECTORS for vector in response.data):
        return NotStoredReason.EMPTY
    if any(has_missing_numbers(bytes(vector.embedding), request.fields) for vector in response.data):
        return NotStoredReason.NOT_FINITE
    return record_json(body, parse_usage(response.usage) or estimate_usage(len(request.body), 0), limit)


def _input_count(request: InferenceRequest) -> int:
    # A text, a list of token ids and a conversation each are one input.
    value = request.fields.get("input") or request.fields.get("messages")
    if not isinstance(value, list) or isinstance(value[0], int):
        return 1
    return 1 if isinstance(value[0], dict) else len(value)


EMBEDDINGS: Final = Endpoint(
    path="/v1/embeddings",
    operation="embeddings",
    fields_type=_EmbeddingsFields,
    input=EncodedInput("input", messages_field="messages"),
    find_server_state=None,
    samples=False,
    applies_logit_fields=False,
    may_fall_back=False,  # vectors of different models cannot be compared
    record_body=record_embeddings,
)
