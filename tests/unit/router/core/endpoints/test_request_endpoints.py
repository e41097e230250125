"""Validation of embeddings, responses and messages requests, and the bodies that engines receive."""

import json
from typing import Any

import pytest

from router.core.endpoints.chat import CHAT
from router.core.endpoints.classify import CLASSIFY
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.count_tokens import COUNT_TOKENS
from router.core.endpoints.detokenize import DETOKENIZE
from router.core.endpoints.embeddings import EMBEDDINGS
from router.core.endpoints.endpoint import Endpoint, InferenceRequest
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.pooling import POOLING
from router.core.endpoints.requests.request import engine_body
from router.core.endpoints.rerank import RERANK
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.score import SCORE
from router.core.endpoints.tokenize import TOKENIZE
from router.errors import ApiError
from tests.support.factories import embeddings, messages, request, responses

USER = {"role": "user", "content": "Hi"}


def refused(endpoint: Endpoint, fields: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        request(endpoint, {"model": "m", **fields})
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        (EMBEDDINGS, {}, "input"),
        (EMBEDDINGS, {"input": []}, "input"),
        (EMBEDDINGS, {"input": 1}, "input"),
        (EMBEDDINGS, {"input": "x", "dimensions": "3"}, "dimensions"),
        (EMBEDDINGS, {"input": "x", "encoding_format": 3}, "encoding_format"),
        (EMBEDDINGS, {"input": "x", "encoding_format": "bytes"}, "encoding_format"),
        (RESPONSES, {}, "input"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": ["x"]}, "input[0]"),
        (RESPONSES, {"input": [{"role": 1}]}, "input[0].role"),
        (RESPONSES, {"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
        (RESPONSES, {"input": "x", "instructions": ["x"]}, "instructions"),
        (RESPONSES, {"input": "x", "max_output_tokens": "9"}, "max_output_tokens"),
        (RESPONSES, {"input": "x", "stream": 1}, "stream"),
        (RESPONSES, {"input": "x", "background": "no"}, "background"),
        (RESPONSES, {"input": "x", "tools": {}}, "tools"),
        (MESSAGES, {"max_tokens": 9}, "messages"),
        (MESSAGES, {"max_tokens": 9, "messages": []}, "messages"),
        (MESSAGES, {"messages": [USER]}, "max_tokens"),
        (MESSAGES, {"messages": [USER], "max_tokens": None}, "max_tokens"),
        (MESSAGES, {"max_tokens": 9, "messages": [{"content": "Hi"}]}, "messages[0].role"),
        (MESSAGES, {"max_tokens": 9, "messages": [USER], "system": 1}, "system"),
        (MESSAGES, {"max_tokens": 9, "messages": [USER], "system": ["x"]}, "system[0]"),
        (COUNT_TOKENS, {}, "messages"),
        (COUNT_TOKENS, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (COUNT_TOKENS, {"messages": [USER], "system": 1}, "system"),
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"messages": []}, "prompt"),
        (TOKENIZE, {"prompt": ["x"]}, "prompt"),
        (TOKENIZE, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": "x"}, "tokens"),
        (DETOKENIZE, {"tokens": [0.5]}, "tokens[0]"),
        (CLASSIFY, {}, "input"),
        (CLASSIFY, {"input": []}, "input"),
        (POOLING, {}, "input"),
        (POOLING, {"input": 1}, "input"),
        (POOLING, {"input": "x", "encoding_format": "bytes_only"}, "encoding_format"),
        (RERANK, {"documents": ["x"]}, "query"),
        (RERANK, {"query": "x"}, "documents"),
        (RERANK, {"query": "x", "documents": []}, "documents"),
        (RERANK, {"query": ["x"], "documents": ["x"]}, "query"),
        (RERANK, {"query": "x", "documents": [3]}, "documents[0]"),
        (RERANK, {"query": "x", "documents": ["x"], "top_n": "1"}, "top_n"),
        (SCORE, {}, "queries"),
        (SCORE, {"queries": "x"}, "documents"),
        (SCORE, {"items": "x"}, "queries"),
        (SCORE, {"data_1": "x"}, "data_2"),
        (SCORE, {"text_2": "x"}, "text_1"),
        (SCORE, {"text_1": "x", "text_2": 1}, "text_2"),
    ],
)
def test_a_missing_or_wrong_field_is_refused_by_name(endpoint: Endpoint, fields: dict[str, Any], param: str) -> None:
    error = refused(endpoint, fields)
    assert error.param == param
    assert f"`{param}`" in error.message


@pytest.mark.parametrize("input_", ["x", "", ["x", "y"], [1, 2], [[1, 2], [3]], [USER], [[USER], [USER]]])
def test_embeddings_take_text_tokens_or_conversations(input_: Any) -> None:
    assert embeddings(input=input_).fields["input"] == input_


def test_embeddings_take_a_conversation_in_place_of_the_input() -> None:
    assert request(EMBEDDINGS, {"model": "m", "messages": [USER]}).fields["messages"] == [USER]


def test_embeddings_never_stream_since_vllm_ignores_the_field() -> None:
    parsed_request = embeddings(stream=True)
    assert not parsed_request.stream
    assert json.loads(engine_body(parsed_request, "served")) == {"model": "served", "input": "Hi", "stream": True}


def test_embeddings_are_always_deterministic() -> None:
    assert embeddings().deterministic
    assert not responses().deterministic
    assert not messages().deterministic
    assert messages(temperature=0).deterministic


@pytest.mark.parametrize(
    "input_",
    [
        "x", "", [USER], [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
        [{"type": "function_call_output", "call_id": "c", "output": "x"}],
        [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]}],
    ],
)  # fmt: skip
def test_responses_take_a_text_or_items(input_: Any) -> None:
    assert responses(input=input_).fields["input"] == input_


def test_the_token_limit_has_another_name_at_each_endpoint() -> None:
    assert responses(max_output_tokens=5, max_tokens=6).max_tokens == 5
    assert responses().max_tokens is None
    assert messages(max_tokens=7).max_tokens == 7
    assert embeddings().max_tokens is None


@pytest.mark.parametrize(
    "inference_request", [responses(stream=True), messages(stream=True)], ids=["responses", "messages"]
)
def test_a_stream_that_always_sends_its_usage_is_given_no_stream_options(inference_request: InferenceRequest) -> None:
    assert inference_request.stream
    assert engine_body(inference_request, "llama") is inference_request.body
    assert "stream_options" not in json.loads(engine_body(inference_request, "served"))


REQUIRED_FIELDS: dict[Endpoint, dict[str, Any]] = {
    CHAT: {"messages": [USER]}, MESSAGES: {"messages": [USER], "max_tokens": 9}, COMPLETIONS: {"prompt": "x"},
    RESPONSES: {"input": "x"}, EMBEDDINGS: {"input": "x"}, COUNT_TOKENS: {"messages": [USER]},
    RERANK: {"query": "q", "documents": ["d"]}, SCORE: {"queries": "q", "documents": ["d"]}, CLASSIFY: {"input": "x"},
    POOLING: {"input": "x"}, TOKENIZE: {"prompt": "x"}, DETOKENIZE: {"tokens": [1]},
}  # fmt: skip


@pytest.mark.parametrize("endpoint", REQUIRED_FIELDS, ids=lambda endpoint: endpoint.path)
def test_no_model_is_needed_and_the_engine_gets_its_own(endpoint: Endpoint) -> None:
    fields = REQUIRED_FIELDS[endpoint]
    for given in ({}, {"model": None}, {"model": ""}):
        made = request(endpoint, {**given, **fields})
        assert made.model == ""
        assert json.loads(engine_body(made, "served")) == {**fields, "model": "served"}
    refused(endpoint, {**fields, "model": 3})
    refused(endpoint, {**fields, "model": "x" * 257})


@pytest.mark.parametrize(
    "endpoint", [COUNT_TOKENS, RERANK, SCORE, CLASSIFY, POOLING, TOKENIZE, DETOKENIZE],
    ids=lambda endpoint: endpoint.path,
)  # fmt: skip
def test_nothing_is_generated_so_max_tokens_bounds_nothing(endpoint: Endpoint) -> None:
    fields = {"messages": [USER], **REQUIRED_FIELDS[endpoint], "max_tokens": 10**6, "stream": True}
    made = request(endpoint, {"model": "m", **fields})
    assert (made.max_tokens, made.stream, made.deterministic) == (None, False, True)
