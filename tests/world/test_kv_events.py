"""What engines say of their KV blocks, and what routers make of it."""

from typing import Any

import pytest

from tests.support.router_server import LLAMA, router_config
from tests.world.http import open_client
from tests.world.kv_events import EVENTS
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario
from tests.world.test_choice import TEXT

SIZE: dict[str, Any] = {"kv_blocks": 600, "max_model_len": 8192, "server_dev_mode": True}
LONG = TEXT * 2  # 6 KiB


def config(world: World, *engines: WorldEngine, kv_events: bool) -> str:
    text = router_config(world.redis.url, {each.name: ("llama", "any", each.url) for each in engines})
    for each in engines if kv_events else ():
        text = text.replace(f'name = "{each.name}"', f'name = "{each.name}"\nkv_events = "tcp://{each.name}:5557"')
    return text


async def pair(world: World, *, kv_events: bool = True) -> tuple[WorldRouter, dict[str, WorldEngine]]:
    one, two = [await world.engine(kv_events=EVENTS, **SIZE) for _ in range(2)]
    router = await world.router(config(world, one, two, kv_events=kv_events))
    return router, {one.name: one, two.name: two}


async def ask(router: WorldRouter, prompt: str, *, stream: bool = True) -> tuple[str, int]:
    """The engine, and how many tokens of the prompt the router believed it to hold."""
    headers = {"cache-control": "no-store"}
    answer = await router.chat(prompt, stream=stream, max_tokens=20, headers=headers)
    assert answer.status_code == 200
    found = answer.headers["x-engine-reason"].removeprefix("prefix ").partition(" of ")[0]
    return answer.headers["x-engine"], int(found.replace(",", ""))


async def use(engine: WorldEngine, *prompts: str, rank: int | None = None) -> None:
    """As others do, who do not go through the router."""
    async with open_client(engine.url) as client:
        if rank is not None:
            client.headers["x-data-parallel-rank"] = str(rank)
        for prompt in prompts:
            body = {"model": LLAMA, "messages": [{"role": "user", "content": prompt}], "max_tokens": 20}
            (await client.post("/v1/chat/completions", json=body)).raise_for_status()


async def reset(engine: WorldEngine) -> None:
    """The event comes with the next step."""
    async with open_client(engine.url) as client:
        assert (await client.post("/reset_prefix_cache")).json() == {"success": True}
    await use(engine, "Hello?")


@pytest.mark.parametrize("kv_events", [True, False])
@scenario
async def test_an_engine_that_was_reset_holds_nothing(world: World, kv_events: bool) -> None:
    router, engines = await pair(world, kv_events=kv_events)
    name, found = await ask(router, LONG)
    assert found == 0
    await reset(engines[name])
    _, found = await ask(router, LONG)
    assert (found == 0) is kv_events


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kv_events", [True, False])
@scenario
async def test_prompts_that_others_push_out_are_not_held(world: World, kv_events: bool, stream: bool) -> None:
    """One in JSON has no token ids, so its blocks are unknown; it is gone with the next one whose blocks are known."""
    router, engines = await pair(world, kv_events=kv_events)
    name, _ = await ask(router, LONG, stream=stream)
    again, found = await ask(router, f"{LONG}And a little more.")
    assert (again, found > 1000) == (name, True)
    await use(engines[name], *(f"{number}: {LONG}" for number in range(12)))
    _, found = await ask(router, LONG, stream=stream)
    assert (found == 0) is kv_events


@scenario
async def test_a_prompt_that_others_send_to_an_engine_is_held_there(world: World) -> None:
    router, engines = await pair(world)
    first, _ = await ask(router, LONG)
    other = next(engine for name, engine in engines.items() if name != first)
    await use(other, LONG)
    await reset(engines[first])
    name, found = await ask(router, LONG)
    assert (name, found > 1000) == (other.name, True)


@scenario
async def test_an_engine_that_starts_again_between_two_probes_holds_nothing(world: World) -> None:
    router, engines = await pair(world)
    name, _ = await ask(router, LONG)
    await use(engines[name], *(f"Prompt {number}" for number in range(5)))
    engines[name].kill()
    await engines[name].start()
    await use(engines[name], "Hello, I am the first one here, and you? " * 3)
    _, found = await ask(router, LONG)
    assert found == 0


@scenario
async def test_a_reload_keeps_what_is_known_of_the_blocks_and_drops_the_feeds_that_are_gone(world: World) -> None:
    router, engines = await pair(world)
    name, _ = await ask(router, LONG)
    text = config(world, *engines.values(), kv_events=True)
    await router.reload(text.replace("[router]", "[router]\nexplore = 0"))
    await reset(engines[name])
    assert (await ask(router, LONG))[1] == 0
    await router.reload(config(world, *engines.values(), kv_events=False))
    name, found = await ask(router, LONG)
    assert found > 0
    await reset(engines[name])
    assert (await ask(router, LONG))[1] > 0
