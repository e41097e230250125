"""What is disabled as the engines of a model fill up: the table of docs/resilience.md."""

import asyncio
from typing import Any

import httpx

from tests.support.router_server import router_config, with_fallback
from tests.support.time_travel import DAY, backdate_entry
from tests.world.processes import WorldEngine, WorldEngines, WorldRouter
from tests.world.scenario import PROBED, World, scenario


def four_llamas(redis_url: str, engines: WorldEngines) -> str:
    """`one` and `two` are the same engine, and so are `three` and `four`."""
    chat, code = engines.chat.url, engines.code.url
    urls = {"one": chat, "two": chat, "three": code, "four": code}
    table = {name: ("llama", "any", url) for name, url in urls.items()}
    return with_fallback(router_config(redis_url, {**table, "mistral": ("mistral", "any", engines.mistral.url)}))


async def fills(simulated: WorldEngine, usage: float) -> None:
    await simulated.set_faults({"fault": "kv", "usage": usage})
    await asyncio.sleep(PROBED)


async def expire_entry(router: WorldRouter, redis: Any) -> None:
    """Stores a response that is stale."""
    first = await router.chat("The sea?")
    assert first.headers["x-cache"] == "MISS"
    await backdate_entry(redis, first.headers["x-cache-key"], DAY + 10)


def cache_and_reason(answer: httpx.Response) -> tuple[str, str | None]:
    return answer.headers["x-cache"], answer.headers.get("x-fallback")


@scenario
async def test_new_work_goes_to_the_fallback_first_then_stale_entries_are_served_then_requests_are_refused(
    world: World,
) -> None:
    engines = await world.engines()
    redis = world.redis.client
    router = await world.router(four_llamas(world.redis.url, engines))
    await expire_entry(router, redis)
    await fills(engines.chat, 0.9)
    assert cache_and_reason(await router.chat("The sea?")) == ("MISS", "mistral")
    await fills(engines.code, 0.9)
    assert cache_and_reason(await router.chat("The sea?")) == ("STALE", None)
    assert cache_and_reason(await router.chat("The land?")) == ("MISS", "mistral")
    await fills(engines.mistral, 0.9)
    refused = await router.chat("The land?")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "circuit_open")
    assert int(refused.headers["retry-after"]) >= 1
    await fills(engines.mistral, 0.1)
    await fills(engines.code, 0.1)
    assert cache_and_reason(await router.chat("The sea?")) == ("STALE", None), "half of it is still shut"
    await fills(engines.chat, 0.1)
    assert cache_and_reason(await router.chat("The land?")) == ("MISS", None)


@scenario
async def test_a_failed_engine_is_no_pressure_on_the_others(world: World) -> None:
    engines = await world.engines()
    text = router_config(
        world.redis.url,
        {**engines.as_config(), "llama-code": ("llama", "code", engines.code.url)},
        rest='[breaker]\nfailures = 1\ncooldown = "1h"',
    )
    router = await world.router(with_fallback(text))
    await engines.chat.set_faults({"fault": "status", "code": 500})
    for n in range(3):
        answer = await router.chat(f"The sea {n}?")
        assert (answer.headers["x-engine"], "x-fallback" in answer.headers) == ("llama-code", False)
