"""Draining and resuming engines: what they still serve, who is notified, and what holds while Redis is down."""

from typing import Any

from router.api.access.auth import hash_key
from router.core.cache.redis_keys import DRAINS_KEY
from tests.support.router_server import chat_body, router_config
from tests.support.waiting import eventually
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import World, scenario

ADMIN = {"authorization": "Bearer admin-key"}
REST = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'


def config(world: World, engines: WorldEngines) -> str:
    return router_config(world.redis.url, engines.as_config(), rest=REST)


async def start(world: World) -> WorldRouter:
    return await world.router(config(world, await world.engines()))


async def post(router: WorldRouter, engine: str, what: str) -> Any:
    answer = await router.http.post(f"/admin/engines/{engine}/{what}", headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def drained(router: WorldRouter) -> set[str]:
    answer = await router.http.get("/admin/engines", headers=ADMIN)
    return {engine["name"] for engine in answer.json()["engines"] if engine["drained"]}


async def engine_of(router: WorldRouter, prompt: str) -> str:
    answer = await router.chat(prompt)
    return answer.headers["x-engine"] if answer.status_code == 200 else answer.json()["error"]["code"]


@scenario
async def test_the_listing_shows_the_state_of_each_engine(world: World) -> None:
    engines = await world.engines()
    router = await world.router(config(world, engines))

    async def listing() -> Any:
        listed = (await router.http.get("/admin/engines", headers=ADMIN)).json()["engines"]
        return listed[0]["running"] is not None and listed

    listed = await eventually(listing)
    assert [engine["name"] for engine in listed] == ["llama-chat", "llama-code", "mistral"]
    assert listed[0] == {
        "name": "llama-chat", "model": "llama", "task": "chat", "url": engines.chat.url, "up": True, "drained": False,
        "in_flight": 0, "running": 0.0, "waiting": 0.0, "kv_cache_usage": listed[0]["kv_cache_usage"],
        "rest": "",
        "prefixes": {
            "tokens": 0, "capacity_tokens": listed[0]["prefixes"]["capacity_tokens"], "entries": 0,
            "unused_seconds": None, "seconds_per_token": None,
        },
    }  # fmt: skip


@scenario
async def test_a_drained_engine_gets_no_new_work_until_it_is_resumed(world: World) -> None:
    router = await start(world)
    assert await engine_of(router, "The sea?") == "llama-chat"
    response = await post(router, "llama-chat", "drain")
    assert (response["engine"]["drained"], response["everywhere"]) == (True, True)
    assert await engine_of(router, "The moon?") == "llama-code"
    response = await post(router, "llama-chat", "resume")
    assert (response["engine"]["drained"], response["everywhere"]) == (False, True)
    assert await engine_of(router, "The sun?") == "llama-chat"


@scenario
async def test_draining_twice_is_the_same_as_draining_once(world: World) -> None:
    router = await start(world)
    redis = world.redis.client
    await post(router, "llama-chat", "drain")
    since = await redis.hgetall(DRAINS_KEY)
    await post(router, "llama-chat", "drain")
    assert await redis.hgetall(DRAINS_KEY) == since
    await post(router, "llama-chat", "resume")
    await post(router, "llama-chat", "resume")
    assert await drained(router) == set()


@scenario
async def test_generations_of_a_drained_engine_continue_to_their_end(world: World) -> None:
    engines = await world.engines()
    router = await world.router(config(world, engines))
    await engines.chat.set_faults({"fault": "tps", "rate": 60})
    body = chat_body("The sea?", stream=True, max_tokens=20)
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        response = await post(router, "llama-chat", "drain")
        assert response["engine"]["in_flight"] == 1
        assert (await answer.aread()).endswith(b"data: [DONE]\n\n")

    async def idle() -> bool:
        listed = (await router.http.get("/admin/engines", headers=ADMIN)).json()["engines"]
        return bool(listed[0]["in_flight"] == 0)

    await eventually(idle)


@scenario
async def test_a_model_whose_engines_are_all_drained_is_not_ready_and_is_named(world: World) -> None:
    router = await start(world)
    assert (await router.http.get("/readyz")).status_code == 200
    for engine in ("llama-chat", "llama-code"):
        await post(router, engine, "drain")
    ready = await router.http.get("/readyz")
    assert (ready.status_code, ready.text) == (503, "not ready: all engines of the model llama are drained\n")
    answer = await router.chat("The sea?")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")
    assert "drained" in answer.json()["error"]["message"]
    assert (await router.chat("The sea?", model="mistral")).status_code == 200
    health = (await router.http.get("/healthz")).json()
    assert (health["status"], health["reason"]) == ("degraded", None)
    assert health["problems"][0]["words"] == "every engine of llama is drained: only hits are served"
    await post(router, "mistral", "drain")
    health = (await router.http.get("/healthz")).json()
    assert (health["status"], health["reason"]) == ("degraded", "all engines are drained")


@scenario
async def test_every_router_is_notified_at_once_and_one_that_starts_later_knows(world: World) -> None:
    text = config(world, await world.engines())
    router = await world.router(text)
    other = await world.router(text)
    await post(router, "llama-chat", "drain")
    await eventually(lambda: drained(other))
    assert await drained(await world.router(text)) == {"llama-chat"}
    await post(other, "llama-chat", "resume")

    async def resumed() -> bool:
        return not await drained(router)

    await eventually(resumed)


@scenario
async def test_an_unknown_engine_is_404(world: World) -> None:
    router = await start(world)
    redis = world.redis.client
    for what in ("drain", "resume"):
        answer = await router.http.post(f"/admin/engines/nobody/{what}", headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_engine")
    assert not await redis.exists(DRAINS_KEY)


@scenario
async def test_emptying_redis_resumes_no_engine(world: World) -> None:
    router = await start(world)
    redis = world.redis.client
    await post(router, "llama-chat", "drain")
    reply = await redis.hgetall(DRAINS_KEY)
    await redis.flushall()
    await eventually(lambda: redis.exists(DRAINS_KEY))
    assert await redis.hgetall(DRAINS_KEY) == reply
    assert await drained(router) == {"llama-chat"}


@scenario
async def test_a_drain_that_redis_has_evicted_is_known_to_a_router_that_starts_later(world: World) -> None:
    text = config(world, await world.engines())
    router = await world.router(text)
    redis = world.redis.client
    await post(router, "llama-chat", "drain")
    await redis.delete(DRAINS_KEY)
    await eventually(lambda: redis.exists(DRAINS_KEY))
    assert await drained(await world.router(text)) == {"llama-chat"}


@scenario
async def test_an_engine_resumed_while_a_router_was_disconnected_stays_resumed_when_redis_was_emptied(
    world: World,
) -> None:
    engines = await world.engines()
    proxy = await world.proxy()
    away = await world.router(config(world, engines).replace(world.redis.url, proxy.url))
    there = await world.router(config(world, engines))
    await post(there, "llama-chat", "drain")
    await eventually(lambda: drained(away))
    proxy.refuse("listening", "commands")
    await post(there, "llama-chat", "resume")
    await world.redis.client.flushall()
    await eventually(lambda: world.redis.client.exists(DRAINS_KEY))
    assert await drained(away) == {"llama-chat"}
    proxy.release()

    async def resumed() -> bool:
        return not await drained(away)

    await eventually(resumed)
    assert await drained(there) == set()


@scenario
async def test_a_router_that_reconnects_restores_the_drains_of_an_emptied_redis(world: World) -> None:
    text = config(world, await world.engines())
    one = await world.router(text)
    await post(one, "llama-chat", "drain")
    world.redis.stop()
    await one.reload(text)
    world.redis.start()
    await eventually(lambda: world.redis.client.exists(DRAINS_KEY))
    assert await drained(one) == await drained(await world.router(text)) == {"llama-chat"}


@scenario
async def test_each_change_has_a_later_time_than_the_one_before_even_if_the_clock_is_set_back(world: World) -> None:
    router = await start(world)
    redis = world.redis.client
    await redis.hset(DRAINS_KEY, "llama-chat", "drained 9000000000000")
    await eventually(lambda: drained(router))
    await post(router, "llama-chat", "resume")
    assert await redis.hget(DRAINS_KEY, "llama-chat") == "resumed 9000000000001"
    await redis.flushall()
    await eventually(lambda: redis.exists(DRAINS_KEY))
    await post(router, "llama-chat", "drain")
    assert await redis.hget(DRAINS_KEY, "llama-chat") == "drained 9000000000002"


@scenario
async def test_a_key_of_the_wrong_type_changes_nothing(world: World) -> None:
    router = await start(world)
    redis = world.redis.client
    await redis.set(DRAINS_KEY, "nonsense")
    response = await post(router, "llama-chat", "drain")
    assert (response["engine"]["drained"], response["everywhere"]) == (True, False)
    assert await engine_of(router, "The sea?") == "llama-code"


@scenario
async def test_without_redis_the_last_state_remains_and_a_local_change_applies_locally(world: World) -> None:
    text = config(world, await world.engines())
    one, other = await world.router(text), await world.router(text)
    await post(one, "llama-chat", "drain")
    await eventually(lambda: drained(other))
    world.redis.freeze()
    response = await post(one, "llama-code", "drain")
    assert (response["engine"]["drained"], response["everywhere"]) == (True, False)
    assert await drained(one) == {"llama-chat", "llama-code"}
    response = await post(one, "llama-chat", "resume")
    assert (response["engine"]["drained"], response["everywhere"]) == (False, False)
    assert await engine_of(one, "The sea?") == "llama-chat"
    assert await drained(other) == {"llama-chat"}
    await one.reload(text)
    assert await drained(one) == {"llama-code"}, "another configuration does not forget it"
    world.redis.thaw()

    async def all_agree() -> bool:
        return await drained(one) == await drained(other) == {"llama-code"}

    await eventually(all_agree)
