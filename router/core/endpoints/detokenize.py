"""/detokenize: the text of token ids.

Source: vLLM's entrypoints/serve/tokenize.
"""

from typing import Final

import msgspec

from router.core.endpoints.endpoint import Endpoint, InferenceRequest, TokenizedInput
from router.core.endpoints.recording.json_responses import JsonResponse, decode_success
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.recording import record_json
from router.core.endpoints.requests.request_fields import RequestFields, missing_field_error
from router.errors import ApiError


class _DetokenizeFields(RequestFields):
    tokens: list[int] | None = None

    def validate(self) -> ApiError | None:
        return missing_field_error("tokens") if self.tokens is None else None  # no tokens are an empty text

    def max_answer_tokens(self) -> int | None:
        return None  # nothing is generated


class _DetokenizeResponse(JsonResponse, kw_only=True):
    prompt: str


_decode_response = msgspec.json.Decoder(_DetokenizeResponse).decode


def record_text(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    if decode_success(_decode_response, body) is None:
        return NotStoredReason.ERROR
    return record_json(body, None, limit)


DETOKENIZE: Final = Endpoint(
    path="/detokenize",
    operation="detokenize",
    accepts_x_api_key=False,
    fields_type=_DetokenizeFields,
    input=TokenizedInput("tokens", messages_field=None),
    echoed_fields={},
    find_server_state=None,
    samples=False,
    applies_logit_fields=False,
    may_fall_back=False,  # each model has its own tokens
    record_body=record_text,
    streaming=None,
    runs_model=False,
)
