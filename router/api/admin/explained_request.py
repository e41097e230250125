"""Reads the questions of /admin/cache/explain and /admin/engines/explain."""

from typing import Final, TypeVar

import msgspec

from router.errors import bad_request

EXPLAIN_OVERHEAD: Final = 4096
"""Bytes around the request that is to be explained."""

QuestionT = TypeVar("QuestionT", bound=msgspec.Struct)


def decode_explained(body: bytes, kind: type[QuestionT]) -> QuestionT:
    """Raises ApiError (400)."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"Invalid request to explain: {error}", code="invalid_question") from None
