"""The status API: what one router process says about all of them, their engines, Redis, traffic and requests."""

import asyncio
import time
from typing import Any, NamedTuple

import pytest

from router.api.access.auth import hash_key
from router.core.cache.redis_keys import (
    NOTABLE_REQUESTS_KEY,
    RECENT_REQUESTS_KEY,
    SNAPSHOTS_KEY,
    WATCHED_KEY,
    traffic_key,
)
from router.flow.replicas.latest_requests import MAX_KEPT
from router.net.redis.pipeline import RedisDownError
from router.shared.status.router_snapshots import LIFETIME
from tests.support.router_server import chat_body, router_config
from tests.support.waiting import eventually
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import PROBED, World, scenario

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
    "completion_tokens", "saved_tokens", "gpu_seconds_spent", "gpu_seconds_saved", "at", "ttft_ms", "refused",
]  # fmt: skip
REQUEST_FIELDS = [
    "at", "request_id", "router", "tenant", "model", "task", "cache", "reason", "engine", "status", "outcome", "ms",
    "ttft_ms", "completion_tokens", "key", "path", "key_id", "stream", "error", "notable", "times", "attempts",
    "shared_with",
]  # fmt: skip


class Pair(NamedTuple):
    first: WorldRouter
    second: WorldRouter
    engines: WorldEngines
    text: str
    """The configuration of both."""


async def pair(world: World) -> Pair:
    engines = await world.engines()
    text = router_config(world.redis.url, engines.as_config(), rest=REST)
    return Pair(await world.router(text), await world.router(text), engines, text)


async def get(router: WorldRouter, path: str, **query: Any) -> Any:
    answer = await router.http.get(f"/admin/{path}", params=query, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


async def router_ids(router: WorldRouter) -> list[str]:
    return [each["id"] for each in (await get(router, "status"))["routers"]]


def engine_of(status: Any, name: str) -> Any:
    return next(engine for engine in status["engines"] if engine["name"] == name)


@scenario
async def test_the_first_status_already_has_every_router(world: World) -> None:
    routers = await pair(world)
    status = await get(routers.first, "status")
    assert len({router["id"] for router in status["routers"]}) == 2
    assert all(list(router) == ROUTER_FIELDS for router in status["routers"])
    assert all(router["seen"] < 2.5 and not router["draining"] for router in status["routers"])
    assert abs(status["now"] - time.time()) < 1
    assert await router_ids(routers.second) == [router["id"] for router in status["routers"]]
    assert list(status) == [
        "now",
        "routers",
        "engines",
        "models",
        "redis",
        "last_hour",
        "problems",
        "gpus",
        "router_now",
    ]


@scenario
async def test_since_when_something_is_wrong_is_told_by_the_same_clock_as_the_time_of_the_router(world: World) -> None:
    routers = await pair(world)
    world.redis.model.offset = 40.0
    await routers.engines.chat.set_faults({"fault": "health", "code": 503})

    async def is_told() -> list[dict[str, Any]]:
        return list((await get(routers.first, "status"))["problems"])

    (problem,) = await eventually(is_told)
    status = await get(routers.first, "status")
    assert 0 <= status["router_now"] - problem["since"] < 10


@scenario
async def test_requests_in_flight_are_those_of_all_routers(world: World) -> None:
    first, second, engines, _ = await pair(world)
    for engine in (engines.chat, engines.code):
        await engine.set_faults({"fault": "tps", "rate": 3})
    bodies = [chat_body(f"The sea {number}?", stream=True, max_tokens=400) for number in range(3)]
    async with (
        first.http.stream("POST", "/v1/chat/completions", json=bodies[0]),
        second.http.stream("POST", "/v1/chat/completions", json=bodies[1]),
        second.http.stream("POST", "/v1/chat/completions", json=bodies[2]),
    ):

        async def all_counted() -> bool:
            status = await get(first, "status")
            counts = sorted(router["in_flight"] for router in status["routers"])
            return counts == [1, 2] and sum(engine["in_flight"] for engine in status["engines"]) == 3

        await eventually(all_counted)


@scenario
async def test_a_drain_at_one_router_is_in_the_status_of_the_other(world: World) -> None:
    first, second, *_ = await pair(world)
    assert (await first.http.post("/admin/engines/mistral/drain", headers=ADMIN)).status_code == 200

    async def drained() -> bool:
        return bool(engine_of(await get(second, "status"), "mistral")["drained"])

    await eventually(drained)


@scenario
async def test_a_router_that_is_killed_vanishes_from_the_status(world: World) -> None:
    first, second, *_ = await pair(world)
    assert len(await router_ids(first)) == 2
    await asyncio.sleep(PROBED)
    second.kill()
    killed = time.time()
    assert len(await router_ids(first)) == 2

    async def is_gone() -> bool:
        return len(await router_ids(first)) == 1

    await eventually(is_gone, timeout=LIFETIME + 1)
    assert time.time() - killed > LIFETIME - PROBED


@scenario
async def test_a_router_that_ends_vanishes_at_once(world: World) -> None:
    first, second, *_ = await pair(world)
    assert len(await router_ids(first)) == 2
    await second.stop()
    assert await world.redis.client.hlen(SNAPSHOTS_KEY) <= 1
    assert len(await router_ids(first)) == 1


@scenario
async def test_nothing_but_traffic_is_published_while_nobody_watches(world: World) -> None:
    first, *_ = await pair(world)
    redis = world.redis.client
    await first.chat("The moon?")
    assert await redis.exists(WATCHED_KEY, SNAPSHOTS_KEY) == 0
    await get(first, "status")
    assert await redis.exists(WATCHED_KEY, SNAPSHOTS_KEY) == 2


@scenario
async def test_the_history_sums_the_traffic_of_all_routers(world: World) -> None:
    routers = await pair(world)
    for router in routers[:2]:
        await router.chat("The same question?", max_tokens=7)
    assert (await routers.first.chat("A question?", model="unknown")).status_code == 404

    async def counted() -> Any:
        rows = (await get(routers.first, "history", minutes=2))["minutes"]
        return sum(row["requests"] for row in rows) >= 3 and rows

    rows = await eventually(counted)
    assert [list(row) for row in rows] == [MINUTE_FIELDS] * 2
    assert rows[1]["at"] - rows[0]["at"] == 60
    total = {name: sum(row[name] for row in rows) for name in MINUTE_FIELDS[:-2]}
    assert (total["requests"], total["hits"], total["misses"], total["rejected"]) == (3, 1, 1, 1)
    assert total["saved_tokens"] == total["completion_tokens"] == 7
    times = [row["ttft_ms"]["hit"]["p50"] for row in rows if row["hits"]]
    assert times[0] > 0
    hour = (await get(routers.second, "status"))["last_hour"]
    assert (hour["requests"], hour["hit_ratio"]) == (3, 0.5)
    assert 0 < hour["ttft_p50_ms"] <= hour["ttft_p99_ms"]
    keys = [traffic_key(row["at"] // 60) for row in rows if row["requests"]]
    assert all([0 < await world.redis.client.ttl(key) <= 2 * 3600 + 60 for key in keys])


@scenario
async def test_the_history_has_a_row_for_each_minute_also_without_traffic(world: World) -> None:
    rows = (await get((await pair(world)).first, "history"))["minutes"]
    assert [row["at"] - rows[0]["at"] for row in rows] == [60 * number for number in range(60)]
    assert rows[0]["requests"] == 0
    assert rows[0]["ttft_ms"] == {"hit": {"p50": None, "p99": None}, "miss": {"p50": None, "p99": None}}


@scenario
async def test_the_last_requests_of_all_routers_are_listed_though_nobody_watched_them(world: World) -> None:
    first, second, *_ = await pair(world)
    assert (await first.chat("The sun?", max_tokens=5)).headers["x-cache"] == "MISS"
    await asyncio.sleep(1)
    assert (await second.chat("The sun?", max_tokens=5)).headers["x-cache"] == "HIT"
    await asyncio.sleep(1)  # the routers know the time of Redis to a few milliseconds, and the rows are in its order
    refused = await first.chat("The sun?", model="unknown")

    rows = (await get(second, "requests"))["requests"]
    assert [list(row) for row in rows] == [REQUEST_FIELDS] * 3
    assert [row["cache"] for row in rows] == [None, "HIT", "MISS"]
    assert [row["outcome"] for row in rows] == ["refused", "complete", "complete"]
    assert rows[0]["request_id"] == refused.headers["x-request-id"]
    assert (rows[0]["status"], rows[0]["reason"]) == (404, "model_not_found")
    assert rows[1]["router"] != rows[2]["router"] == rows[0]["router"]
    assert rows[1]["key"] == rows[2]["key"]
    assert (rows[2]["reason"], rows[2]["engine"], rows[2]["completion_tokens"]) == ("new", "llama-chat", 5)
    assert "sun" not in str(rows)
    assert len((await get(second, "requests", limit=1))["requests"]) == 1


@scenario
async def test_a_request_is_found_by_its_id_and_by_what_it_is(world: World) -> None:
    first, second, engines, _ = await pair(world)
    ids = [(await router.chat("The sun?")).headers["x-request-id"] for router in (first, second)]
    (row,) = (await get(first, "requests", id=ids[1]))["requests"]
    assert (row["request_id"], row["cache"]) == (ids[1], "HIT")
    assert (await get(first, "requests", id="unknown"))["requests"] == []
    assert (await get(first, "requests", failed=1))["requests"] == []
    assert (await get(first, "requests", tenant="nobody"))["requests"] == []
    await engines.chat.set_faults({"fault": "status", "code": 500})
    await engines.code.set_faults({"fault": "status", "code": 500})
    failed = await first.chat("The moon?")
    assert failed.status_code == 502

    async def of_the_failure() -> Any:
        return (await get(second, "requests", failed=1))["requests"]

    (row,) = await eventually(of_the_failure)
    assert (row["request_id"], row["error"], row["notable"]) == (failed.headers["x-request-id"], "engine_failed", True)
    assert {attempt["result"] for attempt in row["attempts"]} == {"status-500"}
    assert all(attempt["ms"] > 0 and "500" in attempt["message"] for attempt in row["attempts"])


@scenario
async def test_a_request_that_is_slower_than_the_others_of_its_model_is_found(world: World) -> None:
    engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"e1": ("llama", "any", engine.url)}, rest=REST))
    for number in range(101):
        await router.chat(f"The sun {number}?")
    await asyncio.sleep(1)  # the durations are added up every 250 ms
    await engine.set_faults({"fault": "ttft", "ms": 5000, "times": 1})
    slow = (await router.chat("The moon?")).headers["x-request-id"]
    (row,) = (await get(router, "requests", slow=1, limit=1))["requests"]
    assert (row["request_id"], row["notable"]) == (slow, True)
    assert row["times"]["engine_ms"] > 5000


@scenario
async def test_a_failure_is_listed_again_when_redis_has_lost_it(world: World) -> None:
    engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"e1": ("llama", "any", engine.url)}, rest=REST))
    await engine.set_faults({"fault": "status", "code": 500})
    failed = (await router.chat("The moon?")).headers["x-request-id"]
    found = (await get(router, "requests", failed=1))["requests"]
    await asyncio.sleep(LIFETIME + 1)
    assert (await get(router, "requests", failed=1))["requests"] == found, "not twice"
    await world.redis.client.delete(RECENT_REQUESTS_KEY, NOTABLE_REQUESTS_KEY)
    await asyncio.sleep(LIFETIME + 1)
    assert [row["request_id"] for row in (await get(router, "requests", failed=1))["requests"]] == [failed]


@scenario
async def test_refusals_of_clients_requests_leave_room_for_failures(world: World) -> None:
    engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"e1": ("llama", "any", engine.url)}, rest=REST))
    for _ in range(200):
        assert (await router.chat("The moon?", headers={"cache-control": "only-if-cached"})).status_code == 504
        assert (await router.chat("The moon?", model="unknown")).status_code == 404
    rows = (await get(router, "requests", limit=200))["requests"]
    assert len(rows) == 200
    assert not [row for row in rows if row["notable"]]


@scenario
async def test_a_failure_is_listed_when_many_requests_have_followed(world: World) -> None:
    engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"e1": ("llama", "any", engine.url)}, rest=REST))
    await router.chat("The sun?")
    await engine.set_faults({"fault": "status", "code": 500})
    failed = (await router.chat("The moon?")).headers["x-request-id"]
    for _ in range(MAX_KEPT + 1):
        assert (await router.chat("The sun?")).headers["x-cache"] == "HIT"
    found = (await get(router, "requests", failed=1))["requests"]
    assert [row["request_id"] for row in found] == [failed]
    assert (await get(router, "requests", id=failed))["requests"] == found


@scenario
async def test_a_request_shortly_before_a_reload_is_listed(world: World) -> None:
    router, _, _, text = await pair(world)
    before, sent = time.time(), set()
    for number in range(3):
        sent.add((await router.chat(f"The tide {number}?")).headers["x-request-id"])
        await router.reload(text)

    async def all_three() -> Any:
        rows = (await get(router, "requests"))["requests"]
        return {row["request_id"] for row in rows} == sent and rows

    rows = await eventually(all_three)
    assert all(before <= row["at"] <= time.time() for row in rows)


@pytest.mark.parametrize(
    "path",
    [
        "history?minutes=0",
        "history?minutes=121",
        "history?minutes=x",
        "requests?limit=201",
        "requests?limit=-1",
        "requests?slow=x",
    ],
)
@scenario
async def test_a_number_out_of_bounds_is_refused(world: World, path: str) -> None:
    answer = await (await pair(world)).first.http.get(f"/admin/{path}", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_query")


@scenario
async def test_the_status_needs_the_admin_key(world: World) -> None:
    router = (await pair(world)).first
    for path in ("status", "history", "requests"):
        for headers in ({}, {"authorization": "Bearer another"}):
            assert (await router.http.get(f"/admin/{path}", headers=headers)).status_code == 401


@scenario
async def test_while_redis_is_down_the_status_shows_the_process_that_answers(world: World) -> None:
    router = (await pair(world)).first
    assert len(await router_ids(router)) == 2
    world.redis.stop()
    status = await get(router, "status")
    assert len(status["routers"]) == 1
    assert status["redis"] | {"since": None} == {
        "up": False, "since": None, "url": world.redis.url, "version": None, "used_memory": None, "maxmemory": None,
        "keys": None, "refuses_writes": None,
    }  # fmt: skip
    assert status["last_hour"] is None
    assert [problem["kind"] for problem in status["problems"]] == ["redis"]
    assert engine_of(status, "llama-chat")["state"] == "up"
    answer = await router.http.get("/admin/history", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_down")
    world.redis.start()

    async def both() -> bool:
        return len(await router_ids(router)) == 2

    await eventually(both)


@scenario
async def test_refusals_and_failures_are_told_apart(world: World) -> None:
    router = (await pair(world)).first
    refused = (await router.chat("The sea?", model="unknown")).headers["x-request-id"]
    rows = (await get(router, "requests", failed=1, refused=0))["requests"]
    assert rows == []
    (row,) = (await get(router, "requests", refused=1))["requests"]
    assert (row["request_id"], row["status"]) == (refused, 404)
    assert (await get(router, "requests", failed=1))["requests"] == [row]


@scenario
async def test_a_full_redis_does_not_hide_the_last_requests_of_the_process_that_answers(world: World) -> None:
    router = (await pair(world)).first
    world.redis.is_full = True

    async def is_full() -> bool:
        return bool((await get(router, "status"))["redis"]["refuses_writes"] == "full")

    await eventually(is_full)
    sent = await router.chat("The sea?")
    shown = await get(router, "requests")
    assert [row["request_id"] for row in shown["requests"]] == [sent.headers["x-request-id"]]
    assert not shown["all_routers"]


@scenario
async def test_traffic_while_redis_is_down_is_counted_later(world: World) -> None:
    router = (await pair(world)).first
    world.redis.stop()
    assert (await router.chat("The sea?")).status_code == 200
    pipeline = router.application._runtime.services.redis.pipeline
    await eventually(lambda: not pipeline.up)
    with pytest.raises(RedisDownError):
        router.application._runtime._status.publisher.flush()
    world.redis.start()

    async def counted() -> bool:
        rows = (await get(router, "history", minutes=2))["minutes"] if pipeline.up else []
        return [row["requests"] for row in rows if row["requests"]] == [1]

    await eventually(counted, timeout=60)


@scenario
async def test_while_redis_is_down_the_last_requests_are_those_of_the_process_that_answers(world: World) -> None:
    first, second, *_ = await pair(world)
    sent = [await router.chat(prompt) for router in (first, second) for prompt in ("The sea?", "The moon?")]
    world.redis.stop()
    sent.append(await first.chat("The sun?"))
    expected = [sent[index].headers["x-request-id"] for index in (4, 1, 0)]
    unknown = await first.http.get("/admin/cache/explain", params={"id": "unknown"}, headers=ADMIN)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "redis_down"), "another router may know it"
    assert (await first.http.get("/admin/cache/explain", headers=ADMIN)).status_code == 400
    for query in ({"limit": 10}, {"limit": 10, "model": "llama"}):
        shown = await get(first, "requests", **query)
        assert ([row["request_id"] for row in shown["requests"]], shown["all_routers"]) == (expected, False)
    world.redis.start()

    async def are_all() -> bool:
        found = await get(first, "requests", limit=10)
        return bool(found["all_routers"]) and len(found["requests"]) == 5

    await eventually(are_all)
