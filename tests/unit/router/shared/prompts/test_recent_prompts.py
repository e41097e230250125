"""A sample of recent requests is kept in Redis, within bounds, in the form in which engines got them."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from router.core.cache.redis_keys import EMPTY_HASH, entry_key, prompt_key, prompts_key
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.requests.request import parse_request
from router.core.endpoints.table import ENDPOINTS
from router.flow.exchange import AttemptFacts, GenerationRecord
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError
from router.shared.prompts.recent_prompts import (
    MAX_PROMPT,
    PROMPTS_TTL,
    PromptSample,
    RecentPrompts,
    decode_ids,
    decode_prompt,
    read_ids_command,
    read_prompt_command,
)
from tests.support.factories import count_tokens, rerank, tokenize
from tests.support.inflight_factory import generation_record
from tests.support.waiting import eventually

CHAT = next(endpoint for endpoint in ENDPOINTS if endpoint.path == "/v1/chat/completions")


class Pipeline:
    """Keeps the commands that are sent."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.up = True
        self.on_reply: Callable[[Any], None] = lambda _: None

    def send(self, *commands: Command, on_reply: Callable[[Any], None] = lambda _: None) -> None:
        if not self.up:
            raise RedisDownError
        self.commands += commands
        self.on_reply = on_reply


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
    record = generation_record("acme", model=model)
    if engine is not None:
        record.attempts.append(AttemptFacts(engine=engine, sent_at=0.0))
    return record


def sampled(prompts: RecentPrompts, question: str = "?", *, lifetime: float = 60, **made: Any) -> PromptSample | None:
    key = entry_key("acme", "llama", EMPTY_HASH, EMPTY_HASH, question.encode().hex().zfill(32)[-32:])
    return prompts.sample(
        request(question), generation(**made), key=key, documents=("d",), position=(7, 1), lifetime=lifetime
    )


def test_a_sample_is_the_request_as_the_engine_got_it() -> None:
    sample = sampled(recent_prompts(), "The sea?")
    assert sample is not None
    assert (sample.model, sample.stored.prompt.path) == ("llama", "/v1/chat/completions")
    body = json.loads(bytes(sample.stored.prompt.body))
    assert (body["model"], body["cache_salt"]) == ("served", "salt")
    assert body["messages"] == [{"role": "user", "content": "The sea?"}]


def test_a_model_has_one_sample_a_second() -> None:
    prompts = recent_prompts(times=iter([0.0, 0.9, 0.9, 1.0]))
    models = ("llama", "llama", "mistral", "llama")
    assert [sampled(prompts, model=model) is not None for model in models] == [True, False, True, True]


@pytest.mark.parametrize(
    ("kept", "question", "engine"), [(0, "?", "e0"), (3, "x" * MAX_PROMPT, "e0"), (3, "?", "gone"), (3, "?", None)]
)
def test_nothing_is_sampled_if_it_is_off_or_too_large_or_of_an_unknown_engine(
    kept: int, question: str, engine: str | None
) -> None:
    assert sampled(recent_prompts(kept=kept), question, engine=engine) is None


def test_requests_for_the_tokenizer_warm_nothing_up_and_are_not_sampled() -> None:
    def is_sampled(made: InferenceRequest) -> bool:
        sample = recent_prompts().sample(made, generation(), key="k", documents=(), position=(0, 0), lifetime=60)
        return sample is not None

    assert [is_sampled(made) for made in (tokenize(), count_tokens(), rerank())] == [False, False, True]


def test_a_sample_is_lost_while_redis_is_down() -> None:
    pipeline = Pipeline()
    pipeline.up = False
    sample = sampled(recent_prompts())
    assert sample is not None
    recent_prompts(pipeline).add(sample)
    recent_prompts(pipeline).remove(sample)
    assert pipeline.commands == []


async def stored(client: Any) -> list[str]:
    """The questions of the list's requests that are there, the newest first."""
    ids = decode_ids(await client.execute_command(*read_ids_command("llama")))
    found = [decode_prompt(await client.execute_command(*read_prompt_command("llama", id_))) for id_ in ids]
    bodies = [json.loads(bytes(each.prompt.body)) for each in found if each is not None]
    return [body["messages"][0]["content"] for body in bodies]


async def add(client: Any, prompts: RecentPrompts, pipeline: Pipeline, *questions: str, lifetime: float = 60) -> None:
    for question in questions:
        sample = sampled(prompts, question, lifetime=lifetime)
        assert sample is not None
        prompts.add(sample)
        while pipeline.commands:
            sent, pipeline.commands = pipeline.commands, []
            pipeline.on_reply([await client.execute_command(*command) for command in sent])


@pytest.mark.asyncio(loop_scope="session")
async def test_the_newest_are_kept_and_the_others_deleted(client: Any) -> None:
    pipeline = Pipeline()
    prompts = recent_prompts(pipeline)
    await add(client, prompts, pipeline, "0", "1", "2", "3", "1", "4")
    assert await stored(client) == ["4", "1", "3"], "a request that comes again is one"
    assert len(await client.keys("rh:1:prompts:*")) == 4, "three requests and the list"


@pytest.mark.asyncio(loop_scope="session")
async def test_each_request_expires_with_its_entry_whatever_others_come(client: Any) -> None:
    pipeline = Pipeline()
    prompts = recent_prompts(pipeline)
    await add(client, prompts, pipeline, "short", lifetime=0.05)
    await add(client, prompts, pipeline, "long", lifetime=10 * PROMPTS_TTL)

    async def only_one_is_left() -> bool:
        return await stored(client) == ["long"]

    await eventually(only_one_is_left)
    long, _ = decode_ids(await client.execute_command(*read_ids_command("llama")))
    assert PROMPTS_TTL - 10 < await client.ttl(prompt_key("llama", long)) <= PROMPTS_TTL


@pytest.mark.asyncio(loop_scope="session")
async def test_requests_that_a_former_version_has_put_into_the_list_are_dropped(client: Any) -> None:
    former = b'{"path":"/v1/completions","body":{"prompt":"a"}}'
    await client.lpush(prompts_key("llama"), former)
    assert decode_ids([former]) == []
    pipeline = Pipeline()
    await add(client, recent_prompts(pipeline), pipeline, "new")
    assert await stored(client) == ["new"]
    assert former not in await client.lrange(prompts_key("llama"), 0, -1)


@pytest.mark.parametrize(
    "reply", [None, [None] * 5, [b"k", b"[]", b"1-0", b"/p", b"{"], [b"k", b"{}", b"1-0", b"/p", b"{}"], [b"\xff"] * 5]
)
def test_what_cannot_be_decoded_is_left_out(reply: Any) -> None:
    assert decode_prompt(reply) is None
    assert decode_ids(None) == decode_ids([None, b"short"]) == []
