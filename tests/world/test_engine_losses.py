"""A request that takes its engines down gets an error after the second one."""

import httpx
import pytest

from tests.support.router_server import router_config
from tests.support.sse_answers import parse_events
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario

# The engine breaks the connection and fails its checks from then on, as a process that ends does.
POISON = "[[sim:health code=503]] [[sim:drop]] The sea?"


async def start(world: World) -> tuple[WorldRouter, list[WorldEngine]]:
    """A router with three engines."""
    engines = [await world.engine() for _ in range(3)]
    as_config = {f"e{number}": ("llama", "any", engine.url) for number, engine in enumerate(engines)}
    return await world.router(router_config(world.redis.url, as_config)), engines


async def reached(engines: list[WorldEngine]) -> int:
    """How many of them have received a request."""
    return sum([(await engine.stats())["received"] > 0 for engine in engines])


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_request_and_its_repetitions_take_two_engines_down_and_no_third(world: World, stream: bool) -> None:
    router, engines = await start(world)
    for _ in range(3):  # an SDK would not even repeat it
        answer = await router.chat(POISON, stream=stream)
        assert (answer.status_code, code_of(answer)) == (502, "engine_lost")
        assert answer.headers["x-should-retry"] == "false"
    assert await reached(engines) == 2
    assert (await router.chat("The land?")).status_code == 200


@scenario
async def test_a_stream_that_takes_down_the_engine_that_goes_on_ends_there(world: World) -> None:
    router, engines = await start(world)
    for engine in engines:  # not in the prompt: by token ids, the next engine has no text
        await engine.set_faults({"fault": "drop", "after": 3}, {"fault": "health", "code": 503})
    answer = await router.chat("The sea?", stream=True)
    assert parse_events(answer.content)[-1]["error"]["code"] == "engine_lost"
    assert await reached(engines) == 2


@scenario
async def test_engines_that_live_are_not_lost_and_get_three_attempts(world: World) -> None:
    router, engines = await start(world)
    answer = await router.chat("[[sim:drop]] The sea?")
    assert (answer.status_code, code_of(answer)) == (502, "engine_failed")
    assert await reached(engines) == 3
