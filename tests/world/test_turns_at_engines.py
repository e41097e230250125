"""Turns at /v1/responses after tools that an engine runs itself: it may have kept what they said."""

import json
from typing import Any, Final

import pytest

from router.core.api_keys import hash_key
from router.core.cache.redis_keys import response_key
from tests.support.conversations import RepeatingEngine, ask, id_of, response_of, texts_of
from tests.support.router_server import RouterClient, router_config
from tests.support.scripted_engine import Request, Response, json_response
from tests.support.typed_answers import RESPONSES
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

ADMIN: Final = {"authorization": "Bearer sk-admin"}
AUTH: Final = f'[auth]\nmode = "open"\nadmin_keys = ["{hash_key(b"sk-admin")}"]\n'
SEARCH: Final = [{"type": "web_search"}]


class KeepingEngine(RepeatingEngine):
    """As vLLM: it refuses an id that it does not know and, unless `takes_calls`, an input with calls of its tools."""

    def __init__(self, name: str, *, takes_calls: bool) -> None:
        super().__init__(f"resp_{name}{number}" for number in range(100))
        self.kept: set[str] = set()
        self.bodies: list[dict[str, Any]] = []
        self._takes_calls = takes_calls

    async def __call__(self, request: Request) -> Response:
        if request.method != "POST":
            return Response()
        body = json.loads(request.body)
        self.bodies.append(body)
        previous, items = body.get("previous_response_id"), body["input"]
        if previous is not None and previous not in self.kept:
            return _error(404, f"Response with id '{previous}' not found.")
        if not self._takes_calls and any(item["type"] == "web_search_call" for item in items if type(item) is dict):
            return _error(400, "Unsupported input item type: web_search_call")
        return await super().__call__(request)

    def _response(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = body["input"]
        said = [item for item in asked if item["type"] == "message"] if isinstance(asked, list) else asked
        response = super()._response({**body, "input": said})
        self.kept.add(response["id"])
        if texts_of(said)[-1] == "Call." if isinstance(said, list) else said == "Call.":
            call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
            return {**response, "output": [call]}
        call = {"type": "web_search_call", "id": f"ws_{response['id']}", "status": "completed"}
        return {**response, "output": [call, *response["output"]]} if body.get("tools") else response

    def _events(self, response: dict[str, Any]) -> Any:
        return _only_end(response)


async def _only_end(response: dict[str, Any]) -> Any:
    for kind, status in (("created", "in_progress"), ("completed", "completed")):
        event = {"type": f"response.{kind}", "response": {**response, "status": status}}
        yield f"event: response.{kind}\ndata: {json.dumps(event)}\n\n".encode()


def _error(status: int, message: str) -> Response:
    return json_response({"error": {"message": message, "type": "invalid_request_error", "code": status}}, status)


class Setting:
    """Two routers with some engines."""

    def __init__(self, routers: list[WorldRouter], scripts: dict[str, KeepingEngine]) -> None:
        self.one, self.other = routers
        self.scripts = scripts

    @property
    def asked(self) -> dict[str, int]:
        return {name: len(script.bodies) for name, script in self.scripts.items() if script.bodies}


async def start(world: World, rest: str = "", *, count: int = 3, takes_calls: bool = False) -> Setting:
    names = [f"e{number}" for number in range(count)]
    scripts = {name: KeepingEngine(name, takes_calls=takes_calls) for name in names}
    engines = {name: await world.scripted_engine(script=script) for name, script in scripts.items()}
    table = {name: ("llama", "any", engine.url) for name, engine in engines.items()}
    text = router_config(world.redis.url, table, rest=AUTH + rest)
    return Setting([await world.router(text), await world.router(text)], scripts)


async def first_turn(router: RouterClient, text: str, **fields: Any) -> tuple[str, str]:
    """The id of its response, and the engine."""
    answer = await ask(router, text, tools=SEARCH, **fields)
    return id_of(answer), answer.headers["x-engine"]


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_turn_after_server_tools_goes_to_the_engine_that_has_kept_them(world: World, stream: bool) -> None:
    setting = await start(world)
    for number in range(6):
        # Without the record, the session of each turn would decide.
        sea = f"The sea {number}?"
        first, engine = await first_turn(setting.one, sea, stream=stream, prompt_cache_key=f"a{number}")
        second = await ask(setting.other, "The sky?", first, stream=stream, prompt_cache_key=f"b{number}")
        third = await ask(setting.one, "The land?", id_of(second), prompt_cache_key=f"c{number}")
        assert [answer.headers["x-engine"] for answer in (second, third)] == [engine] * 2
        bodies = setting.scripts[engine].bodies[-2:]
        assert [body["previous_response_id"] for body in bodies] == [first, id_of(second)]
        assert [texts_of(body["input"]) for body in bodies] == [["The sky?"], ["The land?"]]
        assert response_of(third)["status"] == "completed"
    assert sum(setting.asked.values()) == 18
    assert len(setting.asked) > 1


@scenario
async def test_an_engine_that_has_not_kept_a_response_gets_the_whole_turn(world: World) -> None:
    setting = await start(world, takes_calls=True)
    first, engine = await first_turn(setting.one, "The sea?")
    setting.scripts[engine].kept.clear()
    second = await ask(setting.other, "The sky?", first)
    assert second.headers["x-engine"] == engine
    assert setting.asked == {engine: 3}
    whole = setting.scripts[engine].bodies[-1]
    assert [item["type"] for item in whole["input"]] == ["message", "web_search_call", "message", "message"]
    assert "previous_response_id" not in whole


@scenario
async def test_a_turn_after_a_call_of_a_function_is_whole_unless_the_engine_has_called_its_own_tools(
    world: World,
) -> None:
    setting = await start(world, takes_calls=True)
    first, _ = await first_turn(setting.one, "Call.")
    second = await ask(setting.one, "The sky?", first)
    engine = setting.scripts[second.headers["x-engine"]]
    assert "previous_response_id" not in engine.bodies[-1]
    await ask(setting.one, "The land?", id_of(second))
    assert engine.bodies[-1]["previous_response_id"] == id_of(second)
    searched, _ = await first_turn(setting.one, "The sea?")
    called = await ask(setting.one, "Call.", searched)
    fourth = await ask(setting.one, "The sky?", id_of(called))
    assert setting.scripts[fourth.headers["x-engine"]].bodies[-1]["previous_response_id"] == id_of(called)


@scenario
async def test_another_engine_gets_the_whole_turn_if_that_one_is_drained(world: World) -> None:
    setting = await start(world, takes_calls=True)
    first, engine = await first_turn(setting.one, "The sea?")
    drained = await setting.one.http.post(f"/admin/engines/{engine}/drain", headers=ADMIN)
    assert drained.status_code == 200
    second = await ask(setting.one, "The sky?", first)
    other = second.headers["x-engine"]
    assert other != engine
    assert len(setting.scripts[other].bodies[-1]["input"]) == 4
    third = await ask(setting.one, "The land?", id_of(second))
    assert third.headers["x-engine"] == other
    assert setting.scripts[other].bodies[-1]["previous_response_id"] == id_of(second)


@scenario
async def test_the_record_names_the_engine_for_its_tenant_alone(world: World) -> None:
    setting = await start(world)
    first, engine = await first_turn(setting.one, "The sea?")
    assert await world.redis.client.hget(response_key("default", first), "engine") == engine
    plain = id_of(await ask(setting.one, "The sky?"))
    assert await world.redis.client.hget(response_key("default", plain), "engine") is None
    answer = await setting.other.http.get(f"{RESPONSES}/{first}")
    assert answer.json()["id"] == first
    assert sum(setting.asked.values()) == 2, "the router keeps the response, too"


@scenario
async def test_an_id_that_a_client_has_chosen_is_never_continued_at_an_engine(world: World) -> None:
    """Engines know no tenants: another one may have chosen the same id there."""
    setting = await start(world, takes_calls=True)
    first, _ = await first_turn(setting.one, "The sea?", request_id="resp_mine")
    assert await world.redis.client.hget(response_key("default", first), "engine") is None
    await ask(setting.one, "The sky?", first)
    bodies = [body for script in setting.scripts.values() for body in script.bodies]
    assert not any("previous_response_id" in body for body in bodies)


@scenario
async def test_a_turn_in_the_background_goes_to_that_engine_and_the_turn_after_it_is_whole(world: World) -> None:
    setting = await start(world, takes_calls=True)
    first, engine = await first_turn(setting.one, "The sea?")
    second = id_of(await ask(setting.other, "The sky?", first, background=True))
    await eventually(lambda: _has_ended(setting.one, second))
    assert setting.scripts[engine].bodies[-1]["previous_response_id"] == first
    third = await ask(setting.one, "The land?", second)  # its engine knows no such id
    assert len(setting.scripts[third.headers["x-engine"]].bodies[-1]["input"]) == 6


@scenario
async def test_without_a_ttl_a_session_has_an_engine_and_other_turns_ask_up_to_three(world: World) -> None:
    setting = await start(world, '[responses]\nttl = "0"\n', count=4)
    body = {"model": "llama", "input": "The sea?"}
    session = {"x-session-id": "s1"}
    first = id_of(await setting.one.post(RESPONSES, body, **session))
    second = await setting.other.post(RESPONSES, {**body, "previous_response_id": first}, **session)
    assert setting.asked == {second.headers["x-engine"]: 2}
    unknown = await ask(setting.one, "The sky?", "resp_unknown")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"] == "Response with id 'resp_unknown' not found."
    assert sum(setting.asked.values()) == 5
    for method, path in (("GET", first), ("DELETE", first), ("POST", f"{first}/cancel")):
        assert (await setting.one.http.request(method, f"{RESPONSES}/{path}")).status_code == 404


async def _has_ended(router: RouterClient, id_: str) -> bool:
    response: dict[str, Any] = (await router.http.get(f"{RESPONSES}/{id_}")).json()
    return bool(response["status"] == "completed")
