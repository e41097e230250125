"""/tokenize: the token ids of a text or a conversation. A response is complete with as many tokens as it counts.

Source: vLLM's entrypoints/serve/tokenize.
"""

from typing import Any, Final

import msgspec

from router.core.endpoints.endpoint import Endpoint, InferenceRequest, TokenizedInput
from router.core.endpoints.recording.json_responses import JsonResponse, decode_success
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.recording import record_json
from router.core.endpoints.requests.request_fields import InputMessage, RequestFields, missing_field_error
from router.errors import ApiError


class _TokenizeFields(RequestFields):
    prompt: str | None = None
    messages: list[InputMessage] | None = None

    def validate(self) -> ApiError | None:
        return missing_field_error("prompt") if self.prompt is None and not self.messages else None

    def max_answer_tokens(self) -> int | None:
        return None  # nothing is generated


class _TokenizeResponse(JsonResponse, kw_only=True):
    tokens: list[int] | None = None
    count: int | None = None
    token_strs: list[Any] | None = None


_decode_response = msgspec.json.Decoder(_TokenizeResponse).decode


def record_tokens(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    response = decode_success(_decode_response, body)
    if response is None:
        return NotStoredReason.ERROR
    tokens, texts = response.tokens, response.token_strs
    if tokens is None or response.count not in (None, len(tokens)):
        return NotStoredReason.INCOMPLETE
    if request.fields.get("return_token_strs") and (texts is None or len(texts) != len(tokens)):
        return NotStoredReason.INCOMPLETE
    return record_json(body, None, limit)


TOKENIZE: Final = Endpoint(
    path="/tokenize",
    operation="tokenize",
    fields_type=_TokenizeFields,
    input=TokenizedInput("prompt", messages_field="messages"),
    find_server_state=None,
    samples=False,
    applies_logit_fields=False,
    may_fall_back=False,  # each model has its own tokens
    record_body=record_tokens,
    runs_model=False,
)
