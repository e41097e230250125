"""Which engines can take the requests of another one, and whether one of them does now."""

from typing import Any

import httpx
import pytest

from engines.announcer import Announcer
from engines.spec import EngineSpec
from engines.watchdog.availability import Availability, Candidate, substitutes
from engines.watchdog.drains import Drains
from router.net.redis.connect import open_client
from router.shared.engines.announcements import AnnouncedEngine
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="session")


def spec(name: str, *, url: str = "", max_model_len: int | None = None) -> EngineSpec:
    return EngineSpec(name=name, model="llama", task="any", url=url, served_model="l", max_model_len=max_model_len)


OWN = spec("e0", max_model_len=8192)


@pytest.mark.parametrize(
    ("engine", "other", "is_substitute"),
    [
        (OWN, Candidate("e1", "llama", ""), True),
        (OWN, Candidate("e1", "llama", "", 8192), True),
        (OWN, Candidate("e1", "llama", "", 4096), False),
        (spec("e0"), Candidate("e1", "llama", "", 8192), False),
        (OWN, Candidate("e1", "mistral", ""), False),
        (OWN, Candidate("e0", "llama", ""), False),
    ],
    ids=["the model's context", "the same context", "a shorter one", "an unknown own one", "another model", "itself"],
)
async def test_a_substitute_serves_the_same_model_with_as_long_a_context(
    engine: EngineSpec, other: Candidate, is_substitute: bool
) -> None:
    assert substitutes(engine, [other]) == ([other] if is_substitute else [])


async def test_a_substitute_is_available_if_it_is_healthy_and_not_drained(
    client: Any, redis: Any, own_redis: RedisServer
) -> None:
    drains = Drains(client)
    async with SimulatedEngine() as engine, httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as http:
        gone, there = spec("gone", url=f"http://127.0.0.1:{free_port()}"), spec("there", url=engine.url)
        assert not await Availability([OWN], http, client, drains).has_substitute(OWN)
        assert not await Availability([OWN, gone], http, client, drains).has_substitute(OWN)
        assert await Availability([OWN, gone, there], http, client, drains).has_substitute(OWN)
        no_redis = open_client(own_redis.url, timeout=1)
        assert not await Availability([there], http, no_redis, Drains(no_redis)).has_substitute(OWN)
        await drains.drain("there")
        assert not await Availability([OWN, gone, there], http, client, drains).has_substitute(OWN)


async def test_an_engine_that_another_launcher_announces_counts_and_its_address_too(
    client: Any, redis: Any, redis_server: RedisServer
) -> None:
    drains = Drains(client)
    announcer = Announcer.connect(redis_server.url, "test", lambda _: None)
    async with SimulatedEngine() as engine, httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as http:
        moved = AnnouncedEngine(name="moved", model="llama", task="any", url=engine.url, served_model="l")
        configured = spec("moved", url=f"http://127.0.0.1:{free_port()}")
        availability = Availability([OWN, configured], http, client, drains)
        assert not await availability.has_substitute(OWN)
        await announcer.announce(moved)
        assert await availability.has_substitute(OWN)
        await announcer.aclose()
        assert not await availability.has_substitute(OWN)
