"""What an engine has to compute for a request: prompts, choices, and the size of the prompts."""

from typing import Any

import msgspec
import pytest

from router.core.endpoints.requests.request import parse_request
from router.core.endpoints.requests.workload import workload
from router.core.endpoints.table import ENDPOINT_BY_PATH

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "fields", "answers"),
    [
        ("/v1/chat/completions", CHAT, 1),
        ("/v1/chat/completions", CHAT | {"n": 4}, 4),
        ("/v1/chat/completions", CHAT | {"n": 0}, 1),
        ("/v1/completions", {"prompt": "hi"}, 1),
        ("/v1/completions", {"prompt": ["hi", "you"]}, 2),
        ("/v1/completions", {"prompt": [1, 2, 3]}, 1),
        ("/v1/completions", {"prompt": [[1, 2, 3], [4]]}, 2),
        ("/v1/completions", {"prompt": ["hi"] * 512, "n": 2, "best_of": 3}, 512 * 3),
        ("/v1/embeddings", {"input": "hi"}, 1),
        ("/v1/embeddings", {"input": ["hi"] * 7}, 7),
        ("/v1/embeddings", {"input": [1, 2]}, 1),
        ("/v1/embeddings", CHAT, 1),
        ("/classify", {"input": ["hi"] * 7}, 7),
        ("/pooling", {"input": ["hi"] * 7}, 7),
        ("/score", {"text_1": "hi", "text_2": ["a", "b", "c"]}, 3),
        ("/score", {"queries": ["hi"] * 4, "documents": ["a"] * 4}, 4),
        ("/v1/score", {"queries": "hi", "documents": {"content": [{"type": "text", "text": "a"}] * 5}}, 5),
        ("/rerank", {"query": "hi", "documents": ["a", "b", "c"]}, 3),
    ],
)
def test_prompts_and_choices_count(path: str, fields: dict[str, Any], answers: int) -> None:
    body = msgspec.json.encode({"model": "m", "max_tokens": 16, **fields})
    work = workload(parse_request(ENDPOINT_BY_PATH[path], body))
    assert (work.answers, work.prompt_bytes) == (answers, len(body))


@pytest.mark.parametrize(
    ("path", "fields", "is_its_size"),
    [
        ("/v1/embeddings", {"input": "hi"}, True),
        ("/v1/embeddings", {"input": "hi" * 5000}, False),
        ("/rerank", {"query": "hi", "documents": ["a", "b"]}, True),
        ("/v1/completions", {"prompt": "hi"}, False),
        ("/v1/chat/completions", CHAT, False),
    ],
)
def test_what_generates_no_text_takes_as_long_as_a_short_prompt(
    path: str, fields: dict[str, Any], is_its_size: bool
) -> None:
    body = msgspec.json.encode({"model": "m", **fields})
    work = workload(parse_request(ENDPOINT_BY_PATH[path], body))
    assert work.max_tokens == (len(body) if is_its_size else None)
