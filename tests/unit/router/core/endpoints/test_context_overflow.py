"""Requests that exceed the context length, in the words of engines and agents."""

import json

import pytest

from router.core.endpoints.errors.anthropic_errors import ANTHROPIC_ERRORS
from router.core.endpoints.errors.context_overflow import (
    ContextOverflow,
    anthropic_message,
    find_context_overflow,
    openai_stream_message,
)
from router.core.endpoints.errors.engine_errors import parse_refusal, parse_reported_error
from router.core.routing.context_length import context_length_error
from router.core.routing.token_bounds import TokenBounds
from tests.support.factories import chat

VLLM = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, "
    "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
)


ADVICE = "decrease input length or `max_tokens` and try again"
# The first is vLLM's for a long text that it does not tokenize; the next one is that of vLLM before 0.12.
TEXT_TOO_LONG = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains 90000 characters (more than "
    "65536 characters, which is the upper bound for 4096 input tokens)."
)
MAX_TOKENS_TOO_LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context length is 4096 tokens "
    "and your request has 4000 input tokens (500 > 4096 - 4000)."
)
OPENAI = (
    "This model's maximum context length is 4097 tokens. However, you requested 4500 tokens (4000 in the messages, "
    "500 in the completion). Please reduce the length of the messages or completion."
)
SGLANG = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 4500 "
    "tokens: 4000 tokens from the input messages and 500 tokens for the completion."
)
SGLANG_PROMPT = "The input (6000 tokens) is longer than the model's context length (4096 tokens)."
MULTIMODAL = "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that …"
LLAMA_CPP = "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it"


@pytest.mark.parametrize(
    ("message", "overflow"),
    [
        (VLLM, ContextOverflow(4096, 4097, None, is_exact=False)),
        (VLLM.replace("at least 4097", "5000"), ContextOverflow(4096, 5000, None, is_exact=True)),
        (TEXT_TOO_LONG, ContextOverflow(4096, None, None, is_exact=True)),
        (MAX_TOKENS_TOO_LARGE, ContextOverflow(4096, 4000, 500, is_exact=True)),
        (OPENAI, ContextOverflow(4097, 4000, 500, is_exact=True)),
        (SGLANG, ContextOverflow(4096, 4000, 500, is_exact=True)),
        (SGLANG_PROMPT, ContextOverflow(4096, 6000, None, is_exact=True)),
        (MULTIMODAL, ContextOverflow(4096, 5000, None, is_exact=True)),
        (LLAMA_CPP, ContextOverflow(4096, 5000, None, is_exact=True)),
        ("max_tokens must be at least 1, got 0.", None),
        ("Invalid rope_scaling: this model's maximum context length is 4096 tokens.", None),
        ("", None),
    ],
)
def test_the_numbers_are_those_of_the_engines_message(message: str, overflow: ContextOverflow | None) -> None:
    assert find_context_overflow(message) == overflow


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (VLLM, "prompt is too long: at least 4097 tokens > 4096 maximum"),
        (VLLM.replace("at least 4097", "5000"), "prompt is too long: 5000 tokens > 4096 maximum"),
        (TEXT_TOO_LONG, "prompt is too long: at least 4097 tokens > 4096 maximum"),
        (OPENAI, f"input length and `max_tokens` exceed context limit: 4000 + 500 > 4097, {ADVICE}"),
        ("The context is full.", "The context is full."),
    ],
)
def test_agents_of_anthropic_get_the_numbers_in_its_words(message: str, words: str) -> None:
    assert anthropic_message(message) == words


def test_a_stream_has_the_words_of_openais_streams_once_and_the_numbers() -> None:
    shown = openai_stream_message(VLLM)
    assert shown == f"The request exceeds the context window of this model. {VLLM}"
    assert openai_stream_message(shown) == shown
    assert find_context_overflow(shown) == find_context_overflow(VLLM)


def test_a_refusal_gets_openais_code_and_keeps_the_rest() -> None:
    error = {"message": VLLM, "type": "BadRequestError", "param": "input_tokens", "code": 400}
    refused = parse_refusal(400, json.dumps({"error": error}).encode())
    assert refused.raw is None
    assert (refused.status, refused.code) == (400, "context_length_exceeded")
    assert (refused.message, refused.kind, refused.param) == (VLLM, "BadRequestError", "input_tokens")


def test_a_code_that_the_engine_gives_in_words_is_kept() -> None:
    body = json.dumps({"error": {"message": VLLM, "code": "prompt_too_long"}}).encode()
    assert parse_refusal(400, body).raw == body


def test_an_error_within_a_stream_gets_the_same_code() -> None:
    refused = parse_reported_error(json.dumps({"error": {"message": VLLM, "code": 400}}).encode()).refusal
    assert refused is not None
    assert (refused.code, refused.raw) == ("context_length_exceeded", None)


def test_the_routers_own_refusal_has_the_same_words_for_agents() -> None:
    request = chat(max_tokens=5000)
    error = context_length_error(request, TokenBounds(3, 5000, None), 4096)
    message = json.loads(ANTHROPIC_ERRORS.body(error, "req"))["error"]["message"]
    assert message.startswith("input length and `max_tokens` exceed context limit: 3 + 5000 > 4096,")
