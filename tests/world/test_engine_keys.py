"""An engine that no longer takes the router's key, at default settings."""

import asyncio
from collections.abc import Callable

from tests.simulation.clock import CLOCK
from tests.support.router_server import router_config
from tests.support.scripted_engine import Request, Response, ScriptedEngine, json_response
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario


async def router_with_key(world: World, takes_key: Callable[[], bool]) -> tuple[WorldRouter, ScriptedEngine]:
    """The engine's health needs no key, as vLLM's."""

    async def script(request: Request) -> Response:
        return json_response({"data": []}, 200 if takes_key() else 401) if request.path == "/v1/models" else Response()

    engine = await world.scripted_engine(script=script)
    text = router_config(world.redis.url, {"a": ("llama", "any", engine.url)})
    return await world.router(text.replace("served_model", 'api_key = "k"\nserved_model')), engine


@scenario
async def test_a_key_that_an_engine_takes_no_more_is_told_within_5_seconds_though_there_are_no_requests(
    world: World,
) -> None:
    takes_key = True
    router, engine = await router_with_key(world, lambda: takes_key)

    def reads() -> int:
        return sum(request.path == "/v1/models" for request in engine.requests)

    async def is_told() -> bool:
        problems = (await router.http.get("/healthz")).json()["problems"]
        return any("engine a refuses the router's key since" in problem["words"] for problem in problems)

    before = reads()
    await eventually(lambda: reads() > before)  # from now on, the next read is as late as it can be
    assert not await is_told()
    takes_key, changed_at = False, CLOCK.now
    await eventually(is_told)
    assert CLOCK.now - changed_at < 5


@scenario
async def test_every_second_check_of_an_engine_with_a_key_asks_whether_it_takes_it(world: World) -> None:
    _, engine = await router_with_key(world, lambda: True)
    await asyncio.sleep(60)
    paths = [request.path for request in engine.requests]
    assert paths.count("/health") / 2 - 2 <= paths.count("/v1/models") <= paths.count("/health") / 2 + 2
