"""The header Server-Timing says to a developer where the time of a request went."""

import asyncio

import httpx
import pytest

from router.core.api_keys import hash_key
from tests.support.router_server import router_config
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

SHOWN = "server_timing = true\n"


async def router_of(world: World, router: str = "") -> WorldRouter:
    engine = await world.engine(ttft=2.0, tokens_per_second=1000)
    text = router_config(world.redis.url, {"e1": ("llama", "any", engine.url)}, router=router)
    return await world.router(text.replace("served_model", "max_in_flight = 1\nserved_model"))


def times_of(answer: httpx.Response) -> dict[str, float]:
    parts = [part.partition(";dur=") for part in answer.headers["server-timing"].split(", ")]
    return {name: float(value) for name, _, value in parts}


@scenario
async def test_a_response_says_how_long_it_waited_for_what(world: World) -> None:
    router = await router_of(world, SHOWN)
    first = asyncio.ensure_future(router.chat("The sea?"))
    await asyncio.sleep(1)
    second = times_of(await router.chat("The moon?", stream=True))
    assert second["queue"] == pytest.approx(1000, rel=0.1)
    assert second["first_token"] == pytest.approx(2000, rel=0.1)
    assert "engine" not in second, "a stream has only begun"
    assert times_of(await first)["engine"] == pytest.approx(2000, rel=0.2)


@scenario
async def test_an_error_says_it_too_and_a_hit_has_nothing_to_say(world: World) -> None:
    router = await router_of(world, SHOWN)
    first = await router.chat("The sea?")
    assert "server-timing" in first.headers
    assert "server-timing" not in (await router.chat("The sea?")).headers
    held = [asyncio.ensure_future(router.chat(f"The moon {number}?")) for number in range(7)]
    answers = await asyncio.gather(*held)
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert times_of(refused)["queue"] == pytest.approx(10_000, rel=0.01)


@scenario
async def test_a_client_of_another_machine_gets_none_by_default(world: World) -> None:
    router = await router_of(world)
    assert "server-timing" not in (await router.chat("The sea?")).headers


@scenario
async def test_a_client_with_an_admin_key_gets_it_from_anywhere(world: World) -> None:
    engine = await world.engine()
    auth = f'[auth]\nadmin_keys = ["{hash_key(b"secret")}"]\n'
    router = await world.router(router_config(world.redis.url, {"e1": ("llama", "any", engine.url)}, rest=auth))
    for key, is_shown in [("secret", True), ("other", False)]:
        answer = await router.chat(f"The sea, with {key}?", headers={"Authorization": f"Bearer {key}"})
        assert ("server-timing" in answer.headers) is is_shown
