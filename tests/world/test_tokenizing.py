"""/tokenize, /detokenize and /v1/messages/count_tokens, with engines that generate; see test_endpoints.py."""

from typing import Any, Final

import httpx
import pytest

from router.api.access.auth import hash_key
from tests.support.router_server import router_config, with_fallback
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import World, scenario

USER: Final = {"role": "user", "content": "What is <context>The sea.</context> about?"}
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "/tokenize": {"prompt": "Hello there", "return_token_strs": True},
    "/detokenize": {"tokens": [20, 30, 40]},
    "/v1/messages/count_tokens": {"system": "Be brief.", "messages": [USER]},
}
KEYS: Final = f'[auth]\nmode = "keys"\n\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"k")}"]'
ADMIN: Final = {"authorization": "Bearer admin"}


async def start(world: World, **options: Any) -> WorldRouter:
    engine = await world.engine()
    return await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, **options))


async def ask(router: WorldRouter, path: str, **fields: Any) -> httpx.Response:
    return await router.post(path, {"model": "llama", **REQUESTS[path], **fields})


@scenario
async def test_answers_have_vllms_form(world: World) -> None:
    router = await start(world)
    tokens = (await ask(router, "/tokenize")).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"]) > 0
    assert (await ask(router, "/tokenize", prompt="")).json()["tokens"] == []
    assert (await ask(router, "/detokenize")).json() == {"prompt": "<20><30><40>"}
    count = (await ask(router, "/v1/messages/count_tokens")).json()
    assert count["context_management"] == {"original_input_tokens": count["input_tokens"]}


@pytest.mark.parametrize("field", ["messages", "prompt"])
@scenario
async def test_the_parts_of_a_conversation_are_parts_of_the_key(world: World, field: str) -> None:
    router = await start(world)
    texts = [USER["content"].replace("sea", word) for word in ("sea", "sky")]
    inputs = [[{"role": "user", "content": text}] if field == "messages" else text for text in texts]
    answers = [await router.post("/tokenize", {"model": "llama", field: value}) for value in inputs]
    assert [answer.headers["x-cache-reason"] for answer in answers][1:] == ["rag"]
    system = {"model": "llama", "messages": [{"role": "system", "content": "x"}, USER]}
    first = await router.post("/tokenize", system)
    system["messages"] = [{"role": "system", "content": "y"}, USER]
    assert (await router.post("/tokenize", system)).headers["x-cache-reason"] == "system"
    assert first.status_code == 200


@scenario
async def test_no_context_length_bounds_what_is_tokenized(world: World) -> None:
    engine = await world.engine()
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)})
    router = await world.router(text.replace('task = "any"', 'task = "any"\nmax_model_len = 16'))
    assert (await ask(router, "/detokenize", tokens=list(range(100)))).status_code == 200


@scenario
async def test_tokenizing_costs_requests_and_no_tokens(world: World) -> None:
    router = await start(world, rest=f"{KEYS}\ntokens_per_minute = 5\nrequests_per_minute = 4")
    statuses = []
    for number in range(5):
        body = {"model": "llama", "prompt": "x " * 99, "n": number}
        statuses.append((await router.post("/tokenize", body, authorization="Bearer k")).status_code)
    assert statuses == [200, 200, 200, 200, 429]
    metrics = await router.metrics()
    assert not any(count for name, count in metrics.items() if name.startswith("llm_tokens_total") and "acme" in name)


@scenario
async def test_anthropics_clients_may_send_their_key_as_usual(world: World) -> None:
    router = await start(world, rest=KEYS)
    body = {"model": "llama", **REQUESTS["/v1/messages/count_tokens"]}
    answers = [await router.post("/v1/messages/count_tokens", body, x_api_key=key) for key in ("k", "wrong")]
    assert [answer.status_code for answer in answers] == [200, 401]
    assert answers[1].json()["error"]["type"] == "authentication_error"


@scenario
async def test_a_refusal_has_anthropics_form_where_tokens_are_counted(world: World) -> None:
    router = await start(world)
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    answer = await ask(router, "/v1/messages/count_tokens", tools=tools)
    assert answer.status_code == 400
    assert "--enable-auto-tool-choice" in answer.json()["error"]["message"]
    assert answer.json()["error"].keys() == {"message", "type"}


@scenario
async def test_no_other_model_answers_for_one_that_fails(world: World) -> None:
    engines: WorldEngines = await world.engines()
    router = await world.router(with_fallback(router_config(world.redis.url, engines.as_config())))
    for engine in engines.chat, engines.code:
        await engine.set_faults({"fault": "status", "code": 503})
    assert (await ask(router, "/tokenize")).status_code == 503
    assert (await router.chat("The sea?")).headers["x-engine"] == "mistral"


@scenario
async def test_a_purge_of_a_document_covers_its_tokens(world: World) -> None:
    router = await start(world, rest=f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]')
    path = "/v1/messages/count_tokens"
    await ask(router, path)
    assert (await ask(router, path)).headers["x-cache"] == "HIT"
    (await router.http.post("/admin/cache/purge", json={"document": "The sea."}, headers=ADMIN)).raise_for_status()
    assert (await ask(router, path)).headers["x-cache"] == "MISS"
