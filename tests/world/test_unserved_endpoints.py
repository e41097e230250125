"""Endpoints that an engine does not have, and others do; test_endpoints.py has the 404 that clients get."""

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
