"""Batches beside requests of people: what they wait for, and what they do not."""

import asyncio
from pathlib import Path

import httpx
import pytest

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
