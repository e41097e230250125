"""Reloading the configuration: what changes, what stays, and that no request is affected."""

import asyncio
from typing import Any

import httpx
import pytest

from router.api.access.auth import hash_key
from tests.support.router_server import chat_body, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.waiting import eventually
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import World, scenario


async def start(world: World) -> tuple[WorldRouter, WorldEngines, str]:
    """A router with the engines of the default configuration."""
    engines = await world.engines()
    config = router_config(world.redis.url, engines.as_config())
    return await world.router(config), engines, config


def without_code(world: World, engines: WorldEngines, **options: str) -> str:
    """A configuration without the engine llama-code."""
    table = engines.as_config()
    del table["llama-code"]
    return router_config(world.redis.url, table, **options)


@scenario
async def test_models_engines_keys_and_limits_are_those_of_the_new_configuration(world: World) -> None:
    router, engines, _ = await start(world)
    rest = f'[auth]\nmode = "keys"\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"k")}"]\n'
    text = without_code(world, engines, rest=rest, router='max_body = "1KiB"')
    await router.reload(text.replace('"llama-alias"', '"other-alias"'))
    assert (await router.chat("The sea?")).status_code == 401
    headers = {"authorization": "Bearer k"}
    answer = await router.chat("The sea?", headers=headers, model="other-alias")
    assert answer.headers["x-cache-key"].startswith("rh:1:acme:llama:")
    assert (await router.chat("The sea?", headers=headers, model="llama-alias")).status_code == 404
    assert (await router.chat("x" * 2000, headers=headers)).status_code == 413
    assert set((await router.http.get("/healthz")).json()["engines"]) == {"llama-chat", "mistral"}


@scenario
async def test_stored_entries_and_counters_survive_a_reload(world: World) -> None:
    router, _, config = await start(world)
    await router.chat("The sea?")
    await router.reload(config)
    assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"
    counted = {name: value for name, value in (await router.metrics()).items() if name.startswith("llm_requests_total")}
    assert sum(counted.values()) == 2


@scenario
async def test_a_new_tenant_is_notified_of_changes_too(world: World) -> None:
    router, engines, _ = await start(world)
    rest = '[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n'
    await router.reload(router_config(world.redis.url, engines.as_config(), rest=rest))
    headers = {"x-tenant-id": "acme"}
    key = (await router.chat("The sea?", headers=headers)).headers["x-cache-key"]

    async def is_local() -> bool:
        return "detail=local" in (await router.chat("The sea?", headers=headers)).headers["cache-status"]

    await eventually(is_local)
    await world.redis.client.delete(key)

    async def is_gone() -> bool:
        return (await router.chat("The sea?", headers=headers)).headers["x-cache"] == "MISS"

    await eventually(is_gone)


@scenario
async def test_a_stream_in_progress_ends_under_the_old_configuration(world: World) -> None:
    router, engines, _ = await start(world)
    await engines.code.set_faults({"fault": "tps", "rate": 60})
    body = chat_body("Write a Python function that reverses a list.", stream=True, max_tokens=30)
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["x-engine"] == "llama-code"
        await router.reload(without_code(world, engines))
        assert set((await router.http.get("/healthz")).json()["engines"]) == {"llama-chat", "mistral"}
        assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
    again = await router.http.post("/v1/chat/completions", json=body)
    assert again.headers["x-cache"] == "HIT"


@scenario
async def test_an_identical_request_joins_a_generation_that_started_before_the_reload(world: World) -> None:
    router, engines, config = await start(world)
    await engines.chat.set_faults({"fault": "tps", "rate": 12})
    body = chat_body("The sea?", stream=True, max_tokens=75, min_tokens=75)
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as first:
        await router.reload(config)
        async with router.http.stream("POST", "/v1/chat/completions", json=body) as second:
            assert second.headers["x-cache"] == "COALESCED"
            assert await second.aread() == await first.aread()
    assert (await engines.chat.stats())["received"] == 1


@scenario
async def test_the_load_of_an_engine_that_remains_is_known(world: World) -> None:
    router, engines, _ = await start(world)
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    async with router.http.stream("POST", "/v1/chat/completions", json=chat_body("The sea?", stream=True)) as answer:
        assert answer.headers["x-engine"] == "llama-chat"
        await router.reload(without_code(world, engines))
        assert (await router.metrics())['llm_requests_in_flight{engine="llama-chat"}'] == 1
    await engines.chat.clear_faults()
    await engines.chat.stats(in_flight=0)

    async def idle() -> bool:
        return (await router.metrics())['llm_requests_in_flight{engine="llama-chat"}'] == 0

    await eventually(idle)


@pytest.mark.parametrize("is_removed", [False, True])
@scenario
async def test_requests_of_earlier_configurations_count_for_the_limit_of_an_engine(
    world: World, is_removed: bool
) -> None:
    engine = ScriptedEngine(ROLE_FRAME, chat_frame(content="one", finish="stop") + DONE_FRAME, paced=True)
    await engine.start()

    def text(max_model_len: int) -> str:
        limited = f"max_in_flight = 2\nmax_model_len = {max_model_len}\nserved_model"
        table = {"limited": ("llama", "any", engine.url)}
        return router_config(world.redis.url, table).replace("served_model", limited)

    router = await world.router(text(1000))

    async def queued(number: int) -> None:
        async def are() -> bool:
            return (await router.metrics())['llm_requests_queued{model="llama"}'] == number

        await eventually(are)

    def ask(*prompts: str) -> list[asyncio.Task[httpx.Response]]:
        return [asyncio.create_task(router.chat(prompt, stream=True)) for prompt in prompts]

    asked = ask("The sea?", "The moon?", "The sun?")
    await queued(1)
    if is_removed:
        await router.reload(router_config(world.redis.url, {"other": ("llama", "any", "http://127.0.0.1:1")}))
    await router.reload(text(2000))  # another object for the same engine
    asked += ask("The sky?", "The earth?", "The wind?")
    await queued(4)
    for _ in asked:
        engine.chunk_permits.release()
    assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 6
    assert engine.most == 2


@scenario
async def test_an_engine_that_is_removed_has_no_gauges(world: World) -> None:
    router, engines, _ = await start(world)
    up = 'roundhouse_engine_up{engine="llama-code"}'
    assert (await router.metrics())[up] == 1
    await router.reload(without_code(world, engines))
    assert up not in await router.metrics()


@scenario
async def test_a_configuration_that_fails_to_start_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    router, _, config = await start(world)

    async def fail(_: object) -> None:
        raise OSError("no more files")

    with monkeypatch.context() as patched:
        patched.setattr("router.process.application.Runtime.start", fail)
        with pytest.raises(OSError, match="no more files"):
            await router.reload(config)
    assert (await router.chat("The sea?")).status_code == 200


@scenario
async def test_a_configuration_that_cannot_be_built_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    router, engines, _ = await start(world)
    state = router.application._process_state

    def outliving() -> tuple[Any, ...]:
        known = router.application._runtime.catalog.engines.values()
        listeners = [each.on_slot_freed for each in known]
        return listeners, [url for url, _ in state.prefills.items()], state.prompt_records.link

    before = outliving()

    def fail(*_: object) -> None:
        raise OSError("no more files")

    with monkeypatch.context() as patched:
        patched.setattr("router.process.app.build_admin_routes", fail)
        with pytest.raises(OSError, match="no more files"):
            await router.reload(without_code(world, engines))
    assert outliving() == before
    assert (await router.chat("The sea?")).status_code == 200
