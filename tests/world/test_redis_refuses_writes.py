"""A Redis that can be read and takes no writes: one truth in all places, and a purge that deletes what it can."""

from typing import Any, Final

import pytest

from router.api.access.auth import hash_key
from router.commands.top.view import _redis
from router.shared.status.status_documents import RedisRow
from tests.support.router_server import router_config
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

ADMIN: Final = {"authorization": "Bearer admin-key"}
REST: Final = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
FULL: Final = "Redis is full: nothing is stored"


async def start(world: World) -> WorldRouter:
    engine = await world.engine()
    return await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=REST))


async def health(router: WorldRouter) -> dict[str, Any]:
    return dict((await router.http.get("/healthz")).json())


async def redis_row(router: WorldRouter) -> RedisRow:
    return RedisRow(**(await router.http.get("/admin/status", headers=ADMIN)).json()["redis"])


async def says(router: WorldRouter, state: str) -> bool:
    return bool((await health(router))["redis"] == state)


async def purge(router: WorldRouter) -> Any:
    return await router.http.post("/admin/cache/purge", json={"all": True}, headers=ADMIN)


async def is_hit(router: WorldRouter) -> bool:
    headers = {"cache-control": "only-if-cached"}
    return bool((await router.chat("The sea?", headers=headers)).headers.get("x-cache") == "HIT")


@scenario
async def test_a_full_redis_is_said_to_be_full_without_a_request(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    router = await start(world)
    assert (await health(router))["status"] == "healthy"
    world.redis.is_full = True
    await eventually(lambda: says(router, "full"))
    assert (await health(router))["status"] == "degraded"
    row = await redis_row(router)
    assert (row.up, row.refuses_writes) == (True, "full")
    assert _redis(row).startswith(FULL)
    assert (await router.metrics())["roundhouse_redis_up"] == 1
    assert len([line for line in caplog.messages if FULL in line]) == 1


@scenario
async def test_a_read_only_replica_is_said_to_be_one(world: World) -> None:
    """It counts as down: it may not get purges from elsewhere."""
    router = await start(world)

    async def problems(path: str) -> list[str]:
        return [each["words"] for each in (await router.http.get(path, headers=ADMIN)).json()["problems"]]

    async def is_told(path: str) -> bool:
        return any(words.startswith("Redis is a read-only replica since ") for words in await problems(path))

    world.redis.read_only = True
    await eventually(lambda: says(router, "down"))
    await eventually(lambda: is_told("/healthz"))
    await eventually(lambda: is_told("/admin/status"))
    assert any('problem="Redis is a read-only replica: every request' in name for name in await router.metrics())
    world.redis.read_only = False
    await eventually(lambda: says(router, "up"))
    assert not await problems("/healthz")
    world.redis.read_only = True
    await eventually(lambda: is_told("/healthz"))
    world.redis.stop()
    await eventually(lambda: is_down_otherwise(router))


async def is_down_otherwise(router: WorldRouter) -> bool:
    return any(each["words"].startswith("Redis is down since ") for each in (await health(router))["problems"])


@scenario
async def test_many_refused_responses_are_one_line_of_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    router = await start(world)
    world.redis.is_full = True
    for number in range(5):
        assert (await router.chat(f"What is {number}?")).headers["x-cache"] == "MISS"

    async def failed() -> bool:
        return (await router.metrics()).get('llm_cache_writes_total{result="failed"}') == 5

    await eventually(failed)
    assert await says(router, "full"), "a refused entry is enough"
    assert len([line for line in caplog.messages if FULL in line]) == 1
    assert not [line for line in caplog.messages if "cannot write an entry" in line]


@scenario
async def test_a_purge_of_a_full_redis_deletes_what_it_finds_and_says_that_it_has_no_record(world: World) -> None:
    router = await start(world)
    await router.chat("The sea?")
    await eventually(lambda: is_hit(router))
    world.redis.is_full = True
    answer = await purge(router)
    assert (answer.status_code, answer.json()["entries"], answer.json()["recorded"]) == (200, 1, False)
    assert not await is_hit(router), "no local copy either"
