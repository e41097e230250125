"""POST /admin/cache/explain of a turn at /v1/responses: it is explained with all that was said before."""

from typing import Any

import pytest

from tests.support.conversations import PREVIOUS_NOT_FOUND, RepeatingEngine, ask, id_of
from tests.support.router_server import router_config
from tests.support.typed_answers import RESPONSES
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario
from tests.world.test_response_memory import ADMIN, KEYS


async def start(world: World, rest: str = "", *, router: str = "") -> WorldRouter:
    engine = await world.scripted_engine(script=RepeatingEngine())
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=KEYS + rest, router=router)
    return await world.router(text)


async def explain(router: WorldRouter, text: str, previous: str, *, tenant: str = "acme", status: int = 200) -> Any:
    body = {"model": "llama", "input": text, "previous_response_id": previous}
    question = {"body": body, "tenant": tenant, "path": RESPONSES}
    answer = await router.http.post("/admin/cache/explain", json=question, headers=ADMIN)
    assert answer.status_code == status, answer.text
    return answer.json()


@scenario
async def test_a_turn_is_explained_as_it_is_looked_up(world: World) -> None:
    router = await start(world)
    last = id_of(await ask(router, "0?", key="sk-acme"))
    for number in range(1, 4):
        before = await explain(router, f"{number}?", last)
        assert (before["result"], before["state"]) == ("MISS", "absent")
        answer = await ask(router, f"{number}?", last, key="sk-acme")
        found = await explain(router, f"{number}?", last)
        assert (found["result"], found["key"]) == ("HIT", answer.headers["x-cache-key"])
        last = id_of(answer)


@scenario
async def test_a_turn_that_would_be_refused_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from router.flow.memory import conversation_gateway

    router = await start(world, router='max_body = "3KiB"')
    first = id_of(await ask(router, "x" * 1000, key="sk-acme"))
    for id_, tenant in (("resp_9", "acme"), ("a b", "acme"), (first, "beta")):
        refused = await explain(router, "And?", id_, tenant=tenant, status=404)
        assert refused["error"]["code"] == PREVIOUS_NOT_FOUND
    assert (await explain(router, "y" * 1000, first, status=413))["error"]["code"] == "body_too_large"
    second = id_of(await ask(router, "And?", first, key="sk-acme"))
    await router.http.delete(f"{RESPONSES}/{first}", headers={"authorization": "Bearer sk-acme"})
    assert (await explain(router, "And?", second, status=404))["error"]["code"] == PREVIOUS_NOT_FOUND
    monkeypatch.setattr(conversation_gateway, "MAX_TURNS", 1)
    assert (await explain(router, "And?", second, status=400))["error"]["code"] == "conversation_too_long"


@scenario
async def test_a_turn_before_may_have_been_replaced_by_an_equal_one(world: World) -> None:
    router = await start(world)
    first = id_of(await ask(router, "The sea?", key="sk-acme"))
    second = id_of(await ask(router, "The sky?", first, key="sk-acme"))
    third = id_of(await ask(router, "The land?", second, key="sk-acme"))
    whole: Any = [{"role": "user", "content": "The wind?"}]
    other = id_of(await ask(router, whole, key="sk-acme"))
    await world.redis.client.hset(f"rh:1:response:acme:{second}", "parent", other)
    assert (await explain(router, "And?", third, status=404))["error"]["code"] == PREVIOUS_NOT_FOUND
    record = await world.redis.client.hgetall(f"rh:1:response:acme:{first}")
    await world.redis.client.hset(f"rh:1:response:acme:{other}", mapping=record)
    answer = await ask(router, "And?", third, key="sk-acme")
    assert (await explain(router, "And?", third))["key"] == answer.headers["x-cache-key"]


@scenario
async def test_without_kept_responses_a_turn_is_left_to_the_engine(world: World) -> None:
    router = await start(world, '[responses]\nttl = "0"\n')
    found = await explain(router, "And?", "resp_1")
    assert (found["result"], found["reason"]) == ("BYPASS", "uncacheable")
