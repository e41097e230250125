"""A request that takes its engines down gets an error after the second one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
import pytest_asyncio

from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.sse_answers import parse_events

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The engine breaks the connection and fails its checks from then on, as a process that ends does.
POISON = "[[sim:health code=503]] [[sim:drop]] The sea?"


class Engines:
    """Engines that several tests use, one after the other."""

    def __init__(self, engines: list[SimulatedEngine]) -> None:
        self.all = engines
        self._received: list[int] = []

    async def reset(self) -> None:
        for engine in self.all:
            await engine.clear_faults()
        self._received = [(await engine.stats())["received"] for engine in self.all]

    async def reached(self) -> int:
        before = zip(self.all, self._received, strict=True)
        return sum([(await engine.stats())["received"] > received for engine, received in before])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running() -> AsyncIterator[Engines]:
    async with AsyncExitStack() as stack:
        engines = [SimulatedEngine(LLAMA) for _ in range(3)]
        await asyncio.gather(*map(stack.enter_async_context, engines))
        yield Engines(engines)


@pytest_asyncio.fixture(loop_scope="session")
async def engines(running: Engines) -> Engines:
    await running.reset()
    return running


@pytest_asyncio.fixture(loop_scope="session")
async def router(redis_server: RedisServer, make_router: MakeRouter, engines: Engines) -> RouterServer:
    as_config = {f"e{number}": ("llama", "any", engine.url) for number, engine in enumerate(engines.all)}
    return await make_router(router_config(redis_server.url, as_config))


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_and_its_repetitions_take_two_engines_down_and_no_third(
    router: RouterServer, engines: Engines, stream: bool
) -> None:
    for _ in range(3):  # an SDK would not even repeat it
        answer = await router.chat(POISON, stream=stream)
        assert (answer.status_code, code_of(answer)) == (502, "engine_lost")
        assert answer.headers["x-should-retry"] == "false"
    assert await engines.reached() == 2
    assert (await router.chat("The land?")).status_code == 200


async def test_a_stream_that_takes_down_the_engine_that_goes_on_ends_there(
    router: RouterServer, engines: Engines
) -> None:
    for engine in engines.all:  # not in the prompt: by token ids, the next engine has no text
        await engine.set_faults({"fault": "drop", "after": 3}, {"fault": "health", "code": 503})
    answer = await router.chat("The sea?", stream=True)
    assert parse_events(answer.content)[-1]["error"]["code"] == "engine_lost"
    assert await engines.reached() == 2


async def test_engines_that_live_are_not_lost_and_get_three_attempts(router: RouterServer, engines: Engines) -> None:
    answer = await router.chat("[[sim:drop]] The sea?")
    assert (answer.status_code, code_of(answer)) == (502, "engine_failed")
    assert await engines.reached() == 3
