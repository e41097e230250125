"""Turns at /v1/responses for the engine that has kept what its tools said: it is busy, was away, or keeps nothing."""

import asyncio
import json
from typing import Any, Final

from router.core.api_keys import hash_key
from tests.support.conversations import RepeatingEngine, ask, id_of, response_of
from tests.support.router_server import router_config
from tests.support.scripted_engine import Request, Response
from tests.support.typed_answers import RESPONSES
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario
from tests.world.test_turns_at_engines import ADMIN, AUTH, SEARCH, KeepingEngine, first_turn

KEY: Final = "sk-acme"
OTHER: Final = "sk-other"
TENANTS: Final = "".join(
    f'[[tenant]]\nname = "{key[3:]}"\nkeys = ["{hash_key(key.encode())}"]\n' for key in (KEY, OTHER)
)


class BusyEngine(KeepingEngine):
    """It answers "Wait." once `may_answer` is set, and the next `failures` requests with 503."""

    def __init__(self, name: str, *, takes_calls: bool) -> None:
        super().__init__(name, takes_calls=takes_calls)
        self.may_answer, self.is_asked = asyncio.Event(), asyncio.Event()
        self.failures = 0

    async def __call__(self, request: Request) -> Response:
        if request.method == "POST" and self.failures:
            self.failures -= 1
            return Response(b"{}", status=503)
        if b"Wait." in request.body:
            self.is_asked.set()
            await self.may_answer.wait()
        return await super().__call__(request)


async def start(
    world: World, setting: str = "", *, count: int = 2, takes_calls: bool = False, auth: str = AUTH
) -> tuple[WorldRouter, dict[str, BusyEngine]]:
    """`setting`: of each engine."""
    scripts = {name: BusyEngine(name, takes_calls=takes_calls) for name in map("e{}".format, range(count))}
    table = {
        name: ("llama", "any", (await world.scripted_engine(script=script)).url) for name, script in scripts.items()
    }
    text = router_config(world.redis.url, table, rest=auth)
    return await world.router(text.replace("served_model", f"{setting}\nserved_model")), scripts


@scenario
async def test_a_turn_waits_for_a_place_at_its_engine_if_the_others_refuse_it(world: World) -> None:
    router, scripts = await start(world, "max_in_flight = 1", count=6)
    first, engine = await first_turn(router, "The sea?")
    waiting = asyncio.create_task(ask(router, "Wait.", first))
    await scripts[engine].is_asked.wait()
    others = [script.bodies for name, script in scripts.items() if name != engine]
    turn = asyncio.create_task(ask(router, "The sky?", first))
    await eventually(lambda: any(others))
    scripts[engine].may_answer.set()
    answer = await turn
    assert (answer.status_code, answer.headers["x-engine"]) == (200, engine)
    assert scripts[engine].bodies[-1]["previous_response_id"] == first
    assert sum(map(len, others)) == 1
    assert (await waiting).status_code == 200


@scenario
async def test_a_turn_is_tried_again_at_its_busy_engine_if_the_others_refuse_it(world: World) -> None:
    router, scripts = await start(world)
    first, engine = await first_turn(router, "The sea?")
    scripts[engine].failures = 1
    answer = await ask(router, "The sky?", first)
    assert (answer.status_code, answer.headers["x-engine"]) == (200, engine)
    scripts[engine].failures = 9
    answer = await ask(router, "The land?", first)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engines_busy")


@scenario
async def test_a_refusal_is_given_to_the_client_if_its_engine_is_drained(world: World) -> None:
    router, _ = await start(world)
    first, engine = await first_turn(router, "The sea?")
    await router.http.post(f"/admin/engines/{engine}/drain", headers=ADMIN)
    answer = await ask(router, "The sky?", first)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "Unsupported input item type: web_search_call"


@scenario
async def test_what_another_engine_said_without_the_memory_is_not_served_after_it(world: World) -> None:
    router, scripts = await start(world, takes_calls=True)
    first, engine = await first_turn(router, "The sea?")
    await router.http.post(f"/admin/engines/{engine}/drain", headers=ADMIN)
    away = await ask(router, "The sky?", first)
    assert away.headers["x-engine"] != engine
    await router.http.post(f"/admin/engines/{engine}/resume", headers=ADMIN)
    back = await ask(router, "The sky?", first)
    assert (back.headers["x-cache"], back.headers["x-cache-reason"]) == ("BYPASS", "uncacheable")
    assert back.headers["x-engine"] == engine
    asked = {"model": "llama", "input": "The sky?", "previous_response_id": first}
    question = {"path": RESPONSES, "tenant": "default", "body": asked}
    explained = (await router.http.post("/admin/cache/explain", json=question, headers=ADMIN)).json()
    assert (explained["result"], explained["reason"]) == ("BYPASS", "uncacheable")
    assert scripts[engine].bodies[-1]["previous_response_id"] == first


@scenario
async def test_a_conversation_of_an_engine_does_not_reach_the_responses_that_it_keeps(world: World) -> None:
    router, scripts = await start(world, auth=TENANTS)
    first, _ = await first_turn(router, "The sea?", key=KEY)
    answer = await ask(router, "The sky?", first, key=OTHER, conversation="conv_1")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "previous_response_id")
    assert sum(len(script.bodies) for script in scripts.values()) == 1


class IgnoringEngine(RepeatingEngine):
    """As Ollama: it takes any `previous_response_id`, and knows none."""

    bodies: list[dict[str, Any]]

    async def __call__(self, request: Request) -> Response:
        if request.method == "POST":
            self.bodies.append(json.loads(request.body))
        return await super().__call__(request)


@scenario
async def test_an_engine_that_ignores_the_id_gets_the_whole_turn(world: World) -> None:
    script = IgnoringEngine()
    script.bodies = []
    engine = await world.scripted_engine(script=script)
    text = router_config(world.redis.url, {"e0": ("llama", "any", engine.url)})
    router = await world.router(text.replace("served_model", 'kind = "ollama"\nserved_model'))
    first = id_of(await ask(router, "The sea?", tools=SEARCH))
    second = await ask(router, "The sky?", first)
    assert response_of(second)["status"] == "completed"
    assert len(script.bodies[-1]["input"]) == 3
    assert "previous_response_id" not in script.bodies[-1]
