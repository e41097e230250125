"""Requests and responses that name memory of one engine (`kv_transfer_params`): for a tenant's right, never shared."""

import asyncio
import json
from typing import Any

import pytest

from router.core.api_keys import hash_key
from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter, RouterServer, router_config
from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCKS = {"remote_host": "10.0.0.9", "remote_port": 5600, "remote_block_ids": [1]}
CHAT = "/v1/chat/completions"
ALLOWED = '[[tenant]]\nname = "default"\nkv_transfer = true\n'


def answer(**beside: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Sea"}, "finish_reason": "stop"}
    return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], **beside}).encode()


async def start(
    redis_server: RedisServer, make_router: MakeRouter, body: bytes, rest: str = ""
) -> tuple[RouterServer, ScriptedEngine]:
    engine = ScriptedEngine(body, content_type="application/json", paced=True)
    await engine.start()
    return await make_router(router_config(redis_server.url, {"one": ("llama", "any", engine.url)}, rest=rest)), engine


async def test_a_tenant_without_the_right_cannot_make_an_engine_connect_elsewhere(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    router, engine = await start(redis_server, make_router, answer())
    for fields in ({"kv_transfer_params": BLOCKS}, {"vllm_xargs": {"kv_transfer_params": "x"}}):
        refused = await router.chat("The sea?", **fields)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "field_not_allowed"
    assert engine.bodies == []
    assert (await router.chat("The sea?", kv_transfer_params=None)).status_code == 200
    await engine.stop()


async def test_where_tenants_are_isolated_media_has_no_name_that_another_tenant_could_use(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}, "uuid": "a"}
    body = {"model": "llama", "messages": [{"role": "user", "content": [part]}]}
    keys = {name: f"sk-{name}" for name in ("acme", "umbrella", "trusted")}
    rights = {"trusted": "kv_transfer = true"}
    tenants = "".join(
        f'[[tenant]]\nname = "{name}"\nkeys = ["{hash_key(key.encode())}"]\n{rights.get(name, "")}\n'
        for name, key in keys.items()
    )
    router, engine = await start(redis_server, make_router, answer(), f'[auth]\nmode = "keys"\n{tenants}')
    statuses = {}
    for name, key in keys.items():
        response = await router.http.post(CHAT, json=body, headers={"authorization": f"Bearer {key}"})
        statuses[name] = (response.status_code, response.json().get("error", {}).get("code"))
    refused = (400, "field_not_allowed")
    assert statuses == {"acme": refused, "umbrella": refused, "trusted": (200, None)}
    alone, own_engine = await start(redis_server, make_router, answer())
    assert (await alone.http.post(CHAT, json=body)).status_code == 200
    await engine.stop()
    await own_engine.stop()


async def test_what_a_tenant_with_the_right_asks_of_one_engines_memory_is_neither_stored_nor_shared(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    router, engine = await start(redis_server, make_router, answer(kv_transfer_params=BLOCKS), ALLOWED)
    both = await asyncio.gather(*(router.chat("The sea?", kv_transfer_params=BLOCKS) for _ in range(2)))
    for response in both:
        assert (response.headers["x-cache"], response.headers["x-cache-reason"]) == ("BYPASS", "uncacheable")
        assert response.json()["kv_transfer_params"] == BLOCKS
    assert [json.loads(body)["kv_transfer_params"] for body in engine.bodies] == [BLOCKS, BLOCKS]
    await engine.stop()


async def test_a_response_that_names_blocks_unasked_goes_to_one_client_and_is_not_stored(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    router, engine = await start(redis_server, make_router, answer(kv_transfer_params=BLOCKS))
    first, second = await asyncio.gather(router.chat("The sea?"), router.chat("The sea?"))
    assert first.json() == second.json()
    assert len(engine.bodies) == 2, "each client has a generation of its own"
    assert (await router.chat("The sea?")).headers["x-cache"] == "MISS"
    metrics = await router.metrics()
    assert sum(n for name, n in metrics.items() if "llm_cache_writes_total" in name and "engine-memory" in name) == 3
    await engine.stop()
