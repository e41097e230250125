"""POST /admin/engines/explain: which engine a request would get, and why."""

import logging
from typing import Any

import pytest

from router.core.api_keys import hash_key
from tests.support.router_server import LLAMA, MISTRAL, chat_body, router_config, with_fallback
from tests.support.waiting import eventually
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario

ADMIN = {"authorization": "Bearer admin-key"}
ADMIN_KEY = f'[auth]\nmode = "open"\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
TEXT = "The sea was calm, and the lamp of the harbour was lit. " * 60
LARGE: dict[str, Any] = {"max_model_len": 65536, "kv_blocks": 16384}


async def start(world: World, **models: str) -> tuple[WorldRouter, dict[str, WorldEngine]]:
    """`models`: by the name of an engine, its model; mistral is the fallback of llama, if it is one of them."""
    served = {"llama": LLAMA, "mistral": MISTRAL}
    engines = {name: await world.engine(model=served[model], **LARGE) for name, model in models.items()}
    table = {name: (model, "any", engines[name].url) for name, model in models.items()}
    text = router_config(world.redis.url, table, rest=ADMIN_KEY)
    return await world.router(with_fallback(text) if "mistral" in models.values() else text), engines


async def explain(router: WorldRouter, body: Any, *, status: int = 200, **question: Any) -> Any:
    answer = await router.http.post("/admin/engines/explain", json={"body": body, **question}, headers=ADMIN)
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]


def names(explanation: Any) -> list[tuple[str, str | None]]:
    return [(row["engine"], row["behind_by"]) for row in explanation["engines"]]


@scenario
async def test_the_first_of_the_table_is_the_engine_that_the_request_then_gets(world: World) -> None:
    router, _ = await start(world, a="llama", b="llama")
    first = await router.chat(TEXT)
    holder = first.headers["x-engine"]
    body = chat_body(TEXT, max_tokens=7)  # another request with the same prompt
    explanation = await explain(router, body)
    best, other = explanation["engines"]
    assert (best["engine"], best["behind_by"], other["behind_by"]) == (holder, None, "seconds")
    assert best["prefix_tokens"] == pytest.approx(explanation["prompt_tokens"], rel=0.1)
    assert other["prefix_tokens"] == 0
    assert best["ttft_seconds"] < other["ttft_seconds"]
    assert best["total_seconds"] == best["cost_seconds"] + best["answer_seconds"] < other["total_seconds"]
    assert (explanation["model"], explanation["task"]) == ("llama", "chat")
    assert explanation["left_out"] == explanation["adjusted_fields"] == []
    assert (await router.http.post("/v1/chat/completions", json=body)).headers["x-engine"] == holder


@scenario
async def test_nothing_is_sent_stored_counted_or_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    router, engines = await start(world, a="llama", b="llama")

    async def state() -> tuple[Any, ...]:
        sent = [(await engine.stats())["requests"] for engine in engines.values()]
        held = [each["prefixes"] for each in (await router.http.get("/admin/engines", headers=ADMIN)).json()["engines"]]
        keys = sorted([key async for key in world.redis.client.scan_iter("*")])
        return sent, held, keys, await router.metrics()

    before = await state()
    with caplog.at_level(logging.DEBUG, "roundhouse"):
        for _ in range(3):
            await explain(router, chat_body(TEXT))
    assert await state() == before
    assert TEXT[:20] not in caplog.text


@scenario
async def test_engines_that_are_down_and_those_of_fallbacks_come_last_and_drained_ones_are_named(world: World) -> None:
    router, engines = await start(world, a="llama", b="llama", c="llama", d="mistral")
    engines["b"].kill()
    assert (await router.http.post("/admin/engines/c/drain", headers=ADMIN)).status_code == 200

    async def is_down() -> bool:
        return bool((await router.http.get("/healthz")).json()["engines"]["b"]["state"] == "down")

    await eventually(is_down)
    explanation = await explain(router, chat_body("The sea?"))
    assert names(explanation) == [("a", None), ("b", "up"), ("d", "model")]
    assert explanation["left_out"] == [{"engine": "c", "model": "llama", "reason": "drained"}]


@pytest.mark.parametrize(
    ("question", "status", "param"),
    [
        ({"tenant": "nobody"}, 400, "tenant"),
        ({"path": "/v1/nothing"}, 400, "path"),
        ({"session": "not a session"}, 400, "session"),
        ({"sesion": "x"}, 400, None),
        ({"body": chat_body("The sea?", model="gpt-9")}, 404, "model"),
        ({"body": "text"}, 400, None),
    ],
)
@scenario
async def test_what_the_router_would_refuse_is_refused(
    world: World, question: dict[str, Any], status: int, param: str | None
) -> None:
    router, _ = await start(world, a="llama", b="llama")
    error = await explain(router, **{"body": chat_body("The sea?"), **question}, status=status)
    assert error["param"] == param
    assert (await router.http.post("/admin/engines/explain", json={"body": {}})).status_code == 401
