"""Requests that engines accept in more forms than OpenAI's API has; the router passes them on."""

import json
from typing import Any

import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter, router_config
from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = {"role": "user", "content": "The sea?"}
ONE_MODEL = {"one": ("llama", "any")}
TWO_MODELS = {"one": ("llama", "any"), "two": ("mistral", "any")}


def answer(field: str, value: Any) -> bytes:
    choice = {"index": 0, field: value, "finish_reason": "stop"}
    return json.dumps({"id": "c", "object": "x", "model": "m", "choices": [choice]}).encode()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [USER]}),
        (CHAT, {"model": None, "messages": [USER]}),
        (CHAT, {"model": "", "messages": [{"role": "user", "content": ["The sea?", "How deep?"]}]}),
        (CHAT, {"messages": [USER], "max_tokens": 10**6}),
        (COMPLETIONS, {"prompt": ""}),
        (COMPLETIONS, {"prompt_embeds": "AAAA"}),
        (COMPLETIONS, {"prompt": None, "prompt_embeds": ["AAAA"]}),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
async def test_what_the_engine_accepts_is_passed_on_and_stored(
    redis_server: RedisServer, make_router: MakeRouter, path: str, fields: dict[str, Any]
) -> None:
    body = answer("message", {"role": "assistant", "content": "Sea"}) if path == CHAT else answer("text", "Sea")
    engine = ScriptedEngine(body, content_type="application/json")
    await engine.start()
    engines = {name: (*rest, engine.url) for name, rest in ONE_MODEL.items()}
    # Its own limits: llama.cpp shortens an answer that has no room, so the context is no reason to refuse it.
    router = await make_router(
        router_config(redis_server.url, engines, rest='kind = "llama.cpp"\nmax_model_len = 100\n')
    )
    first, second = await router.post(path, fields), await router.post(path, fields)
    assert (first.status_code, first.headers["x-cache"], second.headers["x-cache"]) == (200, "MISS", "HIT"), first.text
    (sent,) = map(json.loads, engine.bodies)
    assert sent == {**fields, "model": sent["model"]}
    assert sent["model"]
    await engine.stop()


@pytest.mark.parametrize("default", ["mistral", None])
async def test_a_request_without_a_model_is_for_the_default_of_several(
    redis_server: RedisServer, make_router: MakeRouter, default: str | None
) -> None:
    engine = ScriptedEngine(answer("message", {"role": "assistant", "content": "Sea"}), content_type="application/json")
    await engine.start()
    engines = {name: (*rest, engine.url) for name, rest in TWO_MODELS.items()}
    setting = f'default_model = "{default}"' if default is not None else ""
    router = await make_router(router_config(redis_server.url, engines, router=setting))
    response = await router.post(CHAT, {"messages": [USER]})
    if default is None:
        assert (response.status_code, response.json()["error"]["code"]) == (400, "model_required")
        assert "router.default_model" in response.json()["error"]["message"]
    else:
        assert response.status_code == 200
        assert response.headers["x-cache-key"].split(":")[3] == default
    await engine.stop()
