"""A sample of recent requests is kept in Redis, within bounds, in the form in which engines got them."""

import itertools
import json
from typing import Any

import pytest

from router.core.cache.redis_keys import prompts_key
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.request import parse_request
from router.core.endpoints.table import ENDPOINTS
from router.flow.exchange import GenerationRecord
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError
from router.shared.recent_prompts import (
    MAX_PROMPT,
    PROMPTS_TTL,
    PromptSample,
    RecentPrompts,
    decode_prompts,
    read_prompts_command,
)
from tests.support.factories import count_tokens, rerank, tokenize

CHAT = next(endpoint for endpoint in ENDPOINTS if endpoint.path == "/v1/chat/completions")


class Pipeline:
    """Keeps the commands that are sent."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.up = True

    def send(self, *commands: Command) -> None:
        if not self.up:
            raise RedisDownError
        self.commands += commands


def recent_prompts(pipeline: Pipeline | None = None, *, kept: int = 3, times: Any = None) -> RecentPrompts:
    lists: Any = pipeline or Pipeline()
    return RecentPrompts(
        lists, kept=kept, served_models={"e0": "served"}, cache_salts={"acme": "salt"},
        clock=(times or itertools.count()).__next__,
    )  # fmt: skip


def request(question: str = "The sea?") -> InferenceRequest:
    body = {"model": "llama", "messages": [{"role": "user", "content": question}]}
    return parse_request(CHAT, json.dumps(body).encode())


def generation(model: str = "llama", engine: str | None = "e0") -> GenerationRecord:
    return GenerationRecord(
        request_id="r", traceparent=None, tenant="acme", model=model, task="chat", stream=False, started_at=0.0,
        engine=engine,
    )  # fmt: skip


def test_a_sample_is_the_request_as_the_engine_got_it() -> None:
    sample = recent_prompts().sample(request(), generation())
    assert sample is not None
    (prompt,) = decode_prompts([sample.value])
    assert (sample.model, prompt.path) == ("llama", "/v1/chat/completions")
    body = json.loads(bytes(prompt.body))
    assert (body["model"], body["cache_salt"]) == ("served", "salt")
    assert body["messages"] == [{"role": "user", "content": "The sea?"}]


def test_a_model_has_one_sample_a_second() -> None:
    prompts = recent_prompts(times=iter([0.0, 0.9, 0.9, 1.0]))
    models = ("llama", "llama", "mistral", "llama")
    assert [prompts.sample(request(), generation(model)) is not None for model in models] == [True, False, True, True]


@pytest.mark.parametrize(
    ("kept", "question", "engine"), [(0, "?", "e0"), (3, "x" * MAX_PROMPT, "e0"), (3, "?", "gone"), (3, "?", None)]
)
def test_nothing_is_sampled_if_it_is_off_or_too_large_or_of_an_unknown_engine(
    kept: int, question: str, engine: str | None
) -> None:
    assert recent_prompts(kept=kept).sample(request(question), generation(engine=engine)) is None


def test_requests_for_the_tokenizer_warm_nothing_up_and_are_not_sampled() -> None:
    assert recent_prompts().sample(tokenize(), generation()) is None
    assert recent_prompts().sample(count_tokens(), generation()) is None
    assert recent_prompts().sample(rerank(), generation()) is not None


def test_a_sample_is_lost_while_redis_is_down() -> None:
    pipeline = Pipeline()
    pipeline.up = False
    recent_prompts(pipeline).add(PromptSample("llama", b"{}"))
    assert pipeline.commands == []


@pytest.mark.asyncio(loop_scope="session")
async def test_the_list_keeps_the_newest_and_expires(client: Any) -> None:
    pipeline = Pipeline()
    prompts = recent_prompts(pipeline)
    for number in range(5):
        sample = prompts.sample(request(str(number)), generation())
        assert sample is not None
        prompts.add(sample)
    for command in pipeline.commands:
        await client.execute_command(*command)
    kept = decode_prompts(await client.execute_command(*read_prompts_command("llama", 10)))
    assert [json.loads(bytes(prompt.body))["messages"][0]["content"] for prompt in kept] == ["4", "3", "2"]
    assert PROMPTS_TTL - 10 < await client.ttl(prompts_key("llama")) <= PROMPTS_TTL


def test_what_cannot_be_decoded_is_left_out() -> None:
    good = b'{"path":"/v1/completions","body":{"prompt":"a"}}'
    assert [prompt.path for prompt in decode_prompts([b"{", b'{"path":1}', good])] == ["/v1/completions"]
    assert decode_prompts(None) == []
