"""A request that refers to remote content is not cached, since the content can change; inline content is."""

from typing import Any

import pytest

from router.core.cache.cache_control import NO_DIRECTIVES
from router.core.cache.policy import CacheDecision, decide_caching
from router.core.endpoints.endpoint import InferenceRequest
from router.core.types import BypassReason
from tests.support.factories import (
    chat,
    classify,
    completion,
    count_tokens,
    embeddings,
    messages,
    request_parts,
    rerank,
    responses,
    score,
    tokenize,
)

URL, DATA = "https://example.com/cat.png", "data:image/png;base64,AAAA"


def conversation_of(*parts: Any, role: str = "user") -> list[Any]:
    return [{"role": role, "content": [{"type": "text", "text": "What is it?"}, *parts]}]


def result(*parts: Any) -> Any:
    return {"type": "tool_result", "tool_use_id": "a", "content": [*parts]}


def content_of(*parts: Any) -> Any:
    return {"content": [{"type": "text", "text": "A cat"}, *parts]}


REMOTE: list[InferenceRequest] = [
    rerank(documents=["a", content_of({"type": "image_url", "image_url": {"url": URL}})]),
    rerank(documents=content_of({"type": "image_url", "image_url": URL})),
    rerank(query=content_of({"type": "video_url", "video_url": {"url": URL}})),
    score(queries=[content_of({"type": "image_url", "image_url": {"url": URL}}), "b"]),
    score(documents=None, items=["a", content_of({"image_url": URL})]),
    tokenize(messages=conversation_of({"type": "image_url", "image_url": {"url": URL}})),
    classify(messages=conversation_of({"type": "image_url", "image_url": {"url": URL}}), input=None),
    count_tokens(messages=conversation_of({"type": "image", "source": {"type": "url", "url": URL}})),
    chat(messages=conversation_of({"type": "image_url", "image_url": {"url": URL, "detail": "low"}})),
    chat(messages=conversation_of({"type": "image_url", "image_url": URL})),
    chat(messages=conversation_of({"image_url": URL})),
    chat(messages=conversation_of({"type": "image_url", "image_url": {"url": "file:///etc/cat.png"}})),
    chat(messages=conversation_of({"type": "image_url", "image_url": None, "uuid": "cat-1"})),
    chat(messages=conversation_of({"type": "audio_url", "audio_url": {"url": URL}})),
    chat(messages=conversation_of({"type": "video_url", "video_url": {"url": URL}})),
    chat(messages=conversation_of({"type": "file", "file": {"file_id": "file-1"}})),
    chat(messages=[*conversation_of(), {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}]),
    chat(messages=conversation_of({"type": "image_url", "image_url": {"url": URL}}, role="tool")),
    embeddings(messages=conversation_of({"type": "image_url", "image_url": {"url": URL}}), input=None),
    responses(input=conversation_of({"type": "input_image", "image_url": URL})),
    responses(input=conversation_of({"type": "input_image", "file_id": "file-1"})),
    responses(input=conversation_of({"type": "input_file", "file_url": URL})),
    responses(input=conversation_of({"type": "input_file", "file_id": "file-1"})),
    responses(
        input=[{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": URL}]}]
    ),
    responses(
        input=[
            {
                "type": "computer_call_output",
                "call_id": "a",
                "output": {"type": "computer_screenshot", "image_url": URL},
            }
        ]
    ),
    messages(messages=conversation_of({"type": "image", "source": {"type": "url", "url": URL}})),
    messages(messages=conversation_of({"type": "image", "source": {"type": "file", "file_id": "file_1"}})),
    messages(messages=conversation_of({"type": "document", "source": {"type": "url", "url": URL}})),
    messages(messages=conversation_of(result({"type": "image", "source": {"type": "url", "url": URL}}))),
    messages(
        messages=conversation_of(
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "image", "source": {"type": "url", "url": URL}}]},
            }
        )
    ),
    messages(messages=conversation_of({"type": "container_upload", "file_id": "file_1"})),
]
INLINE: list[InferenceRequest] = [
    rerank(documents=["https://example.com/cat.png", content_of({"type": "image_url", "image_url": {"url": DATA}})]),
    score(queries=content_of(), documents=[{"id": "file-1", "text": URL}]),
    tokenize(prompt=URL),
    chat(),
    completion(prompt=URL),
    embeddings(input=[1, 2, 3]),
    embeddings(input=[[1, 2], [3]]),
    embeddings(input=[URL]),
    chat(messages=conversation_of({"type": "text", "text": URL})),
    chat(messages=conversation_of({"type": "image_url", "image_url": {"url": DATA}})),
    chat(messages=conversation_of({"type": "image_url", "image_url": {"url": "DATA:image/png;base64,AAAA"}})),
    chat(messages=conversation_of({"image_url": DATA})),
    chat(messages=conversation_of({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}})),
    chat(messages=conversation_of({"type": "file", "file": {"file_data": DATA, "filename": URL}})),
    chat(documents=[{"text": "x", "url": URL}]),
    chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"url": URL}}}]),
    responses(input=URL),
    responses(input=conversation_of({"type": "input_text", "text": URL})),
    responses(input=conversation_of({"type": "input_image", "image_url": DATA})),
    responses(input=conversation_of({"type": "input_file", "file_data": DATA, "filename": "x"})),
    responses(input=[{"type": "function_call", "call_id": "a", "name": "f", "arguments": f'{{"url": "{URL}"}}'}]),
    responses(input=[{"type": "function_call_output", "call_id": "a", "output": f'{{"url": "{URL}"}}'}]),
    messages(
        messages=conversation_of(
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        )
    ),
    messages(messages=conversation_of({"type": "document", "source": {"type": "text", "data": "x"}, "title": URL})),
    messages(
        messages=conversation_of({"type": "tool_use", "id": "a", "name": "f", "input": {"url": URL}}, role="assistant")
    ),
    messages(messages=conversation_of(result({"type": "text", "text": URL}))),
    messages(messages=conversation_of({"type": "search_result", "source": URL, "title": "x", "content": []})),
]


@pytest.mark.parametrize("inference_request", REMOTE, ids=lambda inference_request: inference_request.body.decode())
def test_content_fetched_from_elsewhere_is_not_cached(inference_request: InferenceRequest) -> None:
    bypass, may_store = decide_caching(inference_request, NO_DIRECTIVES, "all")
    assert bypass is not None
    assert (bypass.reason, may_store) == (BypassReason.UNCACHEABLE, False)
    assert "cache.remote_content" in bypass.explanation
    assert not request_parts(inference_request).texts_only, "it is looked for"


@pytest.mark.parametrize("inference_request", REMOTE, ids=lambda inference_request: inference_request.body.decode())
def test_where_remote_content_is_stable_it_is_cached_by_its_address(inference_request: InferenceRequest) -> None:
    assert decide_caching(inference_request, NO_DIRECTIVES, "all", "stable") == CacheDecision(None, may_store=True)


@pytest.mark.parametrize("inference_request", INLINE, ids=lambda inference_request: inference_request.body.decode())
def test_content_within_the_request_is_cached(inference_request: InferenceRequest) -> None:
    assert decide_caching(inference_request, NO_DIRECTIVES, "all") == CacheDecision(None, may_store=True)


@pytest.mark.parametrize("kind", [[], {}, None, 1])
def test_a_part_of_an_odd_type_is_searched_like_any_other(kind: Any) -> None:
    part = {"type": kind, "image_url": {"url": "https://example.com/cat.png"}}
    bypass, _ = decide_caching(chat(messages=[{"role": "user", "content": [part]}]), NO_DIRECTIVES, "all")
    assert bypass is not None
    assert bypass.reason is BypassReason.UNCACHEABLE


def test_text_messages_are_not_inspected() -> None:
    assert request_parts(chat()).texts_only
    assert request_parts(completion()).texts_only
    assert request_parts(responses()).texts_only
    assert request_parts(messages(system="x")).texts_only
