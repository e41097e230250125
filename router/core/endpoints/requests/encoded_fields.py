"""What requests to vLLM's pooling models have in common; see classify and pooling."""

from typing import Any

from router.core.endpoints.recording.list_responses import input_count
from router.core.endpoints.requests.request_fields import RequestFields, missing_field_error
from router.errors import ApiError


class EncodedFields(RequestFields):
    input: str | list[Any] | None = None
    messages: list[Any] | None = None  # in place of `input`

    def validate(self) -> ApiError | None:
        return missing_field_error("input") if self.input in (None, []) and not self.messages else None

    def max_answer_tokens(self) -> int | None:
        return None  # nothing is generated


def encoded_count(fields: dict[str, Any]) -> int:
    """The number of inputs of a request; a conversation is one."""
    return input_count(fields["input"]) if fields.get("input") is not None else 1
