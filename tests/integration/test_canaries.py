"""An engine with a share of its model's requests."""

import asyncio
from typing import Any, Final

import pytest

from router.core.routing.traffic_share import request_point
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SESSIONS: Final = [f"user-{number}" for number in range(20)]


def config(redis_server: RedisServer, stable: str, canary: str, settings: str) -> str:
    """Two engines of llama, of which the second has these settings."""
    tables = {"stable": ("llama", "any", stable), "canary": ("llama", "any", canary)}
    return router_config(redis_server.url, tables, rest=settings)


def expected_engine(session: str, share: float) -> str:
    return "canary" if request_point("llama", "default", session, "") < share else "stable"


CANARY: Final = min(SESSIONS, key=lambda session: request_point("llama", "default", session, ""))
STABLE: Final = max(SESSIONS, key=lambda session: request_point("llama", "default", session, ""))


async def ask(router: RouterServer, prompt: str, session: str, **fields: Any) -> tuple[str, str]:
    """X-Engine and X-Cache."""
    response = await router.chat(prompt, headers={"x-session-id": session}, **fields)
    assert response.status_code == 200, response.text
    return response.headers["x-engine"], response.headers["x-cache"]


async def test_a_session_stays_in_the_cohort_that_all_routers_compute_for_it(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    text = config(redis_server, engines.chat.url, engines.code.url, "share = 40")
    routers = [await make_router(text) for _ in range(2)]
    for session in SESSIONS:
        expected = expected_engine(session, 40)
        for number in range(4):
            engine, _ = await ask(routers[number % 2], f"Question {number} of {session}?", session)
            assert engine == expected
    assert {expected_engine(session, 40) for session in SESSIONS} == {"stable", "canary"}


async def test_requests_without_a_session_are_divided_and_a_repetition_is_a_hit(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    router = await make_router(config(redis_server, engines.chat.url, engines.code.url, 'share = 50\nrevision = "2"'))
    first = [await router.chat(f"Question {number}?") for number in range(30)]
    assert {response.headers["x-engine"] for response in first} == {"stable", "canary"}
    second = [await router.chat(f"Question {number}?") for number in range(30)]
    assert {response.headers["x-cache"] for response in second} == {"HIT"}
    assert [r.headers["x-engine"] for r in second] == [r.headers["x-engine"] for r in first]


async def test_a_canary_with_another_revision_shares_no_responses_with_the_rest(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    router = await make_router(config(redis_server, engines.chat.url, engines.code.url, 'share = 50\nrevision = "2"'))
    for cache in ("MISS", "HIT"):
        assert await ask(router, "The sea?", CANARY) == ("canary", cache)
        assert await ask(router, "The sea?", STABLE) == ("stable", cache)


async def test_a_canary_of_the_same_revision_shares_responses_with_the_rest(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    router = await make_router(config(redis_server, engines.chat.url, engines.code.url, 'share = 50\nrevision = "1"'))
    assert await ask(router, "The sea?", CANARY) == ("canary", "MISS")
    assert await ask(router, "The sea?", STABLE) == ("canary", "HIT")


async def test_the_rest_takes_over_from_a_canary_that_is_down_with_its_own_responses(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    async with SimulatedEngine(LLAMA) as canary:
        text = config(redis_server, engines.chat.url, canary.url, 'share = 50\nrevision = "2"')
        router = await make_router(text)
        assert await ask(router, "The sea?", CANARY) == ("canary", "MISS")
        assert await ask(router, "The moon?", STABLE) == ("stable", "MISS")
        await canary.kill()
        catalog = router.application._runtime.catalog
        await eventually(lambda: catalog.engines["canary"].up is False)
        assert await ask(router, "The moon?", CANARY) == ("stable", "HIT")
        assert await ask(router, "The sea?", CANARY) == ("stable", "MISS")
        assert await ask(router, "The sea?", CANARY) == ("stable", "HIT")
        await canary.start()
        await eventually(lambda: catalog.engines["canary"].up)
        assert await ask(router, "The sea?", CANARY) == ("canary", "HIT")


async def test_what_the_rest_answers_for_a_full_canary_of_another_revision_is_not_stored(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    settings = 'share = 50\nrevision = "2"\nmax_in_flight = 1'
    router = await make_router(config(redis_server, engines.chat.url, engines.code.url, settings))
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


async def test_a_share_of_0_gets_requests_only_while_nothing_else_is_up(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    async with SimulatedEngine(LLAMA) as stable:
        router = await make_router(config(redis_server, stable.url, engines.code.url, "share = 0"))
        answers = await asyncio.gather(*(ask(router, f"Question {n}?", SESSIONS[n]) for n in range(20)))
        assert {engine for engine, _ in answers} == {"stable"}
        await stable.kill()
        catalog = router.application._runtime.catalog
        await eventually(lambda: catalog.engines["stable"].up is False)
        assert await ask(router, "The sea?", STABLE) == ("canary", "MISS")
