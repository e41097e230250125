"""`item_reference` in the input of /v1/responses, over two routers and one Redis."""

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from itertools import count, repeat
from typing import Any, Final

import httpx
import pytest

from router.core.cache.redis_keys import response_key, response_sizes_key
from tests.support.conversations import RepeatingEngine, ask, id_of, response_of, user
from tests.support.router_server import RouterClient, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.typed_answers import RESPONSES
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario
from tests.world.test_response_memory import ADMIN, KEYS, kept_keys, kept_results
from tests.world.test_websocket import opened

Item = dict[str, Any]


class ItemEngine(RepeatingEngine):
    """Its items have ids of their own, as vLLM's do; those of RepeatingEngine are counted in each conversation."""

    def __init__(self, ids: Iterator[str] | None = None) -> None:
        super().__init__(ids)
        self._numbers = count(1)

    def _response(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = body["input"]
        items = [user(asked)] if isinstance(asked, str) else asked
        response = super()._response({**body, "input": [user(json.dumps(len(items)))]})
        response["output"][0]["id"] = f"msg_of_{next(self._numbers)}"
        return response


class ThinkingEngine(ItemEngine):
    """Each output has a long thought before its message."""

    def _response(self, body: dict[str, Any]) -> dict[str, Any]:
        response = super()._response(body)
        (message,) = response["output"]
        content = [{"type": "reasoning_text", "text": "z" * 2000}]
        thought = {"id": f"rs_of_{message['id']}", "type": "reasoning", "summary": [], "content": content}
        return {**response, "output": [thought, message]}


class Setting:
    """Two routers with one engine."""

    def __init__(self, routers: list[WorldRouter], engine: ScriptedEngine) -> None:
        self.one, self.other = routers
        self.engine = engine

    @property
    def last_input(self) -> list[Item]:
        """Of the last request that the engine got."""
        found: list[Item] = json.loads(self.engine.bodies[-1])["input"]
        return found


async def start(world: World, rest: str = "", *, router: str = "", script: RepeatingEngine | None = None) -> Setting:
    engine = await world.scripted_engine(script=script or ItemEngine())
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=rest, router=router)
    return Setting([await world.router(text), await world.router(text)], engine)


def reference(id_: str) -> Item:
    return {"type": "item_reference", "id": id_}


async def send(router: RouterClient, items: list[Item], previous: str | None = None, **fields: Any) -> httpx.Response:
    return await ask(router, items, previous, **fields)  # type: ignore[arg-type] # a list is an input, too


def item_of(answer: httpx.Response) -> Item:
    (item,) = response_of(answer)["output"]
    found: Item = item
    return found


async def not_found(router: RouterClient, id_: str, **fields: Any) -> bool:
    """Whether a reference gets the error of an unknown item, which the test expects; False if it was found."""
    answer = await send(router, [user("A"), reference(id_), user("B")], **fields)
    if answer.status_code == 200:
        return False
    assert (answer.status_code, answer.json()["error"]) == (
        404,
        {
            "message": f"Item with id '{id_[:128]}' not found.",
            "type": "invalid_request_error",
            "param": "input",
            "code": "item_not_found",
        },
    )
    return True


CALL: Final = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
RESULT: Final = {"type": "function_call_output", "call_id": "call_1", "output": "4"}


# -- found ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_an_engine_gets_the_item_in_place_of_its_reference(world: World, stream: bool) -> None:
    setting = await start(world)
    first = await ask(setting.one, "The sea?", stream=stream)
    item = item_of(first)
    for number, written in enumerate((reference(item["id"]), {"id": item["id"]})):
        text = f"The sky {number}?"
        second = await send(setting.other, [user("The sea?"), written, user(text)], stream=stream)
        whole = [user("The sea?"), item, user(text)]
        assert setting.last_input == whole
        assert second.headers["x-cache"] == "MISS"
        again = await send(setting.one, whole, stream=not stream)
        assert (again.headers["x-cache"], again.headers["x-cache-key"]) == ("HIT", second.headers["x-cache-key"])


@scenario
async def test_a_conversation_of_references_alone_lives_at_any_router(world: World) -> None:
    setting = await start(world)
    said: list[Item] = []
    history: list[Item] = []
    for number in range(20):
        history += [user(f"{number}?"), CALL, RESULT] if number else [CALL, RESULT]
        answer = await send((setting.one, setting.other)[number % 2], history, stream=number % 3 == 0)
        item = item_of(answer)
        assert [each for each in setting.last_input if each.get("role") == "assistant"] == said
        said.append(item)
        history.append(reference(item["id"]))
    assert await kept_results(setting.one) == await kept_results(setting.other) == {"stored": 10}


@scenario
async def test_hits_and_shared_responses_have_items_that_are_found(world: World) -> None:
    script = ItemEngine()
    setting = await start(world, script=script)
    script.may_end.clear()
    asked = [asyncio.ensure_future(ask(router, "The sea?", stream=True)) for router in (setting.one, setting.other)]
    await asyncio.sleep(1)
    script.may_end.set()
    answers = [*await asyncio.gather(*asked), await ask(setting.one, "The sea?")]
    assert sorted(answer.headers["x-cache"] for answer in answers) == ["COALESCED", "HIT", "MISS"]
    assert len({item_of(answer)["id"] for answer in answers}) == 1
    hit = await ask(setting.other, "The wind?")
    await world.redis.client.delete(response_key("default", id_of(hit)), response_sizes_key("default"))
    hit = await ask(setting.one, "The wind?")
    assert hit.headers["x-cache"] == "HIT"
    assert not await not_found(setting.other, item_of(hit)["id"])


@scenario
async def test_references_of_equal_requests_are_one_entry(world: World) -> None:
    setting = await start(world, KEYS)
    item = item_of(await ask(setting.one, "The sea?", key="sk-acme"))
    items = [user("The sea?"), reference(item["id"]), user("And?")]
    states = [(await send(router, items, key="sk-acme")).headers["x-cache"] for router in (setting.one, setting.other)]
    assert states == ["MISS", "HIT"]
    for tenant, result in (("acme", "HIT"), ("beta", None)):
        question = {"body": {"model": "llama", "input": items}, "path": RESPONSES, "tenant": tenant}
        explained = (await setting.one.http.post("/admin/cache/explain", json=question, headers=ADMIN)).json()
        assert explained.get("result") == result
    assert explained["error"]["code"] == "item_not_found"


@scenario
async def test_a_turn_may_have_a_previous_response_and_references(world: World) -> None:
    setting = await start(world)
    sea = item_of(await ask(setting.one, "The sea?"))
    sky = await ask(setting.one, "The sky?")
    third = await send(setting.other, [reference(sea["id"]), user("And?")], id_of(sky))
    assert setting.last_input == [user("The sky?"), item_of(sky), sea, user("And?")]
    await ask(setting.one, "Well?", id_of(third))
    assert setting.last_input == [user("The sky?"), item_of(sky), sea, user("And?"), item_of(third), user("Well?")]


@pytest.mark.parametrize("effort", ["low", None])
@scenario
async def test_thoughts_and_calls_that_are_referred_to_are_accepted(world: World, effort: str | None) -> None:
    engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))
    fields: dict[str, Any] = {"reasoning": {"effort": effort}} if effort else {}
    output = response_of(await ask(router, "The sea?", **fields))["output"]
    assert [item["type"] for item in output] == (["reasoning", "message"] if effort else ["message"])
    answer = await send(router, [user("The sea?"), *[reference(item["id"]) for item in output], user("And?")])
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
    assert (await send(router, [user("The sea?"), *output, user("And?")])).headers["x-cache"] == "HIT"


@scenario
async def test_background_responses_refer_and_are_referred_to(world: World) -> None:
    setting = await start(world)
    item = item_of(await ask(setting.one, "The sea?"))
    queued = await send(setting.other, [reference(item["id"]), user("And?")], background=True)
    path = f"{RESPONSES}/{response_of(queued)['id']}"

    async def completed() -> Any:
        response = (await setting.one.http.get(path)).json()
        return response if response["status"] == "completed" else None

    (answered,) = (await eventually(completed))["output"]
    assert setting.last_input == [item, user("And?")]
    assert not await not_found(setting.one, answered["id"])
    # A hit is another response with the same item.
    hit = await send(setting.one, [reference(item["id"]), user("And?")], background=True)
    assert (hit.headers["x-cache"], item_of(hit)) == ("HIT", answered)
    await setting.one.http.delete(path)
    assert not await not_found(setting.other, answered["id"])
    unknown = await send(setting.one, [reference("msg_9")], background=True)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "item_not_found")


@scenario
async def test_a_message_of_a_websocket_may_refer_to_items(world: World) -> None:
    setting = await start(world)
    item = item_of(await ask(setting.other, "The sea?"))
    async with opened(setting.one) as socket:
        items: Any = [reference(item["id"]), user("And?")]
        events = await socket.answer(items)
        assert setting.last_input == [item, user("And?")]
        response = events[-1]["response"]
        await socket.answer("More?", previous_response_id=response["id"])
        assert setting.last_input == [item, user("And?"), response["output"][0], user("More?")]
        (error,) = await socket.answer([reference("msg_9")])  # type: ignore[arg-type] # a list is an input, too
        assert (error["status"], error["error"]["code"]) == (404, "item_not_found")
    assert not await not_found(setting.other, response["output"][0]["id"])


# -- not found --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["", "msg_unknown", "a b", "x" * 129, "resp_1", ":bytes", "msg_of_1 msg_of_1", "*"])
@scenario
async def test_an_unknown_item_is_404_and_reaches_no_engine(world: World, id_: str) -> None:
    setting = await start(world)
    await ask(setting.one, "The sea?")
    assert await not_found(setting.other, id_, stream=True)
    assert len(setting.engine.bodies) == 1


@scenario
async def test_what_the_client_does_not_want_stored_is_not_found(world: World) -> None:
    setting = await start(world)
    for stream in (False, True):
        assert await not_found(setting.one, item_of(await ask(setting.one, "A?", store=False, stream=stream))["id"])
    assert await kept_keys(world) == []


@scenario
async def test_each_tenant_finds_its_own_items(world: World) -> None:
    # The items of this engine have the same ids in each conversation.
    setting = await start(world, KEYS, script=RepeatingEngine())
    for name in ("acme", "beta"):
        sent = item_of(await ask(setting.one, f"Of {name}?", key=f"sk-{name}"))
        assert sent["id"] == "msg_1"
    for name in ("acme", "beta"):
        await send(setting.other, [reference("msg_1"), user("And?")], key=f"sk-{name}")
        assert setting.last_input[0]["content"][0]["text"] == f"Of {name}? Yes."
    acme = item_of(await send(setting.one, [user("A"), user("B"), user("C")], key="sk-acme"))
    assert await not_found(setting.one, acme["id"], key="sk-beta")


@scenario
async def test_an_id_that_two_items_have_is_not_found(world: World) -> None:
    setting = await start(world, script=RepeatingEngine())
    for text in ("The sea?", "The sea?", "The sky?"):
        assert item_of(await ask(setting.one, text))["id"] == "msg_1"
        if text == "The sea?":
            assert not await not_found(setting.other, "msg_1", store=False)
    assert await not_found(setting.other, "msg_1")


@scenario
async def test_an_id_of_two_items_is_not_found_while_one_of_them_is_kept(world: World) -> None:
    setting = await start(world, script=RepeatingEngine())
    sea, sky = [id_of(await ask(setting.one, text)) for text in ("The sea?", "The sky?")]
    await setting.one.http.delete(f"{RESPONSES}/{sea}")
    wind = id_of(await ask(setting.one, "The wind?"))
    assert await not_found(setting.other, "msg_1", store=False), "who means the sky must not get the wind"
    for id_ in (sky, wind):
        await setting.one.http.delete(f"{RESPONSES}/{id_}")
    await ask(setting.one, "The rain?")
    assert not await not_found(setting.other, "msg_1", store=False)


@scenario
async def test_a_response_id_that_comes_again_and_again_takes_no_more_room(world: World) -> None:
    # As that of a client whose `request_id` is always the same.
    setting = await start(world, script=ItemEngine(repeat("resp_1")))
    for number in range(20):
        items = [await send(setting.one, [user(f"{number}?"), CALL, RESULT]), await ask(setting.one, f"{number}?")]
        fields = await world.redis.client.hgetall(response_sizes_key("default"))
        last = item_of(items[-1])["id"]
        assert fields.keys() == {":bytes", ":count", "resp_1", "items:resp_1", f"item:{last}"}


@scenario
async def test_an_item_goes_with_its_response(world: World) -> None:
    setting = await start(world, '[responses]\nttl = "60s"\nmax_per_tenant = 3\n' + KEYS)
    key = {"authorization": "Bearer sk-acme"}

    async def says(text: str) -> tuple[str, str]:
        answer = await ask(setting.one, text, key="sk-acme")
        return id_of(answer), item_of(answer)["id"]

    async def is_gone(item: str) -> bool:
        return await not_found(setting.other, item, key="sk-acme", store=False)

    deleted, item = await says("0?")
    assert not await is_gone(item)
    await setting.other.http.delete(f"{RESPONSES}/{deleted}", headers=key)
    assert await is_gone(item)
    (_, oldest), (_, used), *_ = [await says(f"{number}?") for number in range(1, 4)]
    await asyncio.sleep(1)
    assert not await is_gone(used)
    (_, last), (_, other) = await says("4?"), await says("5?")
    assert [await is_gone(each) for each in (oldest, used, last, other)] == [True, False, False, False]
    for _ in range(2):
        await asyncio.sleep(50)
        assert not await is_gone(used), "a reference prolongs the life of what it refers to"
    assert await is_gone(last)
    await asyncio.sleep(61)
    assert await is_gone(used)
    _, purged = await says("6?")
    assert not await is_gone(purged)
    await setting.one.http.post("/admin/cache/purge", json={"tenant": "acme"}, headers=ADMIN)
    assert await is_gone(purged)
    _, emptied = await says("7?")
    await world.redis.client.flushall()
    assert await is_gone(emptied)


# -- what is kept -----------------------------------------------------------------------------------------------------


@scenario
async def test_of_a_client_that_keeps_its_history_only_the_output_is_kept(world: World) -> None:
    setting = await start(world)
    answer = await send(setting.one, [user("The sea? " * 500), CALL, RESULT])
    id_ = id_of(answer)
    held = await world.redis.client.hgetall(response_key("default", id_))
    assert held.keys() == {"output", "created"}
    assert json.loads(held["output"]) == [item_of(answer)]
    assert (await ask(setting.one, "And?", id_)).status_code == 404
    assert (await setting.one.http.get(f"{RESPONSES}/{id_}")).status_code == 404
    assert not await not_found(setting.one, item_of(answer)["id"])
    assert (await setting.one.http.delete(f"{RESPONSES}/{id_}")).status_code == 200
    assert await not_found(setting.one, item_of(answer)["id"])


@scenario
async def test_a_stream_does_not_hold_the_history_that_is_not_kept(world: World) -> None:
    script = ItemEngine()
    setting = await start(world, script=script)
    script.may_end.clear()
    requests: list[dict[str, Any]] = [{"store": False}, {"store": False}, {}]
    grown: list[int] = []
    streams = []
    tracemalloc.start()
    try:
        for fields in requests:
            before, _ = tracemalloc.get_traced_memory()
            history = [user(f"{len(grown)} " + "z" * 1_000_000), CALL, RESULT]
            streams.append(asyncio.ensure_future(send(setting.one, history, stream=True, **fields)))
            del history
            await asyncio.sleep(1)
            grown.append(round((tracemalloc.get_traced_memory()[0] - before) / 1_000_000))
    finally:
        tracemalloc.stop()
    assert grown[2] == grown[1], "megabytes"
    script.may_end.set()
    assert [answer.status_code for answer in await asyncio.gather(*streams)] == [200] * 3
    assert await kept_results(setting.one) == {"stored": 1}


@scenario
async def test_items_of_a_response_whose_turn_is_too_large_are_found(world: World) -> None:
    setting = await start(world, '[responses]\nmax_size = "2KiB"\n')
    answer = await ask(setting.one, "The sea? " * 250)
    assert await kept_results(setting.one) == {"too-large": 1}
    assert not await not_found(setting.other, item_of(answer)["id"])


@scenario
async def test_without_a_ttl_references_are_left_to_the_engine(world: World) -> None:
    setting = await start(world, '[responses]\nttl = "0"\n')
    answer = await send(setting.one, [reference("msg_9"), user("And?")])
    assert answer.headers["x-cache-reason"] == "uncacheable"
    assert setting.last_input == [reference("msg_9"), user("And?")]


# -- bounds, Redis ----------------------------------------------------------------------------------------------------


@scenario
async def test_an_input_has_at_most_the_bytes_of_a_body_with_what_it_refers_to(world: World) -> None:
    setting = await start(world, router='max_body = "3KiB"')
    ids = [item_of(await ask(setting.one, f"{number}?"))["id"] for number in range(25)]
    many = await send(setting.one, [reference(id_) for id_ in ids])
    same = await send(setting.one, [reference(ids[0])] * 25)
    for answer in (many, same):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert answer.json()["error"]["param"] == "input"
    assert (await send(setting.one, [reference(ids[0])] * 5)).status_code == 200


@scenario
async def test_outputs_with_the_items_have_at_most_the_bytes_of_a_body_as_explained(world: World) -> None:
    setting = await start(world, KEYS, router='max_body = "3KiB"', script=ThinkingEngine())
    answers = [await ask(setting.one, f"{number}?", key="sk-acme") for number in range(2)]
    ids = [response_of(answer)["output"][1]["id"] for answer in answers]
    for named, status in ((ids[:1], 200), (ids, 413)):
        items = [user("A"), *[reference(id_) for id_ in named], user("B")]
        question = {"body": {"model": "llama", "input": items}, "path": RESPONSES, "tenant": "acme"}
        explained = await setting.one.http.post("/admin/cache/explain", json=question, headers=ADMIN)
        answer = await send(setting.other, items, key="sk-acme")
        assert (explained.status_code, answer.status_code) == (status, status)
        assert explained.json().get("error") == answer.json().get("error")


@scenario
async def test_what_is_referred_to_counts_for_the_memory_of_bodies(world: World) -> None:
    setting = await start(world, router='max_body = "8KiB"\nmax_bodies = "8KiB"')
    id_ = item_of(await ask(setting.one, "0?"))["id"]
    answer = await send(setting.one, [reference(id_)] * 30, metadata={"of": "z" * 3000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "bodies_full")


@scenario
async def test_a_request_has_at_most_so_many_references(world: World) -> None:
    setting = await start(world)
    ids = [item_of(await ask(setting.one, f"{number}?"))["id"] for number in range(3)]
    assert (await send(setting.other, [reference(ids[number % 3]) for number in range(2000)])).status_code == 200
    assert [item["id"] for item in setting.last_input] == [ids[number % 3] for number in range(2000)]
    answer = await send(setting.one, [reference(ids[0])] * 2001)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_references")


@scenario
async def test_items_of_many_responses_are_read_in_batches(world: World) -> None:
    setting = await start(world)
    ids = [item_of(await ask(setting.one, f"{number}?"))["id"] for number in range(250)]
    assert (await send(setting.other, [reference(id_) for id_ in ids])).status_code == 200
    assert [item["id"] for item in setting.last_input] == ids


@scenario
async def test_without_redis_a_reference_is_503_and_when_redis_is_full_it_is_found(world: World) -> None:
    setting = await start(world)
    item = item_of(await ask(setting.one, "The sea?"))
    world.redis.is_full = True
    answer = await send(setting.other, [reference(item["id"]), user("And?")], store=False)
    assert (answer.status_code, setting.last_input) == (200, [item, user("And?")])
    world.redis.is_full = False
    world.redis.stop()
    answer = await send(setting.other, [reference(item["id"]), user("More?")])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_down")
