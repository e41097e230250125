"""/classify. A response is complete with the probabilities of the classes for each input.

Source: vLLM's entrypoints/pooling/classify.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from router.core.endpoints.endpoint import EncodedInput, Endpoint, InferenceRequest
from router.core.endpoints.recording.list_responses import Item, ListResponse, record_list
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.requests.encoded_fields import EncodedFields, encoded_count


class _Classification(msgspec.Struct):
    index: Any = None
    probs: msgspec.Raw = msgspec.Raw()


class _ClassifyResponse(ListResponse, kw_only=True):
    data: list[_Classification]


_decode_response = msgspec.json.Decoder(_ClassifyResponse).decode


def _items(response: _ClassifyResponse) -> Iterator[Item]:
    return ((item.index, item.probs) for item in response.data)


def record_classes(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    return record_list(
        request, body, limit, decode=_decode_response, items=_items, input_count=encoded_count(request.fields)
    )


CLASSIFY: Final = Endpoint(
    path="/classify",
    operation="classify",
    fields_type=EncodedFields,
    input=EncodedInput("input", messages_field="messages"),
    find_server_state=None,
    samples=False,
    applies_logit_fields=False,
    may_fall_back=False,  # the classes of different models cannot be compared
    record_body=record_classes,
)
