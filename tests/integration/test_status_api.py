"""The status API before a real Redis, and with worker processes. What routers exchange: tests/world."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, MakeRouter, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin-key"}
REST = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
ENGINE_FIELDS = [
    "name", "model", "task", "url", "draft", "state", "drained", "breaker", "in_flight", "max_in_flight", "running",
    "waiting", "kv_cache_usage", "prefix_cache_hit_rate", "spec_acceptance_rate", "spec_tokens_per_step", "restarts",
    "temperature_celsius", "power_watts", "announced", "prefix_tokens",
    "prefix_capacity_tokens", "prefix_entries", "prefix_unused_seconds", "seconds_per_token",
    "asleep", "since", "cause", "failures",
]  # fmt: skip


@pytest.fixture
def text(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config(), rest=REST)


@pytest_asyncio.fixture(loop_scope="session")
async def workers(text: str, redis: Any, tmp_path: Path) -> AsyncIterator[RouterProcess]:
    """A router with two workers, in processes of their own."""
    process = RouterProcess(tmp_path, text.replace("[router]\n", "[router]\nworkers = 2\n"))
    process.start()
    await process.wait_until_ready()
    yield process
    process.kill()


async def get(http: httpx.AsyncClient, path: str, **query: Any) -> Any:
    answer = await http.get(f"/admin/{path}", params=query, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return answer.json()


def engine_of(status: Any, name: str) -> Any:
    return next(engine for engine in status["engines"] if engine["name"] == name)


async def test_the_status_names_engines_models_and_redis(
    text: str, make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    router = await make_router(text)

    async def probed() -> Any:
        status = await get(router.http, "status")
        return engine_of(status, "llama-chat")["running"] is not None and status

    status = await eventually(probed)
    assert all(list(engine) == ENGINE_FIELDS for engine in status["engines"])
    engine = engine_of(status, "llama-chat")
    assert (engine["state"], engine["breaker"], engine["url"]) == ("up", "closed", engines.chat.url)
    # Unknown is null: this engine is not announced, and has no limit.
    assert (engine["announced"], engine["restarts"], engine["power_watts"], engine["max_in_flight"]) == (
        False, None, None, None,
    )  # fmt: skip
    assert status["models"] == [
        {"name": "llama", "engines": ["llama-chat", "llama-code"], "fallback": None, "asleep": False},
        {"name": "mistral", "engines": ["mistral"], "fallback": None, "asleep": False},
    ]
    assert status["redis"] | {"used_memory": 1, "version": "", "keys": 1} == {
        "up": True, "url": redis_server.url.removesuffix("/0"), "version": "", "used_memory": 1, "maxmemory": None,
        "keys": 1, "refuses_writes": None, "since": None,
    }  # fmt: skip
    assert status["redis"]["used_memory"] > 100_000
    assert status["redis"]["keys"] > 0


async def test_all_workers_of_a_router_are_in_its_status(workers: RouterProcess) -> None:
    async with http_client(workers.url) as http:

        async def both() -> bool:
            pids = {router["pid"] for router in (await get(http, "status"))["routers"]}
            return pids == workers.worker_pids() and len(pids) == 2

        await eventually(both)


async def test_a_redis_that_takes_no_more_data_is_still_up(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    await own_redis.start()
    router = await make_router(router_config(own_redis.url, engines.as_config(), rest=REST))
    await own_redis.command("CONFIG", "SET", "maxmemory", 1)
    status = await get(router.http, "status")
    assert (status["redis"]["up"], status["redis"]["maxmemory"]) == (True, 1)
    assert status["last_hour"]["requests"] == 0
    assert (await get(router.http, "requests"))["requests"] == []


async def test_requests_are_found_without_hits_and_each_is_explained_when_asked_for(
    text: str, make_router: MakeRouter
) -> None:
    router = await make_router(text)
    missed = (await router.chat("Why is the sea salty?")).headers["x-request-id"]
    await router.chat("Why is the sea salty?")
    both = (await get(router.http, "requests"))["requests"]
    assert [(row["cache"], "words" in row) for row in both] == [("HIT", False), ("MISS", False)]
    (row,) = (await get(router.http, "requests", hits=0, words=1))["requests"]
    assert row["request_id"] == missed
    # One that ended a moment ago, before it is published.
    newest = (await router.chat("Why is the sky blue?")).headers["x-request-id"]
    assert len((await get(router.http, "requests", id=newest))["requests"]) == 1
    assert {"name": "cache", "text": "MISS, new: no similar request was known"} in row["words"]
    wrong = await router.http.get("/admin/requests", params={"hits": "no"}, headers=ADMIN)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "hits")
