"""Announced engines at a running router: it takes them up and drops them without a restart."""

import asyncio
import socket
import time
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from router.shared.engines.announcements import AnnouncedEngine, ModelRevision, write_command
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MISTRAL, EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


def announced(engines: EngineSet, **changes: Any) -> AnnouncedEngine:
    engine = AnnouncedEngine(
        name="llama-chat", model="llama", task="chat", url=engines.chat.url, served_model=LLAMA, max_in_flight=4
    )  # fmt: skip
    return replace(engine, **changes)


async def write(redis: Any, *engines: AnnouncedEngine, **others: Any) -> None:
    await redis.execute_command(*write_command("test", engines, **others))


async def engine_names(router: RouterServer) -> set[str]:
    return set((await router.http.get("/healthz")).json()["engines"])


async def test_an_announced_engine_serves_without_a_restart_and_is_dropped_when_it_is_withdrawn(
    redis_server: RedisServer, redis: Any, engines: EngineSet, make_router: MakeRouter
) -> None:
    # Engines without a draft: one with a draft that is measured can come before an engine for the task.
    config = router_config(redis_server.url, {"old-code": ("mistral", "code", engines.mistral.url)})
    router = await make_router(config)
    assert (await router.chat("The sea?", model="mistral")).headers["x-engine"] == "old-code"
    new = announced(engines, name="new-chat", model="mistral", url=engines.mistral.url, served_model=MISTRAL)
    await write(redis, new)

    async def has_new(expected: bool) -> bool:
        return ("new-chat" in await engine_names(router)) is expected

    await eventually(lambda: has_new(True))
    assert (await router.chat("The moon?", model="mistral")).headers["x-engine"] == "new-chat"
    await write(redis, withdrawn=["new-chat"])
    await eventually(lambda: has_new(False))
    assert (await router.chat("The sun?", model="mistral")).headers["x-engine"] == "old-code"


async def test_a_router_that_starts_has_the_announced_engines_before_its_first_request(
    redis_server: RedisServer, redis: Any, engines: EngineSet, make_router: MakeRouter
) -> None:
    dead = {"llama-chat": ("llama", "chat", "http://127.0.0.1:1")}
    await write(redis, announced(engines))
    router = await make_router(router_config(redis_server.url, dead))
    assert (await router.chat("The sea?")).headers["x-engine"] == "llama-chat"


async def test_an_answer_of_the_former_revision_is_not_served_after_a_switch(
    router: RouterServer, redis: Any, engines: EngineSet
) -> None:
    first = await router.chat("The sea?")
    await write(redis, announced(engines), revisions={"llama": ModelRevision(revision="2", configured="1")})

    async def has_new_key() -> bool:
        return (await router.chat("The sea?")).headers["x-cache-key"] != first.headers["x-cache-key"]

    await eventually(has_new_key)
    assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"
    await write(redis, announced(engines), revisions={"llama": ModelRevision(revision="1", configured="1")})

    async def has_old_key() -> bool:
        return (await router.chat("The sea?")).headers["x-cache-key"] == first.headers["x-cache-key"]

    await eventually(has_old_key)


async def test_the_announced_state_is_applied_and_shown_without_a_reload(
    router: RouterServer, redis: Any, engines: EngineSet
) -> None:
    await write(redis, announced(engines, max_in_flight=None, temperature_celsius=86.0, capacity=0.5))
    engine = router.application._runtime.catalog.engines["llama-chat"]
    await eventually(lambda: engine.max_in_flight == 128)
    restarts = {"degraded": 2}
    await write(redis, announced(engines, max_in_flight=None, temperature_celsius=70.0, restarts=restarts))
    await eventually(lambda: engine.max_in_flight is None)
    assert router.application._runtime.catalog.engines["llama-chat"] is engine

    async def shown() -> bool:
        metrics = await router.metrics()
        return (
            metrics.get('roundhouse_watchdog_restarts_total{engine="llama-chat",reason="degraded"}') == 2.0
            and metrics['roundhouse_engine_temperature_celsius{engine="llama-chat"}'] == 70.0
        )

    await eventually(shown)


def probing_tasks() -> int:
    """The runtimes of this process that probe their engines."""
    return sum(getattr(task.get_coro(), "__qualname__", "") == "EngineProbe.run" for task in asyncio.all_tasks())


async def test_a_runtime_that_is_replaced_before_it_has_started_does_not_run_on(
    redis_server: RedisServer, redis: Any, engines: EngineSet, make_router: MakeRouter
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
        configured = {"llama-chat": ("llama", "chat", f"http://127.0.0.1:{silent.getsockname()[1]}")}
        await write(redis, announced(engines))
        others = probing_tasks()
        router = await make_router(router_config(redis_server.url, configured))
        assert (await router.chat("The sea?")).headers["x-engine"] == "llama-chat"
        await eventually(lambda: not router.application._retiring)
        assert probing_tasks() - others == 1


async def test_engines_that_are_announced_during_the_shutdown_start_nothing(
    redis_server: RedisServer, redis: Any, engines: EngineSet
) -> None:
    router = RouterServer(router_config(redis_server.url, engines.as_config()))
    await router.start()

    async def change_fleet() -> None:
        await write(redis, announced(engines, name="new-chat"))
        await eventually(lambda: "new-chat" in router.application._runtime.announcements.fleet.engines)

    router.application._wait_for_followers = change_fleet  # type: ignore[method-assign]
    await router.stop()
    assert router.application._fleet_task is None


async def test_a_waiting_request_starts_as_soon_as_the_capacity_rises(
    redis_server: RedisServer, redis: Any, engines: EngineSet, make_router: MakeRouter
) -> None:
    await write(redis, announced(engines, max_in_flight=2, capacity=0.5))
    router = await make_router(router_config(redis_server.url, engines.as_config()))
    runtime = router.application._runtime
    await runtime.on_replaced()  # a probe round looks at the waiting requests, too
    engine = runtime.catalog.engines["llama-chat"]
    slot = runtime.engines.admission.try_acquire("default", [engine])
    assert slot is not None
    waiting = asyncio.ensure_future(runtime.engines.admission.acquire("default", [engine]))
    await asyncio.sleep(0)
    await write(redis, announced(engines, max_in_flight=2, capacity=1.0))
    assert await waiting is not None


async def test_an_engine_that_is_ignored_is_reported_once(
    router: RouterServer, redis: Any, engines: EngineSet, caplog: pytest.LogCaptureFixture
) -> None:
    engine = router.application._runtime.catalog.engines["llama-chat"]

    async def change(celsius: float) -> None:
        foreign = announced(engines, name="phi-1", model="phi", temperature_celsius=celsius)
        await write(redis, foreign, announced(engines, max_in_flight=None, temperature_celsius=celsius))
        await eventually(lambda: engine.announced is not None and engine.announced.temperature_celsius == celsius)
        assert router.application._fleet_task is not None
        await router.application._fleet_task

    await change(70.0)
    await change(71.0)
    assert len([line for line in caplog.messages if "ignored the announced engine" in line]) == 1


async def test_a_renewal_makes_a_router_read_one_field(router: RouterServer, redis: Any, engines: EngineSet) -> None:
    await write(redis, announced(engines))
    await eventually(lambda: "llama-chat" in router.application._runtime.announcements.fleet.engines)

    async def calls(command: str) -> int:
        return int((await redis.info("commandstats")).get(f"cmdstat_{command}", {}).get("calls", 0))

    async def has_looked(calls_before: int) -> bool:
        return await calls("hget") >= calls_before + 2  # one is that of the script that writes

    read_before, started = await calls("hgetall"), time.monotonic()
    for _ in range(10):
        looked_before = await calls("hget")
        await write(redis, announced(engines))
        await eventually(partial(has_looked, looked_before))
    # The script reads the hash each time, and the router every two seconds.
    assert await calls("hgetall") - read_before < 10 + 8 + (time.monotonic() - started) / 2
