"""Responses that are stored and replayed: as JSON and as a stream, readable in Redis."""

import json
import time
from typing import Any

import pytest

from router.core.cache.entry_filter import text_document_name
from router.core.endpoints.recording.stream_encoding import decode_stream
from tests.support.purge_log import keys_except_log
from tests.support.router_server import LLAMA_ALIAS, chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, chat_text, parse_events
from tests.support.waiting import eventually
from tests.world.defaults import default_router
from tests.world.scenario import World, scenario
from tests.world.scripted import scripted_router

TEXT = "  \tif x:\r\n\r\n    naïve  é e\u0301 👩‍👩‍👧 \u200b…\n"


async def entry_of(redis: Any, key: str) -> dict[str, str]:
    entry: dict[str, str] = await eventually(lambda: redis.hgetall(key))
    return entry


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True, "top_logprobs": 2},
        {"n": 3},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"return_token_ids": True},
        {
            "tool_choice": "required",
            "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        },
    ],
    ids=["logprobs", "choices", "reasoning", "token-ids", "tools"],
)
@scenario
async def test_a_stored_stream_gives_the_json_that_the_engine_would_have_returned(
    world: World, fields: dict[str, Any]
) -> None:
    router, _ = await default_router(world)
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    assert (await router.chat("The sea?", **options, **fields)).headers["x-cache"] == "MISS"
    hit = await router.chat("The sea?", **fields)
    assert hit.headers["x-cache"] == "HIT"
    direct = await router.chat("The sea?", **fields, unused_by_the_engine=1)
    assert direct.headers["x-cache"] == "MISS"
    names = ("id", "created")
    actual, expected = ({k: v for k, v in a.json().items() if k not in names} for a in (hit, direct))
    assert _content_fields(actual["usage"]) == _content_fields(expected["usage"])
    for one, other in zip(actual["choices"], expected["choices"], strict=True):
        calls = [choice["message"].pop("tool_calls", None) or [] for choice in (one, other)]
        assert [c["function"] for c in calls[0]] == [c["function"] for c in calls[1]]
        assert _content_fields(one) == _content_fields(other)


def _content_fields(value: Any) -> Any:
    """Without the nulls and empty lists that only one of the two forms contains."""
    if isinstance(value, dict):
        return {k: _content_fields(v) for k, v in value.items() if v not in (None, [], {})}
    return [_content_fields(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_hit_repeats_the_cached_tokens_of_its_generation(world: World, stream: bool) -> None:
    engine = await world.engine(enable_prompt_tokens_details=True)
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))
    system = {"role": "system", "content": "The harbour and its lamp. " * 20}

    async def usage(question: str, cache: str, *, stream: bool) -> Any:
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = await router.chat("", messages=[system, {"role": "user", "content": question}], **options)
        assert answer.headers["x-cache"] == cache
        return (parse_events(answer.content)[-1] if stream else answer.json())["usage"]

    await usage("The sea?", "MISS", stream=stream)
    generated = await usage("The tide?", "MISS", stream=stream)
    assert 0 < generated["prompt_tokens_details"]["cached_tokens"] < generated["prompt_tokens"]
    for other in (False, True):
        hit = await usage("The tide?", "HIT", stream=other)
        assert _content_fields(hit) == _content_fields(generated)


# -- the key ----------------------------------------------------------------------------------------------------------


@scenario
async def test_equal_json_in_another_spelling_hits(world: World) -> None:
    router, _ = await default_router(world)
    one = b'{"model":"llama","messages":[{"role":"user","content":"\xc3\xa9"}],"temperature":0,"x":{"a":1,"b":1.0}}'
    other = rb'{ "x": {"b":1, "a":1e0}, "temperature":0.0, "messages":[{"content":"\u00e9", "role":"user"}],'
    other += rb' "model":"llama" }'
    first, second = [await router.post("/v1/chat/completions", body) for body in (one, other)]
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "HIT")


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5}, {"seed": 1}, {"max_tokens": 7}, {"top_p": 0.5}, {"n": 2}, {"stop": ["x"]},
        {"nobody_knows_this_field": 1}, {"documents": [{"text": "a"}]}, {"model": "mistral"},
        {"messages": [{"role": "user", "content": "the sea?"}]},
        {"messages": [{"role": "user", "content": "The sea?\n"}]},
        {"messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "The sea?"}]},
    ],
    ids=lambda change: json.dumps(change)[:40],
)  # fmt: skip
@scenario
async def test_a_field_that_can_change_the_response_changes_the_key(world: World, change: dict[str, Any]) -> None:
    router, _ = await default_router(world)
    first = await router.chat("The sea?")
    second = await router.post("/v1/chat/completions", {**chat_body("The sea?"), **change})
    assert second.status_code == 200
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "MISS")
    assert first.headers["x-cache-key"] != second.headers["x-cache-key"]


@pytest.mark.parametrize(
    "change", [{"user": "u"}, {"metadata": {"a": "b"}}, {"stream": True}, {"store": True}, {"model": LLAMA_ALIAS}]
)
@scenario
async def test_a_field_that_cannot_change_the_response_shares_the_entry(world: World, change: dict[str, Any]) -> None:
    router, _ = await default_router(world)
    await router.chat("The sea?")
    second = await router.post("/v1/chat/completions", {**chat_body("The sea?"), **change})
    assert second.headers["x-cache"] == "HIT"


@scenario
async def test_system_and_context_have_their_own_parts_of_the_key(world: World) -> None:
    router, _ = await default_router(world)

    async def parts(system: str, context: str, query: str) -> list[str]:
        user = f"<context>{context}</context>{query}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        answer = await router.post("/v1/chat/completions", {"model": "llama", "messages": messages})
        key: str = answer.headers["x-cache-key"]
        assert key.startswith("rh:1:default:llama:")
        return key.split(":")[4:]

    base = await parts("s", "c", "q")
    changed = [await parts("S", "c", "q"), await parts("s", "C", "q"), await parts("s", "c", "Q")]
    assert [[a == b for a, b in zip(base, other, strict=True)] for other in changed] == [
        [False, True, True],
        [True, False, True],
        [True, True, False],
    ]


@scenario
async def test_another_revision_of_a_model_has_its_own_entries(world: World) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config())
    old = await world.router(config)
    new = await world.router(config.replace('revision = "1"', 'revision = "2"'))
    assert (await old.chat("The sea?")).headers["x-cache"] == "MISS"
    assert (await new.chat("The sea?")).headers["x-cache"] == "MISS"
    assert (await old.chat("The sea?")).headers["x-cache"] == "HIT"


@scenario
async def test_two_routers_share_their_entries(world: World) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config())
    redis = world.redis.client
    one, other = await world.router(config), await world.router(config)
    key = (await one.chat("The sea?")).headers["x-cache-key"]
    await eventually(lambda: redis.exists(key))
    assert (await other.chat("The sea?")).headers["x-cache"] == "HIT"


@scenario
async def test_nondeterministic_responses_are_bypassed_where_only_deterministic_ones_are_stored(world: World) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config())
    router = await world.router(config.replace("[cache]", '[cache]\nstore = "deterministic"'))
    for _ in range(2):
        answer = await router.chat("The sea?")
        assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("BYPASS", "policy")
        assert "x-cache-key" not in answer.headers
    first, second = await router.chat("The sea?", temperature=0), await router.chat("The sea?", temperature=0)
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "HIT")


# -- the entry --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_the_entry_is_stored_at_the_key_of_the_header(world: World, stream: bool) -> None:
    router, _ = await default_router(world)
    redis = world.redis.client
    answer = await router.chat("The sea?", stream=stream)
    key = answer.headers["x-cache-key"]
    entry = await entry_of(redis, key)
    assert len(entry["digest"]) == 64
    assert json.loads(entry["body"])["choices"][0]["message"]["content"] == chat_text(answer)
    assert ("stream" in entry, entry["format"]) == (stream, "2")
    if stream:
        events = decode_stream(
            entry["stream"].encode("ascii"), entry["body"].encode(), include_usage=False, end=DONE_FRAME
        )
        assert events == answer.content
    else:
        assert entry["body"] == answer.text
    assert chat_text(await router.chat("The sea?", stream=not stream)) == chat_text(answer), (
        "it is a hit in either form"
    )
    assert (entry["model"], entry["engine"], entry["task"]) == ("llama", "llama-chat", "chat")
    assert abs(float(entry["created"]) - time.time()) < 60
    assert int(entry["prompt_tokens"]) > 0
    assert int(entry["completion_tokens"]) > 0
    assert int(entry["generation_ms"]) >= 0
    assert 86_400_000 < await redis.pttl(key) <= 90_000_000, "a day, and an hour in which it may serve as stale"


@scenario
async def test_an_entry_expires_after_its_time_to_live(world: World) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config())
    redis = world.redis.client
    router = await world.router(config.replace("[cache]", '[cache]\nttl = "90s"\nstale_if_error = 0'))
    key = (await router.chat("The sea?")).headers["x-cache-key"]
    await entry_of(redis, key)
    assert 80_000 < await redis.pttl(key) <= 90_000
    await redis.pexpire(key, 1)
    await eventually(lambda: _is_gone(redis, key))
    assert (await router.chat("The sea?")).headers["x-cache"] == "MISS"


async def _is_gone(redis: Any, key: str) -> bool:
    return not await redis.exists(key)


@scenario
async def test_a_forced_collision_is_a_miss(world: World) -> None:
    router, _ = await default_router(world)
    redis = world.redis.client
    key = (await router.chat("The sea?")).headers["x-cache-key"]
    entry = await entry_of(redis, key)
    await redis.hset(key, "digest", "0" * 64)
    assert (await router.chat("The sea?")).headers["x-cache"] == "MISS"
    await eventually(lambda: _has_digest(redis, key, entry["digest"]))
    assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"


async def _has_digest(redis: Any, key: str, digest: str) -> bool:
    return bool(await redis.hget(key, "digest") == digest)


@pytest.mark.parametrize(
    "break_it",
    [
        ("DEL", "KEY"), ("HDEL", "KEY", "digest"), ("HDEL", "KEY", "body"), ("HSET", "KEY", "created", "yesterday"),
        ("HSET", "KEY", "ttl", ""), ("HSET", "KEY", "task", "poem"), ("HSET", "KEY", "prompt_tokens", "many"),
        ("HSET", "KEY", "digest", "ü"), ("SET", "KEY", "a string"),
    ],
    ids=" ".join,
)  # fmt: skip
@scenario
async def test_a_value_that_is_not_an_entry_is_a_miss_and_is_overwritten(
    world: World, break_it: tuple[str, ...]
) -> None:
    router, _ = await default_router(world)
    redis = world.redis.client
    key = (await router.chat("The sea?")).headers["x-cache-key"]
    entry = await entry_of(redis, key)
    await redis.execute_command(*(key if word == "KEY" else word for word in break_it))
    assert (await router.chat("The sea?")).headers["x-cache"] == "MISS"
    assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"
    assert (await entry_of(redis, key))["digest"] == entry["digest"]
    assert await redis.pttl(key) > 0


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_response_over_the_size_limit_is_served_completely_and_counted_and_not_stored(
    world: World, stream: bool
) -> None:
    config = router_config(world.redis.url, (await world.engines()).as_config())
    redis = world.redis.client
    router = await world.router(config.replace("[cache]", '[cache]\nmax_entry = "5KiB"'))
    for _ in range(2):
        answer = await router.chat("[[sim:tokens n=2000]]", stream=stream)
        assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
        assert len(answer.content) > 5 << 10
        assert answer.content.endswith(DONE_FRAME) is stream
    assert (await router.metrics())['llm_cache_writes_total{result="too-large"}'] == 2
    assert not await keys_except_log(redis)


@scenario
async def test_a_stream_without_a_json_form_still_serves_streams(world: World) -> None:
    odd = chat_frame(content="a", vendor="one") + chat_frame(content="b", vendor="two", finish="stop")
    router, engine = await scripted_router(world, ROLE_FRAME, odd, DONE_FRAME)
    first, second = await router.chat("x", stream=True), await router.chat("x", stream=True)
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "HIT")
    assert first.content == second.content == ROLE_FRAME + odd + DONE_FRAME
    engine.pieces = (b'{"choices":[{"index":0,"message":{"content":"ab"},"finish_reason":"stop"}]}',)
    assert (await router.chat("x")).headers["x-cache"] == "MISS"


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_an_entry_names_its_documents(world: World, stream: bool) -> None:
    router, _ = await default_router(world)
    redis = world.redis.client
    documents = [{"doc_id": "kb-7", "text": "The sea is salt."}, {"text": "It is deep."}]
    answer = await router.chat("The <context>It is wide.</context> sea?", documents=documents, stream=stream)
    key = answer.headers["x-cache-key"]
    known = json.loads(await eventually(lambda: redis.hget(key, "documents")))
    assert known == ["kb-7", text_document_name("It is deep."), text_document_name("It is wide.")]
    plain = (await router.chat("The sea?", stream=stream)).headers["x-cache-key"]
    await eventually(lambda: redis.exists(plain))
    assert await redis.hget(plain, "documents") is None
