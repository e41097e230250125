"""What is made of recent requests."""

import json
from typing import Any

import msgspec
import pytest

from engines.switch.prompts import is_deterministic, preview, replay_body, warm_up_body, warm_up_order
from router.shared.prompts.recent_prompts import RecentPrompt

CHAT = "/v1/chat/completions"


def prompt(path: str = CHAT, **fields: Any) -> RecentPrompt:
    return RecentPrompt(path, msgspec.Raw(json.dumps({"model": "served", **fields}).encode()))


def chat(system: str, question: str, **fields: Any) -> RecentPrompt:
    return prompt(messages=[{"role": "system", "content": system}, {"role": "user", "content": question}], **fields)


def test_the_prefixes_that_most_requests_have_come_first_and_each_once_before_any_twice() -> None:
    prompts = [chat("rare", "1"), chat("often", "2"), chat("often", "3"), chat("often", "4"), chat("twice", "5")]
    prompts.append(chat("twice", "6"))
    assert [preview(one) for one in warm_up_order(prompts)] == ["2", "5", "1", "3", "4", "6"]


def test_requests_without_a_prefix_cache_and_of_unknown_form_come_last() -> None:
    prompts = [prompt("/v1/embeddings", input="a"), prompt("/none", prompt="b"), prompt(messages=5), chat("s", "c")]
    assert [one.path for one in warm_up_order(prompts)] == [CHAT, "/v1/embeddings", "/none", CHAT]


def test_prefixes_of_two_tenants_are_two() -> None:
    prompts = [chat("same", "1", cache_salt="a"), chat("same", "2", cache_salt="b"), chat("same", "3", cache_salt="b")]
    assert [preview(one) for one in warm_up_order(prompts)] == ["2", "1", "3"]


@pytest.mark.parametrize(
    ("path", "limit"),
    [(CHAT, "max_tokens"), ("/v1/messages", "max_tokens"), ("/v1/responses", "max_output_tokens")],
)
def test_a_warm_up_asks_for_one_token_and_no_stream(path: str, limit: str) -> None:
    lengths = {"max_tokens": 9, "max_completion_tokens": 9, "max_output_tokens": 9, "min_tokens": 5}
    body = json.loads(
        warm_up_body(prompt(path, input="a", stream=True, stream_options={}, **lengths, top_p=0.5), "served")
    )
    assert body == {"model": "served", "input": "a", "top_p": 0.5, limit: 1}


def test_a_warm_up_of_embeddings_has_no_length() -> None:
    assert json.loads(warm_up_body(prompt("/v1/embeddings", input="a"), "served")) == {"model": "served", "input": "a"}


def test_a_request_of_another_engine_gets_this_engines_name_of_the_model() -> None:
    for body in (warm_up_body(prompt(input="a"), "other"), replay_body(prompt(input="a"), "other")):
        assert json.loads(body)["model"] == "other"


def test_a_replay_is_the_same_request_without_a_stream() -> None:
    body = json.loads(
        replay_body(prompt(prompt="a", max_tokens=9, stream=True, stream_options={"include_usage": True}), "served")
    )
    assert body == {"model": "served", "prompt": "a", "max_tokens": 9}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, False), ({"temperature": 0}, True), ({"temperature": 0.5}, False), ({"seed": 0}, True)],
)
def test_only_temperature_0_or_a_seed_is_deterministic(fields: dict[str, Any], expected: bool) -> None:
    assert is_deterministic(prompt(**fields)) is expected


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": [{"content": "a"}, {"content": "b"}]}, "b"),
        ({"messages": [{"content": [{"type": "text", "text": "b"}]}]}, '[{"type":"text","text":"b"}]'),
        ({"input": [{"content": "b"}]}, "b"),
        ({"input": "b"}, "b"),
        ({"prompt": "x" * 100}, "x" * 79 + "…"),
        ({"prompt": [1, 2]}, CHAT),
    ],
)
def test_the_preview_is_the_beginning_of_the_last_text(fields: dict[str, Any], text: str) -> None:
    assert preview(prompt(**fields)) == text
