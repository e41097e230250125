"""The operational endpoints of the router."""

import datetime as dt
import time
from importlib.metadata import version
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, LLAMA_ALIAS, EngineSet, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_models_are_listed_with_their_aliases_and_auto(router: RouterServer) -> None:
    answer = await router.http.get("/v1/models")
    listing = answer.json()
    assert listing["object"] == "list"
    assert [model["id"] for model in listing["data"]] == ["llama", LLAMA_ALIAS, "mistral", "mistral-alias", "auto"]
    assert {model["object"] for model in listing["data"]} == {"model"}
    assert [model["root"] for model in listing["data"]] == ["llama", "llama", "mistral", "mistral", None]


@pytest.mark.parametrize("name", ["llama", LLAMA_ALIAS, "auto"])
async def test_one_model_is_as_in_the_listing(router: RouterServer, name: str) -> None:
    listed = {model["id"]: model for model in (await router.http.get("/v1/models")).json()["data"]}
    assert (await router.http.get(f"/v1/models/{name}")).json() == listed[name]


async def test_a_model_whose_name_has_slashes_can_be_requested(make_router: MakeRouter, config: str) -> None:
    router = await make_router(config.replace(LLAMA_ALIAS, "org/model"))
    for path in ("/v1/models/org/model", "/v1/models/org%2Fmodel"):
        assert (await router.http.get(path)).json()["id"] == "org/model"


async def test_the_pages_that_vllms_tools_request_exist(router: RouterServer) -> None:
    health = await router.http.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert (await router.http.get("/version")).json() == {"version": version("roundhouse-router")}


async def test_healthz_summarizes_the_state(router: RouterServer, engines: EngineSet) -> None:
    answer = await router.http.get("/healthz")
    summary = answer.json()
    assert (answer.status_code, summary["status"]) == (200, "healthy")
    names = [
        "status", "reason", "problems", "circuit_breaker_open", "gpu_cache_usage_percent", "last_check", "engines",
        "redis",
    ]  # fmt: skip
    assert list(summary) == names
    assert summary["problems"] == []
    assert summary["gpu_cache_usage_percent"] == 0.0
    assert (summary["circuit_breaker_open"], summary["redis"]) == (False, "up")
    checked = dt.datetime.fromisoformat(summary["last_check"])
    assert abs((dt.datetime.now(dt.UTC) - checked).total_seconds()) < 60
    assert {name: engine["up"] for name, engine in summary["engines"].items()} == dict.fromkeys(
        engines.as_config(), True
    )


async def test_healthz_shows_the_fullest_cache(make_router: MakeRouter, config: str, engines: EngineSet) -> None:
    await engines.code.set_faults({"fault": "kv", "usage": 0.9512})
    await engines.mistral.set_faults({"fault": "kv", "usage": 0.5, "metric": "old"})
    router = await make_router(config)
    assert (await router.http.get("/healthz")).json()["gpu_cache_usage_percent"] == 95.12


async def test_an_unreported_usage_is_unknown_and_not_0(
    make_router: MakeRouter, config: str, engines: EngineSet
) -> None:
    for engine in engines:
        await engine.set_faults({"fault": "kv", "metric": "missing"})
    router = await make_router(config)
    assert (await router.http.get("/healthz")).json()["gpu_cache_usage_percent"] is None
    assert not [name for name in await router.metrics() if name.startswith("vllm_kv_cache_usage")]


async def test_with_an_engine_down_it_is_degraded_and_still_ready(
    make_router: MakeRouter, config: str, engines: EngineSet
) -> None:
    await engines.code.set_faults({"fault": "health", "code": 503})
    router = await make_router(config)
    answer = await router.http.get("/healthz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    engine, (problem,) = answer.json()["engines"]["llama-code"], answer.json()["problems"]
    assert (engine["up"], engine["cause"]) == (False, "status 503")
    assert (problem["severity"], problem["kind"], problem["subject"]) == ("critical", "engine", "llama-code")
    assert problem["since"] == pytest.approx(time.time(), abs=60)
    clock = time.strftime("%H:%M:%S", time.gmtime(problem["since"]))
    assert problem["words"] == f"engine llama-code is down since {clock} UTC: status 503"
    assert (await router.http.get("/readyz")).status_code == 200


async def test_with_a_model_without_an_engine_it_is_not_ready(
    make_router: MakeRouter, config: str, engines: EngineSet
) -> None:
    await engines.mistral.set_faults({"fault": "health", "code": 503})
    router = await make_router(config)
    answer = await router.http.get("/readyz")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert (await router.http.get("/healthz")).json()["status"] == "degraded"


async def test_with_no_engine_at_all_it_is_unhealthy_until_one_is_back(
    make_router: MakeRouter, redis_server: RedisServer
) -> None:
    engine = SimulatedEngine(LLAMA, port=free_port())  # which stays free while it is down
    await engine.start()
    await engine.kill()
    router = await make_router(router_config(redis_server.url, {"one": ("llama", "any", engine.url)}))
    answer = await router.http.get("/healthz")
    assert (answer.status_code, answer.json()["status"]) == (503, "unhealthy")
    assert (await router.http.get("/readyz")).status_code == 503
    assert (await router.http.get("/health")).status_code == 200, "the router itself is alive"
    await engine.start()
    try:
        await eventually(lambda: _healthy(router))
    finally:
        await engine.stop()


async def _healthy(router: RouterServer) -> bool:
    summary: dict[str, Any] = (await router.http.get("/healthz")).json()
    return bool(summary["status"] == "healthy")
