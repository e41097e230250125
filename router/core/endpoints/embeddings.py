"""Answers of /v1/embeddings: JSON always, and whole when there is a vector for each input.

Source: https://platform.openai.com/docs/api-reference/embeddings, and vLLM's entrypoints/pooling/embed/protocol.py,
which takes a conversation for an input too, in `input` or in `messages`.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.recorded_response import NotKept, Recording, read_usage
from router.core.endpoints.recording import whole_body
from router.core.endpoints.request import Request

_NO_VECTOR: Final = (b"", b"[]", b'""', b"null")


class _Vector(msgspec.Struct):
    embedding: msgspec.Raw = msgspec.Raw()


class _Answer(msgspec.Struct):
    data: list[_Vector]
    usage: Any = None
    error: Any = None


_answer = msgspec.json.Decoder(_Answer).decode


def record_embeddings(request: Request, body: bytes, limit: int) -> Recording | NotKept:
    """What is to be stored of an answer with status 200, or why nothing is."""
    try:
        answer = _answer(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NotKept.ERROR
    if answer.error is not None:
        return NotKept.ERROR
    if len(answer.data) != _inputs(request):
        return NotKept.INCOMPLETE
    if any(bytes(vector.embedding) in _NO_VECTOR for vector in answer.data):
        return NotKept.EMPTY
    return whole_body(body, read_usage(answer.usage), limit)


def _inputs(request: Request) -> int:
    """How many vectors the answer must have: a text, a list of token ids or a conversation is one input."""
    given = request.fields.get("input") or request.fields.get("messages")
    if not isinstance(given, list) or isinstance(given[0], int):
        return 1
    return 1 if isinstance(given[0], dict) else len(given)
