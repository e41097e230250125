"""Responses that are a list with an item for each input; see rerank, score, classify and pooling."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.json_responses import JsonResponse, decode_success
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.recording import record_json
from router.core.endpoints.recording.usage import estimate_usage, parse_usage
from router.core.endpoints.vectors import has_missing_numbers

_EMPTY_VALUES: Final = (b"", b"[]", b'""', b"null")

Item = tuple[Any, msgspec.Raw]
"""The `index` of an item, which is that of its input, and its value."""


class ListResponse(JsonResponse):
    """What all these responses have; each endpoint adds its list in a subclass."""

    usage: Any = None


ResponseT = TypeVar("ResponseT", bound=ListResponse)


def record_list(
    request: InferenceRequest, body: bytes, limit: int, *, decode: Callable[[bytes], ResponseT],
    items: Callable[[ResponseT], Iterable[Item]], input_count: int, item_count: int | None = None,
) -> RecordedResponse | NotStoredReason:  # fmt: skip
    """What to store of a response, or why nothing is stored.

    It is complete with `item_count` items (by default one for each input) of different inputs, none of them empty. It
    is stored if each value has a number in each place.
    """
    response = decode_success(decode, body)
    if response is None:
        return NotStoredReason.ERROR
    listed = list(items(response))
    indexes = {index for index, _ in listed if type(index) is int and 0 <= index < input_count}
    if not len(indexes) == len(listed) == (input_count if item_count is None else item_count):
        return NotStoredReason.INCOMPLETE
    if any(bytes(value) in _EMPTY_VALUES for _, value in listed):
        return NotStoredReason.EMPTY
    if any(has_missing_numbers(bytes(value), request.fields) for _, value in listed):
        return NotStoredReason.NOT_FINITE
    return record_json(body, parse_usage(response.usage) or estimate_usage(len(request.body), 0), limit)


def input_count(value: Any) -> int:
    """The number of inputs in a field: a text, an object or token ids are one, as is a conversation."""
    if not isinstance(value, list) or (value and isinstance(value[0], int | dict)):
        return 1
    return len(value)
