"""Reads the JSON response of an engine, which may be an error in spite of its status 200."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec


class JsonResponse(msgspec.Struct):
    """What every response may have; each endpoint adds its own fields in a subclass."""

    error: Any = None


ResponseT = TypeVar("ResponseT", bound=JsonResponse)


def decode_success(decode: Callable[[bytes], ResponseT], body: bytes) -> ResponseT | None:
    """The response; None if it has another form or is an error."""
    try:
        response = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return response if response.error is None else None
