"""Batches beside requests of people: what they wait for, and what they do not."""

import asyncio
from pathlib import Path

import httpx
import pytest

from router.core.cache.redis_keys import budget_key
from router.core.quota.budget import DAY
from tests.support.limited_tenants import ACME, tenant_tables
from tests.support.router_server import chat_body, router_config
from tests.support.waiting import eventually
from tests.world.batches import CHAT, batch_lines, begin_batch
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import PROBED, World, scenario

COUNT = 120
PROMPTS = [f"How deep is sea {number}?" for number in range(COUNT)]


async def start(world: World, folder: Path, *, slots: int = 4) -> tuple[WorldRouter, WorldEngine]:
    engine = await world.engine()
    rest = f'max_in_flight = {slots}\n[batch]\nfolder = "{folder}"\n'
    return await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=rest)), engine


async def ask_patiently(router: WorldRouter, prompt: str) -> httpx.Response:
    return await router.http.post(CHAT, json=chat_body(prompt), timeout=None)


def requests(metrics: dict[str, float]) -> dict[str, float]:
    """How many requests for a model there were, by labels."""
    return {
        name: count for name, count in metrics.items()
        if name.startswith("llm_requests_total{") and 'model="llama"' in name
    }  # fmt: skip


@pytest.mark.parametrize("engines", ["down", "busy"])
@scenario
async def test_a_second_run_of_a_file_needs_no_engine(world: World, tmp_path: Path, engines: str) -> None:
    router, engine = await start(world, tmp_path, slots=1)
    first = await begin_batch(router, batch_lines(PROMPTS))
    await eventually(first.is_complete)
    before = requests(await router.metrics())
    if engines == "down":
        engine.kill()
        await asyncio.sleep(PROBED)
    else:
        await engine.set_faults({"fault": "ttft", "ms": 25_000, "times": 1})
        person = asyncio.ensure_future(ask_patiently(router, "How high is the sky?"))
        await engine.stats(in_flight=1)
    again = await begin_batch(router, batch_lines([*PROMPTS, "And the moon?"]))

    async def has_only_one_left() -> bool:
        return await again.counts() == {"total": COUNT + 1, "completed": COUNT, "failed": 0, "cached": COUNT}

    started = asyncio.get_running_loop().time()
    await eventually(has_only_one_left)
    assert asyncio.get_running_loop().time() - started < 15
    await asyncio.sleep(5)
    after = requests(await router.metrics())
    assert sum(after.values()) - sum(before.values()) == COUNT, "the line that waits is no request yet"
    assert not [name for name in after if 'status="504"' in name]
    if engines == "down":
        await engine.start()
    else:
        assert (await person).status_code == 200
    await eventually(again.is_complete)
    assert {each["response"]["cache"] for each in await again.results()} == {"HIT", "MISS"}


@scenario
async def test_hits_count_for_the_rate_of_their_tenant_once(world: World, tmp_path: Path) -> None:
    engine = await world.engine()
    rest = f'max_in_flight = 1\n{tenant_tables("requests_per_minute = 80")}\n[batch]\nfolder = "{tmp_path}"\n'
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=rest))
    seconds = []
    for _ in range(2):
        await asyncio.sleep(120)
        started = asyncio.get_running_loop().time()
        batch = await begin_batch(router, batch_lines(PROMPTS), headers=ACME)
        for _ in range(30):
            await asyncio.sleep(10)  # each look at the batch counts, too
            if await batch.is_complete():
                break
        seconds.append(asyncio.get_running_loop().time() - started)
        engine.kill()
    assert await batch.counts() == {"total": COUNT, "completed": COUNT, "failed": 0, "cached": COUNT}
    assert seconds[1] == pytest.approx(seconds[0], rel=0.2), "as many requests as without the cache"
    assert seconds[1] > 60, "lines get 60 requests at once, and then one a second"


@scenario
async def test_nobody_waits_for_a_line_that_waits_for_an_engine(world: World, tmp_path: Path) -> None:
    router, engine = await start(world, tmp_path, slots=1)
    await engine.set_faults({"fault": "ttft", "ms": 16_000, "times": 1})
    first = asyncio.ensure_future(ask_patiently(router, "How high is the sky?"))
    await engine.stats(in_flight=1)
    batch = await begin_batch(router, batch_lines(["The sea?"]))

    async def waits() -> bool:
        return (await batch.shown())["waiting_for"] is not None

    await eventually(waits)
    second = await ask_patiently(router, "The sea?")
    assert second.headers["x-cache"] == "MISS", "else it would have joined the line"
    assert (await first).status_code == 200
    await eventually(batch.is_complete)
    (result,) = await batch.results()
    assert result["response"]["cache"] == "HIT"
    assert result["response"]["body"]["choices"] == second.json()["choices"]


async def open_batches(router: WorldRouter, state: str) -> float:
    return (await router.metrics()).get(f'roundhouse_batches_open{{state="{state}"}}', 0)


async def rejections(router: WorldRouter) -> float:
    metrics = await router.metrics()
    return sum(count for name, count in metrics.items() if name.startswith("llm_requests_rejected_total{"))


DAY_BUDGET = 4000
"""Tokens. A line takes some 70."""


@pytest.mark.parametrize("routers", [1, 2])
@scenario
async def test_a_batch_that_meets_the_budget_of_its_tenant_waits_for_the_next_day(
    world: World, tmp_path: Path, routers: int
) -> None:
    now = await world.redis.client.time()
    world.redis.model.offset = DAY - now[0] % DAY - 300  # five minutes before midnight
    engine = await world.engine()
    tenants = tenant_tables(f"tokens_per_day = {DAY_BUDGET}")
    text = router_config(
        world.redis.url, {"one": ("llama", "any", engine.url)},
        rest=f'max_in_flight = 4\n{tenants}\n[batch]\nfolder = "{tmp_path}"\n',
    )  # fmt: skip
    all_routers = [await world.router(text) for _ in range(routers)]
    router = all_routers[0]
    batch = await begin_batch(router, batch_lines(PROMPTS[:80]), headers=ACME)

    async def says_why() -> bool:
        waiting = (await batch.shown())["waiting_for"] or ""
        return waiting.startswith(f"Batches leave 25% of the quota of {DAY_BUDGET} tokens per day to other requests")

    await eventually(says_why)
    shown = await batch.shown()
    assert shown["waiting_for"].endswith("It resets at 2025-06-16T00:00:00Z.")
    assert await eventually(lambda: open_batches(router, "limited")) == 1
    stopped_at = shown["request_counts"]["completed"]
    used = int(await world.redis.client.hget(budget_key("acme"), "day_tokens"))
    assert 0.75 * DAY_BUDGET <= used < DAY_BUDGET
    for number in range(3):
        answer = await router.chat(f"How long is river {number}?", headers=ACME)
        assert answer.status_code == 200, "people of the tenant have the rest"
    await asyncio.sleep(30)
    rejected = [await rejections(each) for each in all_routers]
    await asyncio.sleep(150)
    assert [await rejections(each) for each in all_routers] == rejected, "else an alert would fire"
    assert (await batch.counts())["completed"] == stopped_at
    assert (await batch.shown())["status"] == "in_progress"
    sent = (await engine.stats())["received"]
    await asyncio.sleep(240)
    assert (await batch.counts())["completed"] > stopped_at, "it is the next day"
    assert (await engine.stats())["received"] > sent
    await eventually(batch.is_complete)
    assert (await batch.counts()) == {"total": 80, "completed": 80, "failed": 0, "cached": 0}
