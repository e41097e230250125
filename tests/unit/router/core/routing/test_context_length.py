"""Whether a request fits into an engine's context, as far as that is known without counting tokens."""

from typing import Any

import pytest

from router.core.endpoints.endpoint import InferenceRequest
from router.core.routing.context_length import (
    TEMPLATE_OVERHEAD,
    check_fit,
    context_length_error,
    context_need,
    token_bounds,
)
from router.core.routing.token_bounds import Fit, TokenBounds
from tests.support.factories import (
    chat,
    classify,
    completion,
    conversation,
    count_tokens,
    detokenize,
    embeddings,
    messages,
    rerank,
    responses,
    tokenize,
)


def test_a_prompt_has_at_most_as_many_tokens_as_bytes() -> None:
    request = conversation(("user", "naïve " * 100), max_tokens=50)
    bounds = token_bounds(request)
    assert (bounds.min_prompt, bounds.completion, bounds.max_total) == (
        0,
        50,
        len(request.body) + TEMPLATE_OVERHEAD + 50,
    )


@pytest.mark.parametrize(
    ("inference_request", "prompt"),
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
def test_token_ids_are_counted_by_the_longest_prompt(inference_request: InferenceRequest, prompt: int) -> None:
    assert token_bounds(inference_request).min_prompt == prompt


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    "inference_request",
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
def test_the_length_of_images_and_remote_content_is_unknown(inference_request: InferenceRequest) -> None:
    bounds = token_bounds(inference_request)
    assert bounds.max_total is None
    assert check_fit(bounds, 1 << 20) is Fit.MAY_FIT


@pytest.mark.parametrize(
    "inference_request",
    [
        messages(messages=[{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text"}]}]}]),
        messages(messages=[{"role": "user", "content": [{"type": "tool_result", "content": "42"}]}]),
        responses(input=[{"type": "function_call_output", "call_id": "1", "output": "42"}]),
        chat(messages=[{"role": "assistant", "content": None}, {"role": "user", "content": [{"type": "text"}]}]),
    ],
)
def test_the_length_of_text_has_an_upper_bound(inference_request: InferenceRequest) -> None:
    assert check_fit(token_bounds(inference_request), 1 << 20) is Fit.FITS


@pytest.mark.parametrize(
    ("length", "context", "fits"),
    [
        (TokenBounds(0, 10, 100), 100, Fit.FITS),
        (TokenBounds(0, 10, 101), 100, Fit.MAY_FIT),
        (TokenBounds(0, 10, 100), None, Fit.MAY_FIT),
        (TokenBounds(0, 100, 900), 100, Fit.MAY_FIT),
        (TokenBounds(0, 101, 900), 100, Fit.TOO_LONG),
        (TokenBounds(101, 1, 900), 100, Fit.TOO_LONG),
        (TokenBounds(100, 1, 900), 100, Fit.MAY_FIT),
        (TokenBounds(0, 10, None), 100, Fit.MAY_FIT),
    ],
)
def test_a_prompt_fits_may_fit_or_is_too_long(length: TokenBounds, context: int | None, fits: Fit) -> None:
    assert check_fit(length, context) is fits


@pytest.mark.parametrize(
    ("inference_request", "param"),
    [
        (chat(max_tokens=9000), "messages"),
        (messages(max_tokens=9000), "messages"),
        (completion(max_tokens=9000), "prompt"),
        (responses(max_output_tokens=9000), "input"),
        (embeddings(input=[1] * 9000), "input"),
    ],
)
def test_a_refusal_is_worded_as_openais(inference_request: InferenceRequest, param: str) -> None:
    error = context_length_error(inference_request, token_bounds(inference_request), 8192)
    assert (error.status, error.code, error.param, error.kind) == (
        400, "context_length_exceeded", param, "invalid_request_error",
    )  # fmt: skip
    assert "This model's maximum context length is 8192 tokens." in error.message
    assert "9000" in error.message


@pytest.mark.parametrize("value", [None, 0, -1])
def test_an_invalid_token_limit_counts_as_zero(value: Any) -> None:
    assert token_bounds(chat(max_tokens=value)).completion == 0


@pytest.mark.parametrize(
    "inference_request",
    [detokenize(tokens=[1] * 99), tokenize(prompt="x" * 99), count_tokens(max_tokens=99), rerank(documents=["x"] * 99)],
    ids=["detokenize", "tokenize", "count_tokens", "rerank"],
)
def test_no_context_is_too_short_for_the_tokenizer_and_for_many_documents(inference_request: InferenceRequest) -> None:
    bounds = token_bounds(inference_request)
    assert (bounds.min_prompt, bounds.completion) == (0, 0)
    assert not context_need(inference_request).exceeds(1, shortens=False)


def test_token_ids_to_classify_must_fit() -> None:
    assert context_need(classify(input=[1] * 99)).exceeds(98, shortens=True)
    assert not context_need(classify(input=[1] * 99, truncate_prompt_tokens=5)).exceeds(98, shortens=True)


def test_an_engine_that_shortens_answers_takes_any_limit_but_no_longer_prompt() -> None:
    asked, prompt = chat(max_tokens=101), completion(prompt=[1] * 101, max_tokens=1)
    for request, shortens, fits in (
        (asked, False, Fit.TOO_LONG), (asked, True, Fit.MAY_FIT), (prompt, True, Fit.TOO_LONG),
    ):  # fmt: skip
        assert check_fit(token_bounds(request), 100, shortens=shortens) is fits
        assert context_need(request).exceeds(100, shortens=shortens) is (fits is Fit.TOO_LONG)
