"""Endpoints that an engine does not have: its 404 is said once, and clients get one that names model and endpoint."""

import logging

import pytest

from tests.support.router_server import router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

RERANK = {"model": "llama", "query": "What is deep?", "documents": ["The sea"]}


async def start_lacking(world: World) -> tuple[WorldRouter, list[ScriptedEngine]]:
    """A router with two engines that answer as FastAPI does for a path without a route."""
    page = b'{"detail":"Not Found"}'
    lacking = [await world.scripted_engine(page, status=404, content_type="application/json") for _ in range(2)]
    tables = {name: ("llama", "chat", engine.url) for name, engine in zip(("first", "second"), lacking, strict=True)}
    return await world.router(router_config(world.redis.url, tables)), lacking


async def breakers(router: WorldRouter) -> dict[str, str]:
    engines = (await router.http.get("/healthz")).json()["engines"]
    return {name: engine["breaker"] for name, engine in engines.items()}


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/score", "/classify", "/pooling"])
@scenario
async def test_all_engines_are_asked_once_then_one_and_the_client_is_told_what_is_missing(
    world: World, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    router, lacking = await start_lacking(world)
    body = {**RERANK, "queries": "x", "input": "x"}
    with caplog.at_level(logging.INFO, "roundhouse"):
        answers = [await router.post(path, {**body, "nonce": number}) for number in range(5)]
    # The first request asks both, each later one asks one.
    assert sum(len(engine.heads) for engine in lacking) == 2 + 4
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (404, "unsupported_endpoint", "not_found_error")
        assert error["message"] == f"The engines of the model `llama` do not serve {path}."
    said = [record.getMessage() for record in caplog.records if record.name == "roundhouse.engines"]
    assert sorted(line for line in said if path in line) == [
        f"engine {name} does not serve {path}" for name in ("first", "second")
    ]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert set((await breakers(router)).values()) == {"closed"}


@scenario
async def test_the_other_endpoints_of_the_engines_go_on(world: World) -> None:
    engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))
    assert (await router.post("/rerank", RERANK)).status_code == 404
    assert (await router.chat("Hello after a ranking")).status_code == 200
    assert (await router.post("/tokenize", {"model": "llama", "prompt": "x"})).status_code == 200


@scenario
async def test_an_engine_of_the_model_that_has_the_endpoint_gets_all_such_requests(world: World) -> None:
    chat, scorer = await world.engine(), await world.engine(pooling=True)
    mixed = {"chat": ("llama", "any", chat.url), "scorer": ("llama", "any", scorer.url)}
    router = await world.router(router_config(world.redis.url, mixed))
    answers = [await router.post("/rerank", {**RERANK, "nonce": number}) for number in range(6)]
    assert {(answer.status_code, answer.headers["x-engine"]) for answer in answers} == {(200, "scorer")}


@scenario
async def test_an_engine_that_has_the_endpoint_after_all_is_used_at_once(world: World) -> None:
    router, lacking = await start_lacking(world)
    assert (await router.post("/rerank", RERANK)).status_code == 404
    for engine in lacking:
        engine.status = 200
        engine.pieces = (b'{"results":[{"index":0,"relevance_score":0.5}]}',)
    assert (await router.post("/rerank", RERANK)).status_code == 200
