"""The models that a tenant may use: by name, by alias, by `auto`, as a fallback, and in the list of models."""

from typing import Any

import httpx
import pytest

from tests.support.cli_helpers import run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_server import (
    LLAMA_ALIAS,
    EngineSet,
    MakeRouter,
    RouterServer,
    chat_body,
    router_config,
    with_fallback,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACME = {"x-tenant-id": "acme"}
FREE = {"x-tenant-id": "free"}


def tenants(models: str) -> str:
    return f'[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\nmodels = {models}\n[[tenant]]\nname = "free"'


@pytest.fixture
def restricted(redis_server: RedisServer, engines: EngineSet) -> Any:
    return lambda models: router_config(redis_server.url, engines.as_config(), rest=tenants(models))


async def ask(router: RouterServer, model: str, tenant: dict[str, str] = ACME, **fields: Any) -> httpx.Response:
    return await router.chat("The sea?", headers=tenant, model=model, **fields)


def assert_no_access(answer: httpx.Response, model: str) -> None:
    error = answer.json()["error"]
    assert answer.status_code == 404
    assert error["message"].startswith(f"The model `{model}` does not exist or you do not have access to it")
    assert error["type"] == "not_found_error"
    if answer.json().get("type") != "error":  # of Anthropic's form, which has no code
        assert (error["code"], error["param"]) == ("model_not_found", "model")


async def models_of(router: RouterServer, tenant: dict[str, str]) -> list[str]:
    return [model["id"] for model in (await router.http.get("/v1/models", headers=tenant)).json()["data"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_is_not_the_tenants_looks_like_one_that_does_not_exist(
    make_router: MakeRouter, restricted: Any, engines: EngineSet, stream: bool
) -> None:
    router = await make_router(restricted('["mist*"]'))
    before = (await engines.chat.stats())["received"]
    for name in ("llama", LLAMA_ALIAS, "nobody's", "auto"):
        assert_no_access(await ask(router, name, stream=stream), name)
    assert (await engines.chat.stats())["received"] == before
    for name in ("mistral", "mistral-alias"):
        assert (await ask(router, name, stream=stream)).status_code == 200
    assert (await ask(router, "llama", FREE, stream=stream)).status_code == 200
    metrics = await router.metrics()
    assert metrics['llm_requests_rejected_total{reason="model_not_allowed",tenant="acme"}'] == 2


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"])
async def test_the_rule_holds_at_every_endpoint(make_router: MakeRouter, restricted: Any, path: str) -> None:
    router = await make_router(restricted('["mistral"]'))
    inputs = {
        "/v1/completions": {"prompt": "The sea?"}, "/v1/embeddings": {"input": "The sea?"},
        "/v1/responses": {"input": "The sea?"},
        "/v1/messages": {"messages": chat_body("The sea?")["messages"], "max_tokens": 10},
    }  # fmt: skip
    answer = await router.http.post(path, json={"model": "llama", **inputs[path]}, headers=ACME)
    assert_no_access(answer, "llama")


async def test_without_a_model_a_tenant_gets_its_only_one_in_place_of_a_default_that_is_not_its_own(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    router = await make_router(
        router_config(
            redis_server.url, engines.as_config(), router='default_model = "llama"', rest=tenants('["mist*"]')
        )
    )
    body = {name: value for name, value in chat_body("The sea?").items() if name != "model"}
    for tenant, model in ((ACME, "mistral"), (FREE, "llama")):
        answer = await router.http.post("/v1/chat/completions", json=body, headers=tenant)
        assert answer.status_code == 200
        assert answer.headers["x-cache-key"].split(":")[3] == model


async def test_the_list_of_models_has_only_the_tenants(make_router: MakeRouter, restricted: Any) -> None:
    router = await make_router(restricted('["mistral"]'))
    assert await models_of(router, ACME) == ["mistral", "mistral-alias"]
    assert await models_of(router, FREE) == ["llama", LLAMA_ALIAS, "mistral", "mistral-alias", "auto"]
    assert (await router.http.get("/v1/models/mistral-alias", headers=ACME)).status_code == 200
    for name in ("llama", "auto"):
        assert_no_access(await router.http.get(f"/v1/models/{name}", headers=ACME), name)


async def test_an_entry_may_be_an_alias_and_auto_chooses_among_the_allowed(
    make_router: MakeRouter, restricted: Any
) -> None:
    text = restricted(f'["{LLAMA_ALIAS}"]').replace('aliases = ["mistral-alias"]', 'auto = ["chat", "code"]')
    text = text.replace('auto = ["chat", "code"]\n\n[[model]]', "\n[[model]]")
    router = await make_router(text)
    assert (await ask(router, "llama")).status_code == 200
    restricted_to_mistral = text.replace(f'models = ["{LLAMA_ALIAS}"]', 'models = ["mistral"]')
    other = await make_router(restricted_to_mistral)
    answer = await ask(other, "auto")
    assert (answer.status_code, answer.headers["x-engine"]) == (200, "mistral")


async def test_a_hit_of_a_model_that_was_taken_from_the_tenant_is_not_served(
    make_router: MakeRouter, restricted: Any
) -> None:
    before = await make_router(restricted('["*"]'))
    assert (await ask(before, "llama")).headers["x-cache"] == "MISS"
    assert (await ask(before, "llama")).headers["x-cache"] == "HIT"
    after = await make_router(restricted('["mistral"]'))
    assert_no_access(await ask(after, "llama"), "llama")


@pytest.mark.parametrize(("models", "status"), [('["llama"]', 502), ('["llama", "mistral"]', 200)])
async def test_no_fallback_goes_to_a_model_that_is_not_the_tenants(
    make_router: MakeRouter, restricted: Any, engines: EngineSet, models: str, status: int
) -> None:
    router = await make_router(with_fallback(restricted(models)))
    for engine in (engines.chat, engines.code):
        await engine.set_faults({"fault": "status", "code": 500})
    answer = await ask(router, "llama")
    assert answer.status_code == status
    assert answer.headers.get("x-fallback") == ("mistral" if status == 200 else None)


async def test_check_tells_entries_that_match_no_model(tmp_path: Any, restricted: Any) -> None:
    file = tmp_path / "roundhouse.toml"
    file.write_text(restricted('["llama", "sql-*"]'))
    shown = await run_cli("check", "--config", file)
    assert "warn  configuration: tenant acme: models: 'sql-*' matches no configured model" in shown.stdout
    assert "'llama'" not in shown.stdout
    file.write_text(restricted("[]"))
    refused = await run_cli("check", "--config", file)
    assert (refused.code, "leave it out to allow all" in refused.stderr) == (2, True)
