"""The status API: what one router process says about all of them, their engines, Redis, traffic and requests."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.api.auth import hash_key
from router.core.cache.redis_keys import SNAPSHOTS_KEY, WATCHED_KEY, traffic_key
from router.net.redis.pipeline import RedisDownError
from router.settings import parse
from router.shared.router_snapshots import LIFETIME
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin-key"}
REST = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
ENGINE_FIELDS = [
    "name", "model", "task", "url", "draft", "state", "drained", "breaker", "in_flight", "max_in_flight", "running",
    "waiting", "kv_cache_usage", "prefix_cache_hit_rate", "spec_acceptance_rate", "spec_tokens_per_step", "restarts",
    "temperature_celsius", "power_watts", "announced",
]  # fmt: skip
ROUTER_FIELDS = [
    "id", "host", "pid", "version", "compiled", "started_at", "in_flight", "queued", "seen", "draining",
    "supervisor",
]  # fmt: skip
MINUTE_FIELDS = [
    "requests", "hits", "misses", "coalesced", "stale", "bypass", "rejected", "errors", "prompt_tokens",
    "completion_tokens", "saved_tokens", "gpu_seconds_spent", "gpu_seconds_saved", "at", "ttft_ms",
]  # fmt: skip
REQUEST_FIELDS = [
    "at", "request_id", "router", "tenant", "model", "task", "cache", "reason", "engine", "status", "outcome", "ms",
    "ttft_ms", "completion_tokens", "key",
]  # fmt: skip


@pytest.fixture
def text(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config(), rest=REST)


@pytest_asyncio.fixture(loop_scope="session")
async def routers(text: str, make_router: MakeRouter) -> tuple[RouterServer, RouterServer]:
    return await make_router(text), await make_router(text)


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
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def engine_of(status: Any, name: str) -> Any:
    return next(engine for engine in status["engines"] if engine["name"] == name)


async def test_the_first_status_already_has_every_router(routers: tuple[RouterServer, RouterServer]) -> None:
    status = await get(routers[0].http, "status")
    assert len({router["id"] for router in status["routers"]}) == 2
    assert all(list(router) == ROUTER_FIELDS for router in status["routers"])
    assert all(router["seen"] < 2.5 and not router["draining"] for router in status["routers"])
    assert abs(status["now"] - time.time()) < 5
    other = await get(routers[1].http, "status")
    assert [router["id"] for router in other["routers"]] == [router["id"] for router in status["routers"]]
    assert list(status) == ["now", "routers", "engines", "models", "redis", "last_hour"]


async def test_the_status_names_engines_models_and_redis(
    routers: tuple[RouterServer, RouterServer], redis_server: RedisServer, engines: EngineSet
) -> None:
    async def probed() -> Any:
        status = await get(routers[0].http, "status")
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
        {"name": "llama", "engines": ["llama-chat", "llama-code"], "fallback": None},
        {"name": "mistral", "engines": ["mistral"], "fallback": None},
    ]
    assert status["redis"] | {"used_memory": 1, "version": "", "keys": 1} == {
        "up": True, "url": redis_server.url.removesuffix("/0"), "version": "", "used_memory": 1, "maxmemory": None,
        "keys": 1, "refuses_writes": None,
    }  # fmt: skip
    assert status["redis"]["used_memory"] > 100_000
    assert status["redis"]["keys"] > 0


async def test_requests_in_flight_are_those_of_all_routers(
    routers: tuple[RouterServer, RouterServer], engines: EngineSet
) -> None:
    first, second = routers
    for engine in (engines.chat, engines.code):
        await engine.set_faults({"fault": "tps", "rate": 3})
    bodies = [chat_body(f"The sea {number}?", stream=True, max_tokens=400) for number in range(3)]
    async with (
        first.http.stream("POST", "/v1/chat/completions", json=bodies[0]),
        second.http.stream("POST", "/v1/chat/completions", json=bodies[1]),
        second.http.stream("POST", "/v1/chat/completions", json=bodies[2]),
    ):

        async def all_counted() -> bool:
            status = await get(first.http, "status")
            counts = sorted(router["in_flight"] for router in status["routers"])
            return counts == [1, 2] and sum(engine["in_flight"] for engine in status["engines"]) == 3

        await eventually(all_counted)


async def test_a_drain_at_one_router_is_in_the_status_of_the_other(routers: tuple[RouterServer, RouterServer]) -> None:
    first, second = routers
    assert (await first.http.post("/admin/engines/mistral/drain", headers=ADMIN)).status_code == 200

    async def drained() -> bool:
        return bool(engine_of(await get(second.http, "status"), "mistral")["drained"])

    await eventually(drained)


async def test_the_workers_of_a_router_are_all_in_its_status_and_a_killed_one_vanishes(workers: RouterProcess) -> None:
    async with http_client(workers.url) as http:

        async def pids() -> set[int]:
            return {router["pid"] for router in (await get(http, "status"))["routers"]}

        async def both() -> bool:
            return await pids() == workers.worker_pids() and len(workers.worker_pids()) == 2

        await eventually(both)
    victim = min(workers.worker_pids())
    workers.kill_worker(victim)
    async with http_client(workers.url) as http:

        async def is_gone() -> bool:
            try:
                return victim not in await pids()
            except httpx.TransportError:  # the connection went to the victim
                return False

        await eventually(is_gone, timeout=LIFETIME + 10)


async def test_a_worker_that_ends_vanishes_at_once(text: str, make_router: MakeRouter, redis: Any) -> None:
    first = await make_router(text)
    async with RouterServer(text) as second:
        assert len((await get(second.http, "status"))["routers"]) == 2
    assert await redis.hlen(SNAPSHOTS_KEY) <= 1
    assert len((await get(first.http, "status"))["routers"]) == 1


async def test_nothing_but_traffic_is_published_while_nobody_watches(
    routers: tuple[RouterServer, RouterServer], redis: Any
) -> None:
    first, _ = routers
    await first.chat("The moon?")
    assert await redis.exists(WATCHED_KEY, SNAPSHOTS_KEY) == 0
    assert first.application._process_state.telemetry._observer is None
    await get(first.http, "status")
    await eventually(lambda: first.application._process_state.telemetry._observer is not None)
    await redis.delete(WATCHED_KEY)
    await eventually(lambda: first.application._process_state.telemetry._observer is None)


async def test_the_history_sums_the_traffic_of_all_routers(
    routers: tuple[RouterServer, RouterServer], redis: Any
) -> None:
    for router in routers:
        await router.chat("The same question?", max_tokens=7)
    assert (await routers[0].chat("A question?", model="unknown")).status_code == 404
    for router in routers:  # as at the end of the process: without waiting for the timer
        router.application._runtime._status_publisher.flush()

    async def counted() -> Any:
        rows = (await get(routers[0].http, "history", minutes=2))["minutes"]
        return sum(row["requests"] for row in rows) >= 3 and rows

    rows = await eventually(counted)
    assert [list(row) for row in rows] == [MINUTE_FIELDS] * 2
    assert rows[1]["at"] - rows[0]["at"] == 60
    total = {name: sum(row[name] for row in rows) for name in MINUTE_FIELDS[:-2]}
    assert (total["requests"], total["hits"], total["misses"], total["rejected"]) == (3, 1, 1, 1)
    assert total["saved_tokens"] == total["completion_tokens"] == 7
    times = [row["ttft_ms"]["hit"]["p50"] for row in rows if row["hits"]]
    assert times[0] > 0
    hour = (await get(routers[1].http, "status"))["last_hour"]
    assert (hour["requests"], hour["hit_ratio"]) == (3, 0.5)
    assert 0 < hour["ttft_p50_ms"] <= hour["ttft_p99_ms"]
    keys = [traffic_key(row["at"] // 60) for row in rows if row["requests"]]
    assert all([0 < await redis.ttl(key) <= 2 * 3600 + 60 for key in keys])


async def test_the_history_has_a_row_for_each_minute_also_without_traffic(router: RouterServer, text: str) -> None:
    async with RouterServer(text) as guarded:
        rows = (await get(guarded.http, "history"))["minutes"]
        assert [row["at"] - rows[0]["at"] for row in rows] == [60 * number for number in range(60)]
        assert rows[0]["requests"] == 0
        assert rows[0]["ttft_ms"] == {"hit": {"p50": None, "p99": None}, "miss": {"p50": None, "p99": None}}


async def test_the_latest_requests_of_all_routers_are_listed_while_someone_watches(
    routers: tuple[RouterServer, RouterServer],
) -> None:
    first, second = routers
    assert await get(first.http, "requests") == {"requests": []}
    observed = [router.application._process_state.telemetry for router in routers]
    await eventually(lambda: all(telemetry._observer is not None for telemetry in observed))
    assert (await first.chat("The sun?", max_tokens=5)).headers["x-cache"] == "MISS"
    assert (await second.chat("The sun?", max_tokens=5)).headers["x-cache"] == "HIT"
    refused = await first.chat("The sun?", model="unknown")

    async def all_three() -> Any:
        rows = (await get(second.http, "requests"))["requests"]
        return len(rows) == 3 and rows

    rows = await eventually(all_three)
    assert [list(row) for row in rows] == [REQUEST_FIELDS] * 3
    assert [row["cache"] for row in rows] == [None, "HIT", "MISS"]
    assert [row["outcome"] for row in rows] == ["refused", "complete", "complete"]
    assert rows[0]["request_id"] == refused.headers["x-request-id"]
    assert (rows[0]["status"], rows[0]["reason"]) == (404, "model_not_found")
    assert rows[1]["router"] != rows[2]["router"] == rows[0]["router"]
    assert rows[1]["key"] == rows[2]["key"]
    assert (rows[2]["reason"], rows[2]["engine"], rows[2]["completion_tokens"]) == ("new", "llama-chat", 5)
    assert "sun" not in str(rows)
    assert len((await get(second.http, "requests", limit=1))["requests"]) == 1


async def test_a_request_shortly_before_a_reload_is_listed(text: str) -> None:
    async with RouterServer(text) as guarded:
        await get(guarded.http, "requests")
        telemetry = guarded.application._process_state.telemetry
        await eventually(lambda: telemetry._observer is not None)
        before, sent = time.time(), set()
        for number in range(3):
            sent.add((await guarded.chat(f"The tide {number}?")).headers["x-request-id"])
            await guarded.application.reload(parse(text, {}))

        async def all_three() -> Any:
            rows = (await get(guarded.http, "requests"))["requests"]
            listed = [row for row in rows if row["request_id"] in sent]
            return len(listed) == 3 and listed

        rows = await eventually(all_three)
        assert all(before - 0.1 <= row["at"] <= time.time() + 0.1 for row in rows)


@pytest.mark.parametrize(
    "path",
    ["history?minutes=0", "history?minutes=121", "history?minutes=x", "requests?limit=201", "requests?limit=-1"],
)
async def test_a_number_out_of_bounds_is_refused(routers: tuple[RouterServer, RouterServer], path: str) -> None:
    answer = await routers[0].http.get(f"/admin/{path}", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_query")


@pytest.mark.parametrize("path", ["status", "history", "requests"])
async def test_the_status_needs_the_admin_key(routers: tuple[RouterServer, RouterServer], path: str) -> None:
    for headers in ({}, {"authorization": "Bearer another"}):
        assert (await routers[0].http.get(f"/admin/{path}", headers=headers)).status_code == 401


async def test_while_redis_is_down_the_status_shows_the_process_that_answers(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    await own_redis.start()
    text = router_config(own_redis.url, engines.as_config(), rest=REST)
    router = await make_router(text)
    await make_router(text)
    assert len((await get(router.http, "status"))["routers"]) == 2
    own_redis.kill()
    status = await get(router.http, "status")
    assert len(status["routers"]) == 1
    assert status["redis"] == {
        "up": False, "url": own_redis.url.removesuffix("/0"), "version": None, "used_memory": None, "maxmemory": None,
        "keys": None, "refuses_writes": None,
    }  # fmt: skip
    assert status["last_hour"] is None
    assert engine_of(status, "llama-chat")["state"] == "up"
    for path in ("history", "requests"):
        answer = await router.http.get(f"/admin/{path}", headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_down")
    await own_redis.start()

    async def both() -> bool:
        return len((await get(router.http, "status"))["routers"]) == 2

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
    assert await get(router.http, "requests") == {"requests": []}


async def test_traffic_while_redis_is_down_is_counted_later(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    await own_redis.start()
    router = await make_router(router_config(own_redis.url, engines.as_config(), rest=REST))
    own_redis.kill()
    assert (await router.chat("The sea?")).status_code == 200
    pipeline = router.application._runtime._background_services._pipeline
    await eventually(lambda: not pipeline.up)
    publisher = router.application._runtime._status_publisher
    with pytest.raises(RedisDownError):
        publisher.flush()
    await own_redis.start()
    await eventually(lambda: pipeline.up)
    publisher.flush()

    async def counted() -> bool:
        rows = (await get(router.http, "history", minutes=2))["minutes"]
        return [row["requests"] for row in rows if row["requests"]] == [1]

    await eventually(counted)
