"""Whether a request fits into an engine's context, as far as that can be known without counting tokens."""

from typing import Any

import pytest

from router.core.endpoints.request import Request
from router.core.routing.context_length import TEMPLATE, Fit, Length, fit, length_of, too_long
from tests.support.factories import chat, completion, embeddings, messages, responses, talk


def test_a_prompt_has_at_most_as_many_tokens_as_bytes() -> None:
    asked = talk(("user", "naïve " * 100), max_tokens=50)
    found = length_of(asked)
    assert (found.prompt, found.answer, found.most) == (0, 50, len(asked.body) + TEMPLATE + 50)


@pytest.mark.parametrize(
    ("asked", "prompt"),
    [
        (completion(prompt=[1, 2, 3]), 3),
        (completion(prompt=[[1], [1, 2, 3, 4]]), 4),
        (completion(prompt=["a text", "another"]), 0),
        (completion(prompt=[1, 2, 3], truncate_prompt_tokens=2), 0),
        (embeddings(input=[7] * 9), 9),
        (embeddings(input=[[7], [7, 7]]), 2),
        (embeddings(input=["one", "two"]), 0),
    ],
)
def test_token_ids_are_counted_by_the_longest_prompt(asked: Request, prompt: int) -> None:
    assert length_of(asked).prompt == prompt


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    "asked",
    [
        chat(messages=[{"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]}]),
        messages(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]),
        responses(input=[{"role": "user", "content": [{"type": "input_image"}]}]),
        responses(previous_response_id="resp_1"),
        responses(input=[{"type": "item_reference", "id": "msg_1"}]),
        responses(input=[{"id": "msg_1"}]),
        responses(prompt={"id": "pmpt_1"}),
        messages(messages=[{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]),
        completion(prompt_embeds="AAAA"),
    ],
)
def test_of_images_and_of_what_is_kept_elsewhere_nobody_knows_the_length(asked: Request) -> None:
    found = length_of(asked)
    assert found.most is None
    assert fit(found, 1 << 20) is Fit.PERHAPS


@pytest.mark.parametrize(
    "asked",
    [
        messages(messages=[{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text"}]}]}]),
        messages(messages=[{"role": "user", "content": [{"type": "tool_result", "content": "42"}]}]),
        responses(input=[{"type": "function_call_output", "call_id": "1", "output": "42"}]),
        chat(messages=[{"role": "assistant", "content": None}, {"role": "user", "content": [{"type": "text"}]}]),
    ],
)
def test_of_text_a_bound_is_known(asked: Request) -> None:
    assert fit(length_of(asked), 1 << 20) is Fit.SURELY


@pytest.mark.parametrize(
    ("length", "context", "fits"),
    [
        (Length(0, 10, 100), 100, Fit.SURELY),
        (Length(0, 10, 101), 100, Fit.PERHAPS),
        (Length(0, 10, 100), None, Fit.PERHAPS),
        (Length(0, 100, 900), 100, Fit.PERHAPS),
        (Length(0, 101, 900), 100, Fit.NEVER),
        (Length(101, 1, 900), 100, Fit.NEVER),
        (Length(100, 1, 900), 100, Fit.PERHAPS),
        (Length(0, 10, None), 100, Fit.PERHAPS),
    ],
)
def test_it_fits_surely_perhaps_or_never(length: Length, context: int | None, fits: Fit) -> None:
    assert fit(length, context) is fits


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (chat(max_tokens=9000), "messages"),
        (messages(max_tokens=9000), "messages"),
        (completion(max_tokens=9000), "prompt"),
        (responses(max_output_tokens=9000), "input"),
        (embeddings(input=[1] * 9000), "input"),
    ],
)
def test_a_refusal_is_worded_as_openais(asked: Request, param: str) -> None:
    error = too_long(asked, length_of(asked), 8192)
    assert (error.status, error.code, error.param, error.kind) == (
        400, "context_length_exceeded", param, "invalid_request_error",
    )  # fmt: skip
    assert "This model's maximum context length is 8192 tokens." in error.message
    assert "9000" in error.message


@pytest.mark.parametrize("value", [None, 0, -1])
def test_a_limit_that_is_none_asks_for_nothing(value: Any) -> None:
    assert length_of(chat(max_tokens=value)).answer == 0
