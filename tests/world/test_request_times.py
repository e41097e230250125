"""A request's line in the log tells the parts of its time apart, and which engines were tried."""

import asyncio
import contextlib
import logging

import pytest

from tests.support.on_demand import Launcher, with_wake
from tests.support.router_server import router_config
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

PARTS = ("lookup_ms", "wait_ms", "queue_ms", "connect_ms", "first_token_ms", "engine_ms", "tried")


async def log_fields(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, str]]:
    """Of the first `count` requests, in the order of their ends."""
    lines: list[str] = []

    def are_there() -> bool:
        lines[:] = [each.getMessage() for each in caplog.records if each.name == "roundhouse.access"]
        return len(lines) >= count

    await eventually(are_there)
    return [dict(word.partition("=")[::2] for word in line.split()) for line in lines]


async def queue_times(router: WorldRouter) -> tuple[float, float]:
    """The number of `llm_queue_seconds`, and their sum."""
    metrics = await router.metrics()
    labels = '{model="llama",tenant="default"}'
    return metrics[f"llm_queue_seconds_count{labels}"], metrics[f"llm_queue_seconds_sum{labels}"]


@scenario
async def test_the_wait_for_a_slot_is_not_the_engines_time(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roundhouse.access")
    engine = await world.engine(ttft=2.0, tokens_per_second=1000)
    text = router_config(world.redis.url, {"e1": ("llama", "any", engine.url)})
    router = await world.router(text.replace("served_model", "max_in_flight = 1\nserved_model"))
    first = asyncio.ensure_future(router.chat("The sea?", stream=True))
    await asyncio.sleep(1)
    await asyncio.gather(first, router.chat("The moon?", stream=True))
    one, two = await log_fields(caplog, 2)
    assert "queue_ms" not in one
    assert float(two["queue_ms"]) == pytest.approx(1000, rel=0.1)
    for line in (one, two):
        assert float(line["first_token_ms"]) == pytest.approx(2000, rel=0.1)
        assert 2000 < float(line["engine_ms"]) < 2500
        assert float(line["lookup_ms"]) > 0
        assert "tried" not in line
    count, seconds = await queue_times(router)
    assert count == 2
    assert seconds == pytest.approx(1.0, rel=0.1)


@scenario
async def test_a_request_that_was_refused_in_the_queue_has_its_wait(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundhouse.access")
    engine = await world.engine(ttft=20.0)
    text = router_config(world.redis.url, {"e1": ("llama", "any", engine.url)})
    router = await world.router(text.replace("served_model", "max_in_flight = 1\nserved_model"))
    first = asyncio.ensure_future(router.chat("The sea?", stream=True))
    await asyncio.sleep(1)
    assert (await router.chat("The moon?")).status_code == 503
    (refused,) = await log_fields(caplog, 1)
    assert refused["error"] == "queue_timeout"
    assert float(refused["queue_ms"]) == pytest.approx(10_000, rel=0.01)
    assert "engine_ms" not in refused
    await first


@scenario
async def test_a_client_that_leaves_the_queue_has_its_wait_too(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roundhouse.access")
    engine = await world.engine(ttft=20.0)
    text = router_config(world.redis.url, {"e1": ("llama", "any", engine.url)})
    router = await world.router(text.replace("served_model", "max_in_flight = 1\nserved_model"))
    first = asyncio.ensure_future(router.chat("The sea?", stream=True))
    await asyncio.sleep(1)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(router.chat("The moon?"), 3)
    (left,) = await log_fields(caplog, 1)
    assert (left["outcome"], "tried" in left) == ("left", False)
    assert float(left["queue_ms"]) == pytest.approx(3000, rel=0.1)
    await first


@scenario
async def test_the_wait_for_an_engine_to_start_is_told_apart(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roundhouse.access")
    engine = await world.engine(running=False)
    config = router_config(world.redis.url, {"e1": ("llama", "any", engine.url)})
    router = await world.router(with_wake(config, "60s"))
    began_at = asyncio.get_running_loop().time()
    asked = asyncio.ensure_future(router.chat("The sea?"))
    async with Launcher(engine, router, waiting=1):
        await asked
    waited = 1000 * (asyncio.get_running_loop().time() - began_at)
    (line,) = await log_fields(caplog, 1)
    assert "queue_ms" not in line
    assert 0 < float(line["wait_ms"]) < waited
    assert float(line["wait_ms"]) + float(line["engine_ms"]) == pytest.approx(waited, rel=0.2)


@scenario
async def test_a_request_names_the_engines_that_failed_and_a_hit_only_its_lookup(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundhouse.access")
    broken, healthy = await world.engine(), await world.engine()
    table = {"e1": ("llama", "any", broken.url), "e2": ("llama", "any", healthy.url)}
    router, other = [await world.router(router_config(world.redis.url, table)) for _ in range(2)]
    await broken.set_faults({"fault": "status", "code": 500})
    prompts = [f"The sea {number}?" for number in range(4)]
    for prompt in prompts:
        assert (await router.chat(prompt)).status_code == 200
    lines = await log_fields(caplog, 4)
    tried = [line["tried"] for line in lines if "tried" in line]
    assert tried
    assert all(each.startswith("e1:status-500:") and each.endswith(",e2:ok") for each in tried)
    for at, expected in ((other, ["lookup_ms"]), (other, [])):
        await at.chat(prompts[0])
        line = (await log_fields(caplog, len(lines) + 1))[-1]
        lines.append(line)
        assert line["cache"] == "HIT"
        assert [part for part in PARTS if part in line] == expected
