"""Responses of /v1/embeddings: always JSON, and complete if there is a vector for each input.

Source: https://platform.openai.com/docs/api-reference/embeddings, and vLLM's entrypoints/pooling/embed/protocol.py,
which accepts a conversation as an input too, in `input` or in `messages`.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.recorded_response import NotStoredReason, RecordedResponse, parse_usage
from router.core.endpoints.recording import record_json
from router.core.endpoints.request import InferenceRequest

_EMPTY_VECTORS: Final = (b"", b"[]", b'""', b"null")


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
    return record_json(body, parse_usage(response.usage), limit)


def _input_count(request: InferenceRequest) -> int:
    # A text, a list of token ids and a conversation each are one input.
    value = request.fields.get("input") or request.fields.get("messages")
    if not isinstance(value, list) or isinstance(value[0], int):
        return 1
    return 1 if isinstance(value[0], dict) else len(value)
