"""One server with several data-parallel ranks: each counts as a replica."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.support.router_server import router_config
from tests.world.kv_events import EVENTS
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import PROBED, World, scenario
from tests.world.test_kv_events import LONG, SIZE, ask, reset, use


async def start(
    world: World, *, ranks: int = 2, configured: int = 2, **settings: Any
) -> tuple[WorldRouter, WorldEngine]:
    engine = await world.engine(**SIZE, data_parallel_size=ranks, **settings)
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)})
    more = f"data_parallel = {configured}\n" if configured > 1 else ""
    more += f'kv_events = "tcp://{engine.name}:5557"\n' if "kv_events" in settings else ""
    return await world.router(text.replace('name = "one"', f'name = "one"\n{more}')), engine


async def by_rank(engine: WorldEngine, name: str) -> list[float]:
    return [await engine.metric(name, engine=str(rank)) for rank in range(2)]


@scenario
async def test_a_prompt_stays_with_the_rank_that_holds_it_and_others_go_to_the_other(world: World) -> None:
    router, engine = await start(world)
    first, _ = await ask(router, f"One. {LONG}")
    second, _ = await ask(router, f"Two. {LONG}")
    assert {first, second} == {"one.1", "one.2"}
    for prompt, name in (("One.", first), ("Two.", second)) * 2:
        again, found = await ask(router, f"{prompt} {LONG}And more.")
        assert (again, found > 1000) == (name, True)
    hits, queries = (
        await by_rank(engine, "prefix_cache_hits_total"),
        await by_rank(engine, "prefix_cache_queries_total"),
    )
    assert all(hit > 0.6 * query for hit, query in zip(hits, queries, strict=True))


@scenario
async def test_what_a_rank_holds_is_known_after_a_reload_and_not_after_the_server_was_down(world: World) -> None:
    router, engine = await start(world)
    name, _ = await ask(router, LONG)
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, router="explore = 0")
    await router.reload(text.replace('name = "one"', 'name = "one"\ndata_parallel = 2'))
    again, found = await ask(router, LONG)
    assert (again, found > 1000) == (name, True)
    engine.kill()
    await asyncio.sleep(2 * PROBED)
    await engine.start()
    await asyncio.sleep(2 * PROBED)
    assert (await ask(router, LONG))[1] == 0


@scenario
async def test_concurrent_requests_are_spread_over_the_ranks(world: World) -> None:
    router, engine = await start(world)
    await engine.set_faults({"fault": "ttft", "ms": 500, "times": 20})
    answers = await asyncio.gather(*(router.chat(f"Burst {number}?", max_tokens=4) for number in range(20)))
    assert sorted(Counter(answer.headers["x-engine"] for answer in answers).values())[0] >= 7


@scenario
async def test_the_load_that_others_put_on_a_rank_is_its_own(world: World) -> None:
    router, engine = await start(world)
    await engine.set_faults({"fault": "ttft", "ms": 10_000, "times": 30})
    tasks = [asyncio.ensure_future(use(engine, f"Others {n}", rank=1)) for n in range(30)]
    await asyncio.sleep(PROBED)
    await engine.clear_faults()
    engines = (await router.http.get("/healthz")).json()["engines"]
    assert [engines[name]["running"] for name in ("one.1", "one.2")] == [0, 30]
    answers = [await router.chat(f"Short {n}?", max_tokens=4) for n in range(4)]
    assert {answer.headers["x-engine"] for answer in answers} == {"one.1"}
    await asyncio.gather(*tasks)


@scenario
async def test_the_events_of_a_rank_say_what_it_holds(world: World) -> None:
    router, engine = await start(world, kv_events=EVENTS)
    name, _ = await ask(router, LONG)
    other = 2 - int(name[-1])
    await use(engine, *(f"{number}: {LONG}" for number in range(12)), rank=other)
    assert (await ask(router, LONG))[1] > 1000
    await use(engine, *(f"{number}: {LONG}" for number in range(12)), rank=1 - other)
    assert (await ask(router, LONG))[1] == 0


@scenario
async def test_a_reset_of_the_server_empties_all_ranks(world: World) -> None:
    router, engine = await start(world, kv_events=EVENTS)
    for number in range(2):
        await ask(router, f"{number} {LONG}")
    await reset(engine)
    await use(engine, "The step that publishes it.", rank=0)
    await use(engine, "The step that publishes it.", rank=1)
    assert [(await ask(router, f"{number} {LONG}"))[1] for number in range(2)] == [0, 0]


@pytest.mark.parametrize("stream", [True, False])
@scenario
async def test_a_rank_that_the_server_does_not_have_is_an_error_of_the_request(world: World, stream: bool) -> None:
    router, _ = await start(world, ranks=1, configured=2)
    answers = [await router.chat(f"{number} {LONG}", stream=stream, max_tokens=4) for number in range(2)]
    assert sorted(answer.status_code for answer in answers) == [200, 400]
    assert "is out of range [0, 1)" in next(answer.text for answer in answers if answer.status_code == 400)
