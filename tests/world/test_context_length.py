"""A request for a stream of /v1/responses that exceeds the context, as Codex reads its refusal."""

import asyncio
from typing import Any, Final

import openai
import pytest
from openai import AsyncOpenAI

from router.core.api_keys import hash_key
from tests.support.purge_log import keys_except_log
from tests.support.router_server import MISTRAL, router_config, with_fallback
from tests.support.typed_answers import RESPONSES, post_typed, typed_events
from tests.support.waiting import collect
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario
from tests.world.test_websocket import Event, opened

ADMIN_KEY: Final = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
ADMIN: Final = {"authorization": "Bearer admin-key"}
LIMIT: Final = "maximum context length is 4096 tokens"
TOO_LONG: Final[dict[str, dict[str, Any]]] = {
    "for the engine": {"input": "far too long " * 5000},
    "for the router": {"max_output_tokens": 5000},
}
"""Who refuses it."""

too_long = pytest.mark.parametrize("fields", TOO_LONG.values(), ids=TOO_LONG)


async def start(world: World, **options: Any) -> WorldRouter:
    engine = await world.engine()
    return await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, **options))


def check_refused(events: list[Event]) -> None:
    created, failed = events
    assert (created["type"], created["response"]["status"]) == ("response.created", "in_progress")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert created["response"]["id"] == failed["response"]["id"]
    assert [event["sequence_number"] for event in events] == [0, 1]
    error = failed["response"]["error"]
    assert error["code"] == failed["error"]["code"] == "context_length_exceeded"
    assert "exceeds the context window" in error["message"]
    assert LIMIT in error["message"]


@too_long
@scenario
async def test_a_stream_fails_with_the_code_and_json_is_refused(world: World, fields: dict[str, Any]) -> None:
    router = await start(world, rest=ADMIN_KEY)
    streamed = await post_typed(router, RESPONSES, "", stream=True, **fields)
    assert (streamed.status_code, streamed.headers["x-cache"]) == (200, "MISS")
    assert streamed.headers["content-type"].startswith("text/event-stream")
    check_refused(typed_events(streamed.content))
    assert await keys_except_log(world.redis.client) == set()
    (shown,) = (await router.http.get("/admin/requests?failed=1&refused=1&words=1", headers=ADMIN)).json()["requests"]
    assert shown["request_id"] == streamed.headers["x-request-id"]
    assert (shown["status"], shown["outcome"]) == (400, "refused")
    assert any(line["text"].startswith(f"400 {shown['error']} after") for line in shown["words"])
    whole = await post_typed(router, RESPONSES, "", **fields)
    assert (whole.status_code, whole.json()["error"]["code"]) == (400, "context_length_exceeded")
    metrics = await router.metrics()
    counts = {name: count for name, count in metrics.items() if name.startswith("llm_requests_total{")}
    assert [count for name, count in counts.items() if 'status="400"' in name] == [2]
    assert len(counts) == 1


@scenario
async def test_two_that_share_it_are_both_told(world: World) -> None:
    router = await start(world)
    fields = TOO_LONG["for the engine"]
    for answer in await asyncio.gather(*(post_typed(router, RESPONSES, "", stream=True, **fields) for _ in range(2))):
        assert answer.status_code == 200
        check_refused(typed_events(answer.content))


@too_long
@scenario
async def test_a_websocket_has_the_same_events_and_goes_on(world: World, fields: dict[str, Any]) -> None:
    router = await start(world)
    async with opened(router) as socket:
        check_refused(await socket.answer("", **fields))
        assert (await socket.answer("The sea?"))[-1]["type"] == "response.completed"


@scenario
async def test_a_fallback_model_with_a_longer_context_answers_before(world: World) -> None:
    short, long = await world.engine(), await world.engine(model=MISTRAL, max_model_len=16384, kv_blocks=4096)
    table = {"short": ("llama", "any", short.url), "long": ("mistral", "any", long.url)}
    router = await world.router(with_fallback(router_config(world.redis.url, table)))
    answer = await post_typed(router, RESPONSES, "The sea?", stream=True, max_output_tokens=5000)
    assert answer.headers["x-engine"] == "long"
    assert typed_events(answer.content)[-1]["type"] == "response.completed"


@too_long
@scenario
async def test_openais_client_raises_for_it(world: World, fields: dict[str, Any]) -> None:
    router = await start(world)
    http: Any = router.http  # the library wants its own fork of httpx
    client = AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, http_client=http)
    seen: list[Any] = []
    body: dict[str, Any] = {"model": "llama", "input": "", "stream": True, **fields}
    stream: Any = await client.responses.create(**body)
    with pytest.raises(openai.APIError, match=LIMIT) as raised:
        await collect(stream, seen)
    assert raised.value.code == "context_length_exceeded"
    assert [event.type for event in seen] == ["response.created"]
