"""/v1/messages/count_tokens: the number of tokens that a request to /v1/messages has.

Source: https://docs.anthropic.com/en/api/messages-count-tokens, and vLLM's entrypoints/anthropic.
"""

from functools import partial
from typing import Annotated, Any, Final

import msgspec

from router.core.endpoints.endpoint import Conversation, Endpoint
from router.core.endpoints.errors.anthropic_errors import ANTHROPIC_ERRORS
from router.core.endpoints.recording.json_responses import JsonResponse, record_success
from router.core.endpoints.requests.request_fields import InputMessage, RequestFields, no_messages_error
from router.core.endpoints.requests.server_state import find_messages_state
from router.errors import ApiError


class _CountTokensFields(RequestFields):
    messages: list[InputMessage] = msgspec.field(default_factory=list)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None

    def validate(self) -> ApiError | None:
        return None if self.messages else no_messages_error()

    def max_answer_tokens(self) -> int | None:
        return None  # nothing is generated


class _CountTokensResponse(JsonResponse, kw_only=True):
    input_tokens: Annotated[int, msgspec.Meta(ge=0)]


COUNT_TOKENS: Final = Endpoint(
    path="/v1/messages/count_tokens",
    operation="count_tokens",
    accepts_x_api_key=True,  # Anthropic's clients send it
    fields_type=_CountTokensFields,
    input=Conversation("messages", system_field="system"),
    find_server_state=find_messages_state,
    samples=False,
    applies_logit_fields=False,
    may_fall_back=False,  # each model has its own tokens
    record_body=partial(record_success, msgspec.json.Decoder(_CountTokensResponse).decode),
    errors=ANTHROPIC_ERRORS,
    runs_model=False,
)
