"""/pooling: what a pooling model gives for an input: a vector, or one for each token. Complete with one for each input.

A request with `data` is for a plugin of the engine. What that does is not known, so such a response is never reused.

Source: vLLM's entrypoints/pooling/pooling.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from router.core.endpoints.endpoint import EncodedInput, Endpoint, InferenceRequest
from router.core.endpoints.recording.json_responses import JsonResponse, decode_success
from router.core.endpoints.recording.list_responses import Item, ListResponse, record_list
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.recording import record_json
from router.core.endpoints.recording.usage import estimate_usage
from router.core.endpoints.requests.encoded_fields import EncodedFields, encoded_count
from router.errors import ApiError, bad_request


class _PoolingFields(EncodedFields):
    data: Any = None
    encoding_format: str | None = None

    def validate(self) -> ApiError | None:
        if self.encoding_format not in (None, "float", "base64"):
            # For `bytes` and `bytes_only`, vLLM sends a body that is not JSON.
            return bad_request("`encoding_format` must be `float` or `base64`.", param="encoding_format")
        return None if self.data is not None else super().validate()


class _Pooled(msgspec.Struct):
    index: Any = None
    data: msgspec.Raw = msgspec.Raw()


class _PoolingResponse(ListResponse, kw_only=True):
    data: list[_Pooled]


_decode_response = msgspec.json.Decoder(_PoolingResponse).decode
_decode_object = msgspec.json.Decoder(JsonResponse).decode


def _items(response: _PoolingResponse) -> Iterator[Item]:
    return ((item.index, item.data) for item in response.data)


def _is_for_plugin(fields: Mapping[str, Any]) -> bool:
    return fields.get("data") is not None


def _find_plugin(fields: Mapping[str, Any]) -> str | None:
    return "`data` is for a plugin of the engine." if _is_for_plugin(fields) else None


def record_pooled(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    if not _is_for_plugin(request.fields):
        return record_list(
            request, body, limit, decode=_decode_response, items=_items, input_count=encoded_count(request.fields)
        )
    if decode_success(_decode_object, body) is None:
        return NotStoredReason.ERROR
    return record_json(body, estimate_usage(len(request.body), 0), limit)


POOLING: Final = Endpoint(
    path="/pooling",
    operation="pooling",
    fields_type=_PoolingFields,
    input=EncodedInput("input", messages_field="messages"),
    find_server_state=_find_plugin,
    samples=False,
    applies_logit_fields=False,
    may_fall_back=False,  # vectors of different models cannot be compared
    record_body=record_pooled,
)
