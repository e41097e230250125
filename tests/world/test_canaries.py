"""An engine with a share of its model's requests."""

import asyncio
from typing import Any, Final, NamedTuple

from router.core.routing.traffic_share import request_point
from tests.support.router_server import chat_body, router_config
from tests.support.waiting import eventually
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario

SESSIONS: Final = [f"user-{number}" for number in range(20)]


class Setting(NamedTuple):
    """Two engines of llama, of which `canary` has the settings of a test, and their configuration."""

    stable: WorldEngine
    canary: WorldEngine
    text: str


async def engines_with(world: World, settings: str) -> Setting:
    stable, canary = await world.engine(), await world.engine()
    tables = {"stable": ("llama", "any", stable.url), "canary": ("llama", "any", canary.url)}
    return Setting(stable, canary, router_config(world.redis.url, tables, rest=settings))


def expected_engine(session: str, share: float) -> str:
    return "canary" if request_point("llama", "default", session, "") < share else "stable"


CANARY: Final = min(SESSIONS, key=lambda session: request_point("llama", "default", session, ""))
STABLE: Final = max(SESSIONS, key=lambda session: request_point("llama", "default", session, ""))


async def ask(router: WorldRouter, prompt: str, session: str, **fields: Any) -> tuple[str, str]:
    """X-Engine and X-Cache."""
    response = await router.chat(prompt, headers={"x-session-id": session}, **fields)
    assert response.status_code == 200, response.text
    return response.headers["x-engine"], response.headers["x-cache"]


@scenario
async def test_a_session_stays_in_the_cohort_that_all_routers_compute_for_it(world: World) -> None:
    setting = await engines_with(world, "share = 40")
    routers = [await world.router(setting.text) for _ in range(2)]
    for session in SESSIONS:
        expected = expected_engine(session, 40)
        for number, router in enumerate(routers):
            engine, _ = await ask(router, f"Question {number} of {session}?", session)
            assert engine == expected
    assert {expected_engine(session, 40) for session in SESSIONS} == {"stable", "canary"}


@scenario
async def test_requests_without_a_session_are_divided_and_a_repetition_is_a_hit(world: World) -> None:
    setting = await engines_with(world, 'share = 50\nrevision = "2"')
    router = await world.router(setting.text)
    first = [await router.chat(f"Question {number}?") for number in range(30)]
    assert {response.headers["x-engine"] for response in first} == {"stable", "canary"}
    second = [await router.chat(f"Question {number}?") for number in range(30)]
    assert {response.headers["x-cache"] for response in second} == {"HIT"}
    assert [r.headers["x-engine"] for r in second] == [r.headers["x-engine"] for r in first]


@scenario
async def test_a_canary_with_another_revision_shares_no_responses_with_the_rest(world: World) -> None:
    setting = await engines_with(world, 'share = 50\nrevision = "2"')
    router = await world.router(setting.text)
    for cache in ("MISS", "HIT"):
        assert await ask(router, "The sea?", CANARY) == ("canary", cache)
        assert await ask(router, "The sea?", STABLE) == ("stable", cache)


@scenario
async def test_a_canary_of_the_same_revision_shares_responses_with_the_rest(world: World) -> None:
    setting = await engines_with(world, 'share = 50\nrevision = "1"')
    router = await world.router(setting.text)
    assert await ask(router, "The sea?", CANARY) == ("canary", "MISS")
    assert await ask(router, "The sea?", STABLE) == ("canary", "HIT")


@scenario
async def test_the_rest_takes_over_from_a_canary_that_is_down_with_its_own_responses(world: World) -> None:
    setting = await engines_with(world, 'share = 50\nrevision = "2"')
    router = await world.router(setting.text)
    assert await ask(router, "The sea?", CANARY) == ("canary", "MISS")
    assert await ask(router, "The moon?", STABLE) == ("stable", "MISS")
    setting.canary.kill()
    catalog = router.application._runtime.catalog
    await eventually(lambda: catalog.engines["canary"].up is False)
    assert await ask(router, "The moon?", CANARY) == ("stable", "HIT")
    assert await ask(router, "The sea?", CANARY) == ("stable", "MISS")
    assert await ask(router, "The sea?", CANARY) == ("stable", "HIT")
    await setting.canary.start()
    await eventually(lambda: catalog.engines["canary"].up)
    assert await ask(router, "The sea?", CANARY) == ("canary", "HIT")


@scenario
async def test_what_the_rest_answers_for_a_full_canary_of_another_revision_is_not_stored(world: World) -> None:
    setting = await engines_with(world, 'share = 50\nrevision = "2"\nmax_in_flight = 1')
    router = await world.router(setting.text)
    async with router.http.stream(
        "POST",
        "/v1/chat/completions",
        json=chat_body("[[sim:stall after=1]] Wait.", stream=True),
        headers={"x-session-id": CANARY},
    ) as busy:
        assert busy.headers["x-engine"] == "canary"
        assert await ask(router, "The sea?", CANARY) == ("stable", "MISS")
        page = await router.metrics()
        assert page['llm_cache_writes_total{result="revision"}'] == 1

    async def is_free() -> bool:
        return await ask(router, "The sea?", CANARY) == ("canary", "MISS")

    await eventually(is_free)


@scenario
async def test_a_share_of_0_gets_requests_only_while_nothing_else_is_up(world: World) -> None:
    setting = await engines_with(world, "share = 0")
    router = await world.router(setting.text)
    answers = await asyncio.gather(*(ask(router, f"Question {n}?", SESSIONS[n]) for n in range(20)))
    assert {engine for engine, _ in answers} == {"stable"}
    setting.stable.kill()
    catalog = router.application._runtime.catalog
    await eventually(lambda: catalog.engines["stable"].up is False)
    assert await ask(router, "The sea?", STABLE) == ("canary", "MISS")
