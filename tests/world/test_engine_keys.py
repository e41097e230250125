"""An engine that no longer takes the router's key, and whose list of models is slow or fails, at default settings."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from tests.simulation.clock import CLOCK
from tests.support.router_server import router_config
from tests.support.scripted_engine import Request, Response, ScriptedEngine, json_response
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

KEY = 'api_key = "k"\n'


class ListEngine:
    """The engine's health needs no key, as vLLM's.

    `delay`: seconds until it answers a request for its list, with `status`.
    """

    def __init__(self) -> None:
        self.status = 200
        self.delay = 0.0
        self.asked_at: dict[str, list[float]] = {"/health": [], "/v1/models": []}

    async def answer(self, request: Request) -> Response:
        self.asked_at.setdefault(request.path, []).append(CLOCK.now)
        if request.path != "/v1/models":
            return Response()
        await asyncio.sleep(self.delay)
        return json_response({"data": []}, self.status)

    @property
    def reads(self) -> int:
        return len(self.asked_at["/v1/models"])

    @property
    def longest_pause(self) -> float:
        """Between two checks of its health, in seconds."""
        return max(later - earlier for earlier, later in pairwise(self.asked_at["/health"]))


async def router_with(world: World, *engines: ListEngine, key: str = KEY) -> WorldRouter:
    """The first engine has a key. Their names are a, b and so on."""
    started: list[ScriptedEngine] = [await world.scripted_engine(script=engine.answer) for engine in engines]
    tables = {name: ("llama", "any", each.url) for name, each in zip("abc", started, strict=False)}
    return await world.router(router_config(world.redis.url, tables).replace("served_model", f"{key}served_model", 1))


def is_told(router: WorldRouter) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        problems = (await router.http.get("/healthz")).json()["problems"]
        return any("engine a refuses the router's key since" in problem["words"] for problem in problems)

    return ask


async def next_read(engine: ListEngine) -> None:
    before = engine.reads
    await eventually(lambda: engine.reads > before)


@pytest.mark.parametrize("status", [401, 403])
@scenario
async def test_a_key_that_an_engine_takes_no_more_is_told_within_5_seconds_though_there_are_no_requests(
    world: World, status: int
) -> None:
    engine = ListEngine()
    router = await router_with(world, engine)
    await next_read(engine)  # from now on, the next read is as late as it can be
    assert not await is_told(router)()
    engine.status, changed_at = status, CLOCK.now
    await eventually(is_told(router))
    assert CLOCK.now - changed_at < 5


@scenario
async def test_an_engine_that_refused_the_key_is_up_within_3_seconds_of_taking_it_again(world: World) -> None:
    engine = ListEngine()
    engine.status = 401
    router = await router_with(world, engine)
    await asyncio.sleep(5)
    assert await is_told(router)()
    engine.status, changed_at = 200, CLOCK.now
    await eventually(lambda: router.application._runtime.catalog.engines["a"].up)
    assert CLOCK.now - changed_at < 3


@scenario
async def test_an_engine_that_never_shows_its_list_does_not_refuse_the_key_with_that(world: World) -> None:
    engine = ListEngine()
    engine.status = 403
    router = await router_with(world, engine)
    await asyncio.sleep(60)
    assert not await is_told(router)()


@scenario
async def test_every_second_check_of_an_engine_with_a_key_asks_whether_it_takes_it(world: World) -> None:
    engine = ListEngine()
    await router_with(world, engine)
    await asyncio.sleep(60)
    checks = len(engine.asked_at["/health"])
    assert checks / 2 - 2 <= engine.reads <= checks / 2 + 2


@pytest.mark.parametrize(
    ("status", "delay", "expected"),
    [(403, 0.0, 6), (500, 0.0, 15), (200, 60.0, 15)],  # of 30 checks
)
@scenario
async def test_a_list_that_fails_is_not_read_at_every_check(
    world: World, status: int, delay: float, expected: int
) -> None:
    engine = ListEngine()
    await router_with(world, engine, key="")
    await next_read(engine)
    engine.status, engine.delay, before = status, delay, engine.reads
    await asyncio.sleep(60)
    assert expected - 2 <= engine.reads - before <= expected + 2


@pytest.mark.parametrize("status", [200, 401])
@pytest.mark.parametrize("delay", [1.5, 60.0])
@scenario
async def test_an_engine_with_a_slow_list_delays_no_health_check(world: World, status: int, delay: float) -> None:
    slow, other = ListEngine(), ListEngine()
    await router_with(world, slow, other)
    slow.status = status
    if status == 401:
        await asyncio.sleep(10)  # it is refused now, so that each check asks
    slow.delay = delay
    for engine in (slow, other):
        engine.asked_at["/health"].clear()
    await asyncio.sleep(60)
    assert max(slow.longest_pause, other.longest_pause) < 2.5


@scenario
async def test_a_key_that_is_refused_by_a_slow_list_is_told_within_7_seconds(world: World) -> None:
    engine = ListEngine()
    router = await router_with(world, engine)
    engine.delay = 1.5
    await next_read(engine)
    await asyncio.sleep(1.6)
    engine.status, changed_at = 401, CLOCK.now
    await eventually(is_told(router))
    assert CLOCK.now - changed_at < 7


@scenario
async def test_what_reads_a_list_ends_when_the_configuration_is_replaced_and_when_the_router_ends(world: World) -> None:
    def count() -> int:
        tasks = asyncio.all_tasks()
        return sum(getattr(task.get_coro(), "__qualname__", "") == "EngineProbe._read_list" for task in tasks)

    engine = ListEngine()
    router = await router_with(world, engine)
    engine.delay = 1.9
    await next_read(engine)
    assert count() == 1
    old = router.application._runtime
    await router.run_inside(old.on_replaced())
    assert count() == 0
    await router.stop()
    assert count() == 0
