"""/detokenize: the text of token ids.

Source: vLLM's entrypoints/serve/tokenize.
"""

from functools import partial
from typing import Final

import msgspec

from router.core.endpoints.endpoint import Endpoint, TokenizedInput
from router.core.endpoints.recording.json_responses import JsonResponse, record_success
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


DETOKENIZE: Final = Endpoint(
    path="/detokenize",
    operation="detokenize",
    fields_type=_DetokenizeFields,
    input=TokenizedInput("tokens", messages_field=None),
    find_server_state=None,
    samples=False,
    applies_logit_fields=False,
    may_fall_back=False,  # each model has its own tokens
    record_body=partial(record_success, msgspec.json.Decoder(_DetokenizeResponse).decode),
    runs_model=False,
)
