"""An engine process that stops (SIGSTOP), at default settings. tests/simulation/silence.py has the other cases."""

import asyncio
import re

from tests.simulation.clock import CLOCK
from tests.support.router_server import router_config
from tests.support.sse_answers import chat_text
from tests.support.time_travel import DAY, backdate_entry
from tests.support.waiting import eventually
from tests.world.scenario import World, scenario


@scenario
async def test_requests_leave_an_engine_that_stops_within_seconds(world: World) -> None:
    stopped, other = await world.engine(), await world.engine()
    engines = {"a": ("llama", "chat", stopped.url), "b": ("llama", "code", other.url)}
    router = await world.router(router_config(world.redis.url, engines))
    await stopped.set_faults(
        {"fault": "stall", "after": 0, "match": "no token"}, {"fault": "stall", "after": 3, "match": "three"}
    )
    requests = [
        asyncio.ensure_future(router.chat("Tell me about the sea, with no token.", stream=True)),
        asyncio.ensure_future(router.chat("Tell me about the sun, with no token.", max_tokens=50)),
        asyncio.ensure_future(router.chat("Tell me about the sky, with no token.")),
        asyncio.ensure_future(router.chat("Tell me about the moon, with three tokens.", stream=True)),
    ]
    await stopped.stats(in_flight=4)
    stopped.freeze()
    started = CLOCK.now
    answers = await asyncio.gather(*requests)
    # Two failed checks of 2 s, with 2 s before each, after one that the stop may have cut; `first_token` is 30 s.
    assert CLOCK.now - started < 2 + 2 * (2 + 2) + 1
    assert [(answer.status_code, bool(chat_text(answer))) for answer in answers] == [(200, True)] * 4
    metrics = await router.metrics()
    assert metrics['llm_retries_total{engine="a",reason="lost"}'] == 4
    (problem,) = (await router.http.get("/healthz")).json()["problems"]
    assert re.fullmatch(r"engine a is down since \S+ UTC: timeout at the engine; 4 attempts failed", problem["words"])


@scenario
async def test_a_stale_entry_is_served_at_once_while_the_only_engine_is_stopped(world: World) -> None:
    stopped = await world.engine()
    router = await world.router(router_config(world.redis.url, {"a": ("llama", "any", stopped.url)}))
    first = await router.chat("The sea?")
    await backdate_entry(world.redis.client, first.headers["x-cache-key"], DAY + 10)

    async def is_down() -> bool:
        return (await router.http.get("/healthz")).json()["engines"]["a"]["up"] is False

    stopped.freeze()
    await eventually(is_down)
    started = CLOCK.now
    answers = [await router.chat("The sea?", stream=stream) for stream in (False, True)]
    assert CLOCK.now - started < 1  # two attempts take `first_token` each, which is 30 s
    assert [answer.headers["x-cache"] for answer in answers] == ["STALE", "STALE"]
    stopped.thaw()

    async def is_fresh() -> bool:
        return (await router.chat("The sea?")).headers["x-cache"] == "MISS"

    await eventually(is_fresh)
