"""What is disabled as the engines of a model fill up: the table of docs/resilience.md."""

from typing import Any

import httpx
import pytest

from tests.support.probe_helpers import wait_for_kv_usage
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config, with_fallback
from tests.support.simulated_engine import SimulatedEngine
from tests.support.time_travel import DAY, backdate_entry

pytestmark = pytest.mark.asyncio(loop_scope="session")


def four_llamas(redis_url: str, engines: EngineSet) -> str:
    """`one` and `two` are the same engine, and so are `three` and `four`."""
    chat, code = engines.chat.url, engines.code.url
    urls = {"one": chat, "two": chat, "three": code, "four": code}
    table = {name: ("llama", "any", url) for name, url in urls.items()}
    return with_fallback(router_config(redis_url, {**table, "mistral": ("mistral", "any", engines.mistral.url)}))


async def fills(router: RouterServer, simulated: SimulatedEngine, usage: float, *names: str) -> None:
    await simulated.set_faults({"fault": "kv", "usage": usage})
    await wait_for_kv_usage(router, usage, *names)


async def expire_entry(router: RouterServer, redis: Any) -> None:
    """Stores a response that is stale."""
    first = await router.chat("The sea?")
    assert first.headers["x-cache"] == "MISS"
    await backdate_entry(redis, first.headers["x-cache-key"], DAY + 10)


def cache_and_reason(answer: httpx.Response) -> tuple[str, str | None]:
    return answer.headers["x-cache"], answer.headers.get("x-fallback")


async def test_new_work_goes_to_the_fallback_first_then_stale_entries_are_served_then_requests_are_refused(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet, redis: Any
) -> None:
    router = await make_router(four_llamas(redis_server.url, engines))
    await expire_entry(router, redis)
    await fills(router, engines.chat, 0.9, "one", "two")
    assert cache_and_reason(await router.chat("The sea?")) == ("MISS", "mistral")
    await fills(router, engines.code, 0.9, "three", "four")
    assert cache_and_reason(await router.chat("The sea?")) == ("STALE", None)
    assert cache_and_reason(await router.chat("The land?")) == ("MISS", "mistral")
    await fills(router, engines.mistral, 0.9, "mistral")
    refused = await router.chat("The land?")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "circuit_open")
    assert int(refused.headers["retry-after"]) >= 1
    await fills(router, engines.mistral, 0.1, "mistral")
    await fills(router, engines.code, 0.1, "three", "four")
    assert cache_and_reason(await router.chat("The sea?")) == ("STALE", None), "half of it is still shut"
    await fills(router, engines.chat, 0.1, "one", "two")
    assert cache_and_reason(await router.chat("The land?")) == ("MISS", None)


async def test_a_failed_engine_is_no_pressure_on_the_others(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    text = router_config(
        redis_server.url,
        {**engines.as_config(), "llama-code": ("llama", "code", engines.code.url)},
        rest='[breaker]\nfailures = 1\ncooldown = "1h"',
    )
    router = await make_router(with_fallback(text))
    await engines.chat.set_faults({"fault": "status", "code": 500})
    for n in range(3):
        answer = await router.chat(f"The sea {n}?")
        assert (answer.headers["x-engine"], "x-fallback" in answer.headers) == ("llama-code", False)
