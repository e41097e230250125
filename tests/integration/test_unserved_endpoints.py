"""Endpoints that an engine does not have: its 404 is said once, and clients get one that names model and endpoint."""

import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, RouterServer, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

RERANK = {"model": "llama", "query": "What is deep?", "documents": ["The sea"]}


@pytest_asyncio.fixture(loop_scope="session")
async def lacking() -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine]]:
    """Two engines that answer as FastAPI does for a path without a route."""
    one, other = (
        ScriptedEngine(b'{"detail":"Not Found"}', status=404, content_type="application/json") for _ in range(2)
    )
    await one.start()
    await other.start()
    yield one, other
    await one.stop()
    await other.stop()


@pytest.fixture
def two(redis_server: RedisServer, lacking: tuple[ScriptedEngine, ScriptedEngine]) -> str:
    one, other = lacking
    return router_config(
        redis_server.url, {"first": ("llama", "chat", one.url), "second": ("llama", "chat", other.url)}
    )


async def breakers(router: RouterServer) -> dict[str, str]:
    engines = (await router.http.get("/healthz")).json()["engines"]
    return {name: engine["breaker"] for name, engine in engines.items()}


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/score", "/classify", "/pooling"])
async def test_all_engines_are_asked_once_then_one_and_the_client_is_told_what_is_missing(
    make_router: MakeRouter, two: str, lacking: tuple[ScriptedEngine, ...], path: str, caplog: pytest.LogCaptureFixture
) -> None:
    router = await make_router(two)
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


async def test_the_other_endpoints_of_the_engines_go_on(router: RouterServer) -> None:
    assert (await router.post("/rerank", RERANK)).status_code == 404
    assert (await router.chat("Hello after a ranking")).status_code == 200
    assert (await router.post("/tokenize", {"model": "llama", "prompt": "x"})).status_code == 200


async def test_an_engine_of_the_model_that_has_the_endpoint_gets_all_such_requests(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    async with SimulatedEngine(LLAMA, runner="pooling") as scorer:
        mixed = {"chat": ("llama", "any", engines.chat.url), "scorer": ("llama", "any", scorer.url)}
        router = await make_router(router_config(redis_server.url, mixed))
        answers = [await router.post("/rerank", {**RERANK, "nonce": number}) for number in range(6)]
        assert {(answer.status_code, answer.headers["x-engine"]) for answer in answers} == {(200, "scorer")}


async def test_an_engine_that_has_the_endpoint_after_all_is_used_at_once(
    make_router: MakeRouter, two: str, lacking: tuple[ScriptedEngine, ...]
) -> None:
    router = await make_router(two)
    assert (await router.post("/rerank", RERANK)).status_code == 404
    for engine in lacking:
        engine.status = 200
        engine.pieces = (b'{"results":[{"index":0,"relevance_score":0.5}]}',)
    assert (await router.post("/rerank", RERANK)).status_code == 200
