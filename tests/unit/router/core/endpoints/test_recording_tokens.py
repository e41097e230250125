"""Tokens, texts and token counts are stored if the response has them, and count as no usage."""

import json
from typing import Any, Final

import pytest

from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from tests.support.endpoints import record_body
from tests.support.factories import count_tokens, detokenize, tokenize

LIMIT: Final = 1 << 20


def body_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


TOKENS: Final = body_of(count=2, max_model_len=9, tokens=[1, 2], token_strs=None)
COUNT: Final = body_of(input_tokens=3, context_management={"original_input_tokens": 3})


@pytest.mark.parametrize(
    ("made", "body"),
    [
        (tokenize(), TOKENS), (tokenize(prompt=""), body_of(count=0, tokens=[])), (tokenize(), body_of(tokens=[1])),
        (tokenize(return_token_strs=True), body_of(count=1, tokens=[1], token_strs=["a"])),
        (detokenize(), body_of(prompt="a")), (detokenize(tokens=[]), body_of(prompt="")), (count_tokens(), COUNT),
    ],
)  # fmt: skip
def test_a_complete_response_is_stored_and_counts_as_no_usage(made: Any, body: bytes) -> None:
    stored = RecordedResponse(body=body, stream=None, prompt_tokens=0, completion_tokens=0)
    assert record_body(made, body, LIMIT) == stored
    assert record_body(made, body, 3) is NotStoredReason.TOO_LARGE


@pytest.mark.parametrize(
    ("made", "body", "reason"),
    [
        (tokenize(), body_of(count=2, tokens=[1]), NotStoredReason.INCOMPLETE),
        (tokenize(), body_of(count=2), NotStoredReason.INCOMPLETE),
        (tokenize(return_token_strs=True), TOKENS, NotStoredReason.INCOMPLETE),
        (tokenize(return_token_strs=True), body_of(tokens=[1, 2], token_strs=["a"]), NotStoredReason.INCOMPLETE),
        (tokenize(), body_of(tokens=["a"]), NotStoredReason.ERROR),
        (detokenize(), body_of(prompt=None), NotStoredReason.ERROR), (detokenize(), b"{}", NotStoredReason.ERROR),
        (count_tokens(), body_of(input_tokens=-1), NotStoredReason.ERROR),
        (count_tokens(), body_of(input_tokens=None), NotStoredReason.ERROR),
    ],
)  # fmt: skip
def test_an_incomplete_response_is_not_stored(made: Any, body: bytes, reason: NotStoredReason) -> None:
    assert record_body(made, body, LIMIT) is reason
