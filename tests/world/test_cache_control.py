"""Cache directives of clients, over HTTP."""

import asyncio
from typing import NamedTuple

import httpx
import pytest

from tests.support.router_server import chat_body, router_config
from tests.support.sse_answers import chat_text
from tests.support.typed_answers import RESPONSES, typed_body
from tests.support.waiting import eventually
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import PROBED, World, scenario

PROMPT = "The sea?"


async def start(world: World, model: str = "") -> tuple[WorldRouter, WorldEngine]:
    """`model`: settings of the model."""
    engine = await world.engine()
    config = router_config(world.redis.url, {"one": ("llama", "any", engine.url)})
    return await world.router(config.replace("[[model]]", f"[[model]]\n{model}")), engine


async def ask(
    router: WorldRouter, directives: str | None = None, *, stream: bool = False, ttl: str | None = None
) -> httpx.Response:
    request_headers = {"cache-control": directives, "x-cache-ttl": ttl}
    headers = {name: value for name, value in request_headers.items() if value is not None}
    return await router.chat(PROMPT, stream=stream, headers=headers)


async def generations(engine: WorldEngine) -> int:
    count: int = (await engine.stats())["received"]
    return count


async def stored(world: World, tenant: str = "default") -> list[str]:
    return [key async for key in world.redis.client.scan_iter(f"rh:1:{tenant}:*")]


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_no_store_is_neither_looked_up_nor_stored(world: World, stream: bool) -> None:
    router, engine = await start(world)
    first = await ask(router, "no-store", stream=stream)
    assert (first.headers["x-cache"], first.headers["x-cache-reason"]) == ("BYPASS", "no-store")
    assert first.headers["cache-status"] == "roundhouse; fwd=bypass; detail=no-store"
    assert "x-cache-key" not in first.headers
    assert (await ask(router)).headers["x-cache"] == "MISS", "nothing was stored before"
    before = await generations(engine)
    assert (await ask(router, "no-store", stream=stream)).headers["x-cache"] == "BYPASS"
    assert await generations(engine) == before + 1, "what is stored is not looked up"
    assert len(await stored(world)) == 1


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_no_cache_uses_an_engine_and_its_response_replaces_the_stored_one(world: World, stream: bool) -> None:
    router, engine = await start(world)
    await ask(router)
    await asyncio.sleep(100)
    before = await generations(engine)
    again = await ask(router, "no-cache", stream=stream)
    assert (again.headers["x-cache"], again.headers["x-cache-reason"]) == ("BYPASS", "no-cache")
    assert await generations(engine) == before + 1
    hit = await ask(router)
    assert hit.headers["x-cache"] == "HIT"
    assert int(hit.headers["age"]) < 50
    assert chat_text(hit) == chat_text(again)


@scenario
async def test_a_model_without_the_cache_answers_each_equal_request_anew(world: World) -> None:
    router, engine = await start(world, 'cache = "off"')
    answers = await asyncio.gather(ask(router), ask(router, "no-cache", stream=True), ask(router, "max-age=5"))
    for answer in answers:
        assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("BYPASS", "off")
    assert await generations(engine) == 3
    assert await stored(world) == []


@scenario
async def test_an_adapter_uses_the_cache_as_its_model_does(world: World) -> None:
    engine = await world.engine(enable_lora=True, lora_modules=(("sql", "/sql"),))
    config = router_config(world.redis.url, {"one": ("llama", "any", engine.url)})
    router = await world.router(config.replace("[[model]]", '[[model]]\ncache = "off"'))
    await asyncio.sleep(PROBED)
    answer = await router.chat(PROMPT, model="sql")
    assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("BYPASS", "off")


class Use(NamedTuple):
    """A request of the tenant acme, at this path, and what its model or its tenant has for `cache`."""

    path: str
    stream: bool
    of_tenant: bool

    async def routers(self, world: World, cache: str) -> tuple[WorldRouter, WorldRouter, WorldEngine]:
        """A router with this setting, one that uses the cache, and the engine of both."""
        engine = await world.engine()
        started = []
        for value in (cache, "on"):
            of_model, of_tenant = ("on", value) if self.of_tenant else (value, "on")
            rest = f'[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\ncache = "{of_tenant}"'
            config = router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=rest)
            started.append(await world.router(config.replace("[[model]]", f'[[model]]\ncache = "{of_model}"')))
        return started[0], started[1], engine

    async def ask(self, router: WorldRouter) -> tuple[str, str | None]:
        """X-Cache and X-Cache-Reason."""
        if self.path == RESPONSES:
            body = typed_body(RESPONSES, PROMPT, stream=self.stream)
        else:
            body = chat_body(PROMPT, stream=self.stream)
        answer = await router.post(self.path, body, x_tenant_id="acme")
        assert answer.status_code == 200
        return answer.headers["x-cache"], answer.headers.get("x-cache-reason")


USES = pytest.mark.parametrize(
    "use",
    [
        pytest.param(Use(path, stream, of_tenant), id=f"{path}, {'stream' if stream else 'JSON'}, {whose}")
        for path in ("/v1/chat/completions", RESPONSES)
        for stream in (False, True)
        for of_tenant, whose in ((False, "model"), (True, "tenant"))
    ],
)


@USES
@scenario
async def test_off_is_neither_looked_up_nor_stored(world: World, use: Use) -> None:
    router, other, engine = await use.routers(world, "off")
    assert [await use.ask(router) for _ in range(2)] == [("BYPASS", "off")] * 2
    assert await stored(world, "acme") == []
    assert await use.ask(other) == ("MISS", "new")
    assert await use.ask(router) == ("BYPASS", "off")
    assert await generations(engine) == 4
    assert len(await stored(world, "acme")) == 1


@USES
@scenario
async def test_read_is_looked_up_and_not_stored(world: World, use: Use) -> None:
    router, other, engine = await use.routers(world, "read")
    assert [await use.ask(router) for _ in range(2)] == [("MISS", "new")] * 2
    assert await stored(world, "acme") == []
    assert await use.ask(other) == ("MISS", "new")
    assert [await use.ask(router) for _ in range(2)] == [("HIT", None)] * 2
    assert await generations(engine) == 3


@USES
@scenario
async def test_on_is_looked_up_and_stored(world: World, use: Use) -> None:
    router, other, engine = await use.routers(world, "on")
    assert [await use.ask(each) for each in (router, router, other)] == [("MISS", "new"), *[("HIT", None)] * 2]
    assert await generations(engine) == 1


@scenario
async def test_max_age_accepts_no_older_entry(world: World) -> None:
    router, _ = await start(world)
    key = (await ask(router)).headers["x-cache-key"]
    await asyncio.sleep(100)
    assert (await ask(router, "max-age=200")).headers["x-cache"] == "HIT"
    fresh = await ask(router, "max-age=50")
    assert (fresh.headers["x-cache"], fresh.headers["x-cache-key"]) == ("MISS", key)
    assert (await ask(router, "max-age=50")).headers["x-cache"] == "HIT", "the fresh one was stored"


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_only_if_cached_never_uses_an_engine(world: World, stream: bool) -> None:
    router, engine = await start(world)
    before = await generations(engine)
    refused = await ask(router, "only-if-cached", stream=stream)
    assert (refused.status_code, refused.headers["x-cache"]) == (504, "MISS")
    assert refused.json()["error"]["code"] == "not_cached"
    assert await generations(engine) == before
    await ask(router)
    hit = await ask(router, "only-if-cached", stream=stream)
    assert (hit.status_code, hit.headers["x-cache"]) == (200, "HIT")


@scenario
async def test_only_if_cached_with_no_store_is_always_504(world: World) -> None:
    router, _ = await start(world)
    await ask(router)
    assert (await ask(router, "no-store, only-if-cached")).status_code == 504


@scenario
async def test_a_client_can_shorten_the_time_to_live_but_not_extend_it(world: World) -> None:
    router, _ = await start(world)
    key = (await ask(router, ttl="100")).headers["x-cache-key"]
    assert 90 < await eventually(lambda: world.redis.client.ttl(key)) <= 100
    hit = await ask(router)
    assert hit.headers["cache-status"].startswith("roundhouse; hit; ttl=")
    assert int(hit.headers["cache-status"].rpartition("=")[2]) <= 100
    await ask(router, "no-cache", ttl=str(10**9))

    await eventually(lambda: has_default_lifetime(world, key))


async def has_default_lifetime(world: World, key: str) -> bool:
    ttl: int = await world.redis.client.ttl(key)
    return 89_000 < ttl <= 90_000


@scenario
async def test_a_time_to_live_of_zero_stores_nothing(world: World) -> None:
    router, _ = await start(world)
    assert (await ask(router, ttl="0")).headers["x-cache"] == "MISS"
    assert (await ask(router, ttl="0")).headers["x-cache"] == "MISS"
    assert await stored(world) == []
    assert not [name for name in await router.metrics() if name.startswith("llm_cache_writes_total")]


@scenario
async def test_a_time_to_live_that_is_not_a_number_is_refused(world: World) -> None:
    router, engine = await start(world)
    before = await generations(engine)
    refused = await ask(router, ttl="1h")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Cache-TTL")
    assert await generations(engine) == before


@scenario
async def test_several_headers_are_combined(world: World) -> None:
    router, _ = await start(world)
    await ask(router)
    request_headers = [("cache-control", "no-transform"), ("cache-control", "no-cache")]
    body = {"model": "llama", "messages": [{"role": "user", "content": PROMPT}]}
    answer = await router.http.post("/v1/chat/completions", json=body, headers=request_headers)
    assert answer.headers["x-cache-reason"] == "no-cache"


@scenario
async def test_unknown_directives_are_ignored(world: World) -> None:
    router, _ = await start(world)
    await ask(router)
    assert (await ask(router, "max-stale=60, no-transform, private")).headers["x-cache"] == "HIT"
