"""`store` and `previous_response_id` at /v1/responses, over two routers and one Redis."""

import asyncio
import json
from collections.abc import Iterator
from itertools import repeat
from typing import Any, Final

import pytest

from router.core.api_keys import hash_key
from router.core.cache.redis_keys import RESPONSES_PATTERN, response_key, response_sizes_key, responses_key
from router.shared.responses import kept_response
from tests.support.conversations import (
    PREVIOUS_NOT_FOUND,
    RepeatingEngine,
    ask,
    id_of,
    response_of,
    said,
    texts_of,
    user,
)
from tests.support.router_server import RouterClient, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.typed_answers import RESPONSES
from tests.support.waiting import collect, eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

ADMIN: Final = {"authorization": "Bearer sk-admin"}
KEYS: Final = f'[auth]\nmode = "keys"\nadmin_keys = ["{hash_key(b"sk-admin")}"]\n' + "".join(
    f'[[tenant]]\nname = "{name}"\nkeys = ["{hash_key(f"sk-{name}".encode())}"]\n' for name in ("acme", "beta")
)


class Setting:
    """Two routers with one engine."""

    def __init__(self, routers: list[WorldRouter], engine: ScriptedEngine, script: RepeatingEngine) -> None:
        self.one, self.other = routers
        self.engine = engine
        self.script = script

    @property
    def last_input(self) -> list[dict[str, Any]]:
        """Of the last request that the engine got."""
        body = json.loads(self.engine.bodies[-1])
        assert "previous_response_id" not in body
        found: list[dict[str, Any]] = body["input"]
        return found


async def start(world: World, rest: str = "", *, ids: Iterator[str] | None = None, router: str = "") -> Setting:
    script = RepeatingEngine(ids)
    engine = await world.scripted_engine(script=script)
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=rest, router=router)
    return Setting([await world.router(text), await world.router(text)], engine, script)


async def kept_results(router: RouterClient) -> dict[str, float]:
    name = "roundhouse_kept_responses_total"
    return {
        sample.removeprefix(f'{name}{{result="').removesuffix('"}'): value
        for sample, value in (await router.metrics()).items()
        if sample.startswith(name)
    }


async def kept_keys(world: World) -> list[str]:
    return [key async for key in world.redis.client.scan_iter(match=RESPONSES_PATTERN)]


# -- turns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_turn_at_another_router_has_all_that_was_said_before(world: World, stream: bool) -> None:
    setting = await start(world)
    first = await ask(setting.one, "The sea?", stream=stream, instructions="Be brief.")
    second = await ask(setting.other, "The sky?", id_of(first), stream=stream)
    third = await ask(setting.one, "The land?", id_of(second), stream=not stream)
    assert setting.last_input == [
        user("The sea?"), said("The sea?", 1), user("The sky?"), said("The sky?", 3), user("The land?"),
    ]  # fmt: skip
    assert [answer.headers["x-cache"] for answer in (first, second, third)] == ["MISS"] * 3
    assert response_of(third)["instructions"] is None, "those of a turn hold for that turn"


@scenario
async def test_a_stream_ends_once_its_response_is_stored(world: World) -> None:
    setting = await start(world)
    setting.script.may_end.clear()
    body = {"model": "llama", "input": "The sea?", "stream": True}
    async with setting.one.http.stream("POST", RESPONSES, json=body) as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if line == "event: response.output_text.delta":
                break
        world.redis.freeze()
        setting.script.may_end.set()
        seen: list[str] = []
        rest = asyncio.ensure_future(collect(lines, seen))
        await asyncio.sleep(1)  # its timeout here is 2.5 s
        assert not rest.done()
        world.redis.thaw()
        await rest
        assert "event: response.completed" in seen
    assert await world.redis.client.exists(response_key("default", "resp_1"))


@scenario
async def test_a_hit_is_sent_once_its_response_is_stored(world: World) -> None:
    setting = await start(world)
    await eventually(lambda: _is_local(setting.one))
    world.redis.freeze()
    asked = asyncio.ensure_future(ask(setting.one, "The sea?"))
    await asyncio.sleep(1)
    assert not asked.done()
    world.redis.thaw()
    assert (await asked).headers["cache-status"].endswith("detail=local")


async def _is_local(router: WorldRouter) -> bool:
    return (await ask(router, "The sea?")).headers["cache-status"].endswith("detail=local")


@scenario
async def test_the_same_turns_are_hits_and_a_hit_can_be_continued(world: World) -> None:
    setting = await start(world)
    for cache in ("MISS", "HIT", "HIT"):
        first = await ask(setting.one, "The sea?")
        second = await ask(setting.other, "The sky?", id_of(first), stream=cache == "MISS")
        assert [answer.headers["x-cache"] for answer in (first, second)] == [cache, cache]
    third = await ask(setting.one, "The land?", id_of(second))
    assert response_of(third)["output"] == [said("The land?", 5)]
    assert len(setting.engine.bodies) == 3


@scenario
async def test_the_same_conversation_may_come_in_one_piece(world: World) -> None:
    setting = await start(world)
    first = await ask(setting.one, "The sea?")
    second = await ask(setting.one, "The sky?", id_of(first), store=True)
    third = await ask(setting.one, "The land?", id_of(second))
    whole = [user("The sea?"), said("The sea?", 1), user("The sky?")]
    again = await ask(setting.one, whole, store=True)  # type: ignore[arg-type] # a list is an input, too
    assert (id_of(again), again.headers["x-cache"]) == (id_of(second), "HIT")
    await ask(setting.other, "The wind?", id_of(third))
    assert texts_of(setting.last_input)[::2] == ["The sea?", "The sky?", "The land?", "The wind?"]
    # What came in one piece needs no turn before it.
    await setting.one.http.delete(f"{RESPONSES}/{id_of(first)}")
    await ask(setting.other, "The wind!", id_of(third))
    assert texts_of(setting.last_input)[::2] == ["The sea?", "The sky?", "The land?", "The wind!"]
    # The turns of before come back: what needs no other stays.
    await ask(setting.one, "The sea?")
    assert id_of(await ask(setting.one, "The sky?", id_of(first), store=True)) == id_of(second)
    await setting.one.http.delete(f"{RESPONSES}/{id_of(first)}")
    assert (await ask(setting.other, "The moon?", id_of(second))).status_code == 200


@scenario
async def test_a_follower_can_continue_what_it_got(world: World) -> None:
    setting = await start(world)
    setting.script.may_end.clear()
    leading = asyncio.ensure_future(ask(setting.one, "The sea?", stream=True))
    await eventually(lambda: _is(setting.engine.bodies))
    following = asyncio.ensure_future(ask(setting.other, "The sea?", stream=True))
    await asyncio.sleep(0.5)
    setting.script.may_end.set()
    first, second = await leading, await following
    assert (second.headers["x-cache"], id_of(first)) == ("COALESCED", id_of(second))
    for answer in (first, second):
        assert (await ask(setting.one, "The sky?", id_of(answer))).status_code == 200
    assert len(setting.engine.bodies) == 2


async def _is(value: object) -> bool:
    return bool(value)


@scenario
async def test_a_conversation_may_fork(world: World) -> None:
    setting = await start(world)
    first = id_of(await ask(setting.one, "The sea?"))
    left, right = [id_of(await ask(setting.one, text, first)) for text in ("The sky?", "The land?")]
    for previous, text in ((left, "The sky?"), (right, "The land?")):
        await ask(setting.other, "And?", previous)
        assert texts_of(setting.last_input)[::2] == ["The sea?", text, "And?"]


@scenario
async def test_a_turn_of_a_chain_is_routed_by_its_first_response_unless_the_client_names_a_session(
    world: World,
) -> None:
    engines = [await world.engine() for _ in range(4)]
    table = {f"e{number}": ("llama", "any", engine.url) for number, engine in enumerate(engines)}
    router = await world.router(router_config(world.redis.url, table))
    by_root, by_session = list[set[str]](), list[set[str]]()
    for number in range(8):
        first = id_of(await ask(router, f"The sea {number}?"))
        answers = [await ask(router, text, first) for text in ("And?", "But?", "So?")]
        by_root.append({answer.headers["x-engine"] for answer in answers})
        named = [await ask(router, text, first, prompt_cache_key="session") for text in ("Or?", "If?")]
        by_session.append({answer.headers["x-engine"] for answer in named})
        assert {answer.headers["x-cache"] for answer in answers + named} == {"MISS"}
    assert {len(engines) for engines in by_root + by_session} == {1}
    assert len(set.union(*by_root)) > 1
    assert by_session != by_root


# -- what is not stored -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_what_the_client_does_not_want_stored_is_not(world: World, stream: bool) -> None:
    setting = await start(world)
    first = await ask(setting.one, "The sea?", store=False, stream=stream)
    assert (await ask(setting.one, "The sky?", id_of(first))).status_code == 404
    assert await kept_keys(world) == []


@scenario
async def test_a_response_that_has_failed_is_not_stored(world: World) -> None:
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", (await world.engine()).url)}))
    engine = world._engines[0]
    await engine.set_faults({"fault": "drop", "after": 3})
    answer = await ask(router, "The sea?", stream=True)
    assert b"response.completed" not in answer.content
    assert await kept_keys(world) == []
    assert await kept_results(router) == {}


@scenario
async def test_without_a_ttl_the_engine_is_asked_as_ever(world: World) -> None:
    setting = await start(world, '[responses]\nttl = "0"\n')
    first = await ask(setting.one, "The sea?")
    second = await ask(setting.one, "The sky?", id_of(first))
    assert second.headers["x-cache-reason"] == "uncacheable"
    assert json.loads(setting.engine.bodies[-1])["previous_response_id"] == id_of(first)
    assert (await setting.one.http.get(f"{RESPONSES}/{id_of(first)}")).json()["error"]["code"] == "not_found"
    assert await kept_keys(world) == []


@scenario
async def test_what_only_an_engine_keeps_is_left_to_it(world: World) -> None:
    setting = await start(world)
    await ask(setting.one, "The sea?", conversation="conv_1")
    body = json.loads(setting.engine.bodies[-1])
    assert (body["input"], body["conversation"]) == ("The sea?", "conv_1")
    assert await kept_keys(world) == []


@scenario
async def test_a_response_over_its_size_is_not_stored(world: World) -> None:
    setting = await start(world, '[responses]\nmax_size = "2KiB"\n')
    first = await ask(setting.one, "The sea? " * 250)
    assert (await ask(setting.one, "And?", id_of(first))).status_code == 404
    assert await kept_results(setting.one) == {"too-large": 1}


# -- not found --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["", "resp_unknown", "a b", "x" * 129, "../resp_1", "resp_1:x", "*"])
@scenario
async def test_an_unknown_id_is_404_and_reaches_no_engine(world: World, id_: str) -> None:
    setting = await start(world)
    await ask(setting.one, "The sea?")
    answer = await ask(setting.one, "The sky?", id_, stream=True)
    assert answer.status_code == 404
    assert answer.json()["error"] == {
        "message": f"Previous response with id '{id_[:128]}' not found.",
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": PREVIOUS_NOT_FOUND,
    }
    assert len(setting.engine.bodies) == 1


@scenario
async def test_no_tenant_finds_what_is_anothers(world: World) -> None:
    setting = await start(world, KEYS)
    first = id_of(await ask(setting.one, "The sea?", key="sk-acme"))
    assert (await ask(setting.one, "The sky?", first, key="sk-beta")).json()["error"]["code"] == PREVIOUS_NOT_FOUND
    other = {"authorization": "Bearer sk-beta"}
    for method, path in (("GET", first), ("GET", f"{first}/input_items"), ("DELETE", first)):
        answer = await setting.one.http.request(method, f"{RESPONSES}/{path}", headers=other)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")
        assert (await setting.one.http.request(method, f"{RESPONSES}/{path}")).status_code == 401
    assert (await ask(setting.other, "The sky?", first, key="sk-acme")).status_code == 200


@scenario
async def test_a_deleted_response_is_gone_with_what_needs_it(world: World) -> None:
    setting = await start(world)
    first = id_of(await ask(setting.one, "The sea?"))
    second = id_of(await ask(setting.one, "The sky?", first))
    gone = await setting.other.http.delete(f"{RESPONSES}/{first}")
    assert (gone.status_code, gone.json()) == (200, {"id": first, "object": "response", "deleted": True})
    assert (await setting.other.http.delete(f"{RESPONSES}/{first}")).status_code == 404
    for id_ in (first, second):
        assert (await ask(setting.one, "And?", id_)).json()["error"]["code"] == PREVIOUS_NOT_FOUND
    assert (await setting.one.http.get(f"{RESPONSES}/{second}")).status_code == 200
    assert (await setting.one.http.get(f"{RESPONSES}/{second}/input_items")).status_code == 404
    assert await world.redis.client.zrevrange(responses_key("default"), 0, -1) == [second]


@scenario
async def test_a_turn_prolongs_the_life_of_the_turns_before_it(world: World) -> None:
    setting = await start(world, '[responses]\nttl = "60s"\n')
    last = first = id_of(await ask(setting.one, "0?"))
    for number in range(1, 4):
        await asyncio.sleep(50)
        last = id_of(await ask(setting.one, f"{number}?", last))
    await asyncio.sleep(50)
    assert (await ask(setting.one, "And?", last, store=False)).status_code == 200
    assert texts_of(setting.last_input)[0] == "0?"
    await asyncio.sleep(11)
    for id_ in (first, last):
        assert (await ask(setting.one, "Well?", id_)).json()["error"]["code"] == PREVIOUS_NOT_FOUND
    assert await kept_keys(world) == []


async def left_of(world: World, id_: str) -> float:
    """How long a response is kept, in seconds."""
    milliseconds: int = await world.redis.client.pttl(response_key("default", id_))
    return round(milliseconds / 1000, 1)


@scenario
async def test_the_turns_before_are_prolonged_once_a_tenth_of_their_time_has_passed(world: World) -> None:
    setting = await start(world, '[responses]\nttl = "100s"\n')
    first = last = id_of(await ask(setting.one, "0?"))
    for number in range(1, 5):
        await asyncio.sleep(4)
        last = id_of(await ask(setting.one, f"{number}?", last))
        assert await left_of(world, last) == pytest.approx(100, abs=0.5)
        assert await left_of(world, first) == pytest.approx({1: 96, 2: 92, 3: 100, 4: 96}[number], abs=0.5)


@pytest.mark.parametrize("ttls", [("100s", "1h"), ("1h", "100s")])
@scenario
async def test_a_turn_with_another_ttl_prolongs_the_turns_before_at_once(world: World, ttls: tuple[str, str]) -> None:
    first = id_of(await ask((await start(world, f'[responses]\nttl = "{ttls[0]}"\n')).one, "The sea?"))
    ids = iter(["resp_2"])
    await ask((await start(world, f'[responses]\nttl = "{ttls[1]}"\n', ids=ids)).one, "The sky?", first)
    assert await left_of(world, first) == pytest.approx({"1h": 3600, "100s": 100}[ttls[1]], abs=0.5)


@scenario
async def test_an_equal_turn_does_not_prolong_again(world: World) -> None:
    setting = await start(world, '[responses]\nttl = "100s"\n')
    first = id_of(await ask(setting.one, "The sea?"))
    await asyncio.sleep(20)
    for cache, left in (("MISS", 100), ("HIT", 96)):
        assert (await ask(setting.one, "The sky?", first)).headers["x-cache"] == cache
        assert await left_of(world, first) == pytest.approx(left, abs=0.5)
        await asyncio.sleep(4)


@scenario
async def test_turns_before_that_could_not_be_prolonged_are_prolonged_by_the_next_turn(world: World) -> None:
    setting = await start(world, '[responses]\nttl = "100s"\n')
    first = id_of(await ask(setting.one, "0?"))
    second = id_of(await ask(setting.one, "1?", first))
    await asyncio.sleep(20)
    setting.script.may_end.clear()
    asked = asyncio.ensure_future(ask(setting.one, "2?", second, stream=True))
    await eventually(lambda: _is(len(setting.engine.bodies) == 3))
    key = response_key("default", second)
    record = await world.redis.client.hgetall(key)
    await world.redis.client.set(key, "of another type")
    setting.script.may_end.set()
    third = id_of(await asked)
    await world.redis.client.delete(key)
    await world.redis.client.hset(key, mapping=record)
    await asyncio.sleep(4)
    assert await left_of(world, first) == pytest.approx(96, abs=0.5)
    await ask(setting.one, "3?", third)
    for id_ in (first, second, third):
        assert await left_of(world, id_) == pytest.approx(100, abs=0.5)


@scenario
async def test_a_conversation_stays_while_others_come(world: World) -> None:
    setting = await start(world, "[responses]\nmax_per_tenant = 30\n")
    last = id_of(await ask(setting.one, "0?"))
    for number in range(1, 6):
        for other in range(20):
            await ask(setting.one, f"other {number} {other}?")
        last = id_of(await ask(setting.one, f"{number}?", last))
    assert (await ask(setting.other, "And?", last)).status_code == 200
    assert texts_of(setting.last_input)[::2] == [*[f"{number}?" for number in range(6)], "And?"]


@scenario
async def test_a_tenant_keeps_those_that_it_used_last(world: World) -> None:
    setting = await start(world, "[responses]\nmax_per_tenant = 3\n")
    ids = []
    for number in range(3):
        ids.append(id_of(await ask(setting.one, f"{number}?")))
        await asyncio.sleep(1)
    ids.append(id_of(await ask(setting.one, "And?", ids[0])))
    await eventually(lambda: _is_gone(world, ids[1]))
    assert await kept_results(setting.one) == {"stored": 4, "removed": 1}
    statuses = [(await ask(setting.other, "Well?", id_, store=False)).status_code for id_ in ids]
    assert statuses == [200, 404, 200, 200]


@scenario
async def test_a_tenant_keeps_at_most_so_many_bytes(world: World) -> None:
    setting = await start(world, '[responses]\nmax_bytes_per_tenant = "24KiB"\nmax_size = "10KiB"\n')
    ids = []
    for number in range(3):
        ids.append(id_of(await ask(setting.one, f"{number}?" + "x" * 2000)))  # three times in its record
        await asyncio.sleep(1)
    ids.append(id_of(await ask(setting.one, "And?", ids[0])))
    ids.append(id_of(await ask(setting.one, "x" * 2000)))
    await eventually(lambda: _is_gone(world, ids[1]))
    assert await kept_results(setting.one) == {"stored": 5, "removed": 1}
    statuses = [(await setting.other.http.get(f"{RESPONSES}/{id_}")).status_code for id_ in ids]
    assert statuses == [200, 404, 200, 200, 200]
    sizes = await world.redis.client.hgetall(response_sizes_key("default"))
    assert {name for name in sizes if "item" not in name} == {*ids, ":bytes", ":count"} - {ids[1]}
    assert sum(int(sizes[id_]) for id_ in ids if id_ in sizes) == int(sizes[":bytes"]) <= 24 << 10
    for id_ in ids:
        await setting.other.http.delete(f"{RESPONSES}/{id_}")
    assert await world.redis.client.hgetall(response_sizes_key("default")) == {":bytes": "0", ":count": "0"}


async def _is_gone(world: World, id_: str) -> bool:
    return not await world.redis.client.exists(response_key("default", id_))


# -- bounds -----------------------------------------------------------------------------------------------------------


@scenario
async def test_a_conversation_has_at_most_so_many_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from router.flow.memory import conversation_gateway

    monkeypatch.setattr(conversation_gateway, "MAX_TURNS", 3)
    setting = await start(world)
    last = id_of(await ask(setting.one, "0?"))
    for number in (1, 2):
        last = id_of(await ask(setting.one, f"{number}?", last))
    answer = await ask(setting.one, "3?", last)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "conversation_too_long")
    assert len(setting.engine.bodies) == 3


@scenario
async def test_a_conversation_has_at_most_the_bytes_of_a_body(world: World) -> None:
    setting = await start(world, router='max_body = "3KiB"')
    last = id_of(await ask(setting.one, "x" * 1000))
    answer = await ask(setting.one, "y" * 1000, last)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert (await ask(setting.one, "y" * 10, last)).status_code == 200


@scenario
async def test_the_whole_of_a_conversation_counts_for_the_memory_of_bodies(world: World) -> None:
    setting = await start(world, router='max_body = "8KiB"\nmax_bodies = "8KiB"')
    last = id_of(await ask(setting.one, "x" * 2000))
    answer = await ask(setting.one, "y" * 3000, last, metadata={"of": "z" * 1500})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "bodies_full")


# -- ids that come twice ----------------------------------------------------------------------------------------------


@scenario
async def test_an_id_that_two_conversations_have_continues_neither(world: World) -> None:
    setting = await start(world, ids=iter(["resp_1", "resp_2", "resp_1", "resp_3"]))
    first = id_of(await ask(setting.one, "The sea?"))
    second = id_of(await ask(setting.one, "The sky?", first))
    assert id_of(await ask(setting.other, "Another matter?")) == first
    assert (await ask(setting.one, "And?", first)).json()["error"]["code"] == PREVIOUS_NOT_FOUND
    assert (await setting.one.http.get(f"{RESPONSES}/{first}")).status_code == 404
    assert await kept_results(setting.other) == {"collision": 1}
    # The turn that follows the first one knows which one it follows.
    assert (await ask(setting.one, "And?", second)).status_code == 200
    assert texts_of(setting.last_input)[::2] == ["The sea?", "The sky?", "And?"]


@scenario
async def test_an_id_that_comes_again_after_a_deletion_takes_no_turn_of_the_other_conversation(world: World) -> None:
    setting = await start(world, ids=iter(["resp_1", "resp_2", "resp_1", "resp_3"]))
    first = id_of(await ask(setting.one, "The sea?"))
    second = id_of(await ask(setting.one, "The sky?", first))
    await setting.one.http.delete(f"{RESPONSES}/{first}")
    await ask(setting.other, "Another matter?")
    assert (await ask(setting.one, "And?", second)).json()["error"]["code"] == PREVIOUS_NOT_FOUND


@scenario
async def test_an_engine_that_gives_one_id_to_all_mixes_nothing(world: World) -> None:
    setting = await start(world, ids=repeat("resp"))
    for text in ("The sea?", "The sky?"):
        assert (await ask(setting.one, text)).status_code == 200
    for router in (setting.one, setting.other):
        assert (await ask(router, "And?", "resp")).json()["error"]["code"] == PREVIOUS_NOT_FOUND


@scenario
async def test_an_id_that_is_no_name_is_not_stored(world: World) -> None:
    setting = await start(world, ids=iter(["resp:1 *"]))
    assert (await ask(setting.one, "The sea?")).status_code == 200
    assert await kept_keys(world) == []
    assert await kept_results(setting.one) == {"invalid": 1}


# -- GET --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_response_can_be_read_as_it_was_sent(world: World, stream: bool) -> None:
    setting = await start(world)
    first = response_of(await ask(setting.one, "The sea?", stream=stream))
    second = response_of(await ask(setting.one, "The sky?", first["id"], stream=stream))
    found = [(await setting.other.http.get(f"{RESPONSES}/{each['id']}")).json() for each in (first, second)]
    assert found == [first, {**second, "previous_response_id": first["id"]}]
    refused = await setting.other.http.get(f"{RESPONSES}/{first['id']}?stream=true")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")


@scenario
async def test_the_input_of_a_response_is_all_that_it_was_made_from(world: World) -> None:
    setting = await start(world)
    first = id_of(await ask(setting.one, "The sea?"))
    second = id_of(await ask(setting.one, "The sky?", first))
    path = f"{RESPONSES}/{second}/input_items"
    listed = (await setting.other.http.get(f"{path}?order=asc")).json()
    assert texts_of(listed["data"]) == ["The sea?", "The sea? Yes.", "The sky?"]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "The sea?"}]
    ids = [item["id"] for item in listed["data"]]
    assert (listed["first_id"], listed["last_id"], ids[1]) == (ids[0], ids[2], "msg_1")
    newest = (await setting.other.http.get(f"{path}?limit=2")).json()
    assert ([item["id"] for item in newest["data"]], newest["has_more"]) == ([ids[2], ids[1]], True)
    rest = (await setting.other.http.get(f"{path}?after={ids[1]}")).json()
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == ([ids[0]], False)
    wrong = {"limit=0": "limit", "limit=101": "limit", "limit=x": "limit", "order=up": "order", "after=no": "after"}
    for query, param in wrong.items():
        answer = await setting.other.http.get(f"{path}?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


# -- Redis, purges ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_without_redis_a_response_arrives_and_nothing_is_continued_without_its_history(
    world: World, stream: bool
) -> None:
    setting = await start(world)
    first = id_of(await ask(setting.one, "The sea?"))
    world.redis.stop(loses_data=False)
    assert (await ask(setting.one, "The sky?", stream=stream)).status_code == 200
    assert await kept_results(setting.one) == {"stored": 1, "failed": 1}
    refused = [
        await ask(setting.one, "And?", first, stream=stream),
        await setting.one.http.get(f"{RESPONSES}/{first}"),
        await setting.one.http.get(f"{RESPONSES}/{first}/input_items"),
        await setting.one.http.delete(f"{RESPONSES}/{first}"),
    ]
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in refused] == [(503, "redis_down")] * 4
    assert all(answer.headers["retry-after"] for answer in refused)
    world.redis.start()
    await asyncio.sleep(1)
    assert (await ask(setting.one, "And?", first)).status_code == 200


@scenario
async def test_a_frozen_redis_delays_the_end_of_a_response_by_its_timeout(world: World) -> None:
    setting = await start(world)
    setting.script.may_end.clear()
    asked = asyncio.ensure_future(ask(setting.one, "The sea?", stream=True))
    await eventually(lambda: _is(setting.engine.bodies))
    await asyncio.sleep(0.2)
    world.redis.freeze()
    setting.script.may_end.set()
    begun = asyncio.get_running_loop().time()
    assert response_of(await asked)["status"] == "completed"
    assert asyncio.get_running_loop().time() - begun < 6  # its timeout here is 2.5 s
    world.redis.thaw()


@scenario
async def test_a_full_redis_stores_nothing_and_serves_what_it_has(world: World) -> None:
    setting = await start(world)
    first = id_of(await ask(setting.one, "The sea?"))
    world.redis.is_full = True
    second = await ask(setting.one, "The sky?", first)
    assert second.status_code == 200
    assert await kept_results(setting.one) == {"stored": 1, "failed": 1}
    world.redis.is_full = False
    assert (await ask(setting.one, "And?", id_of(second))).json()["error"]["code"] == PREVIOUS_NOT_FOUND


@pytest.mark.parametrize(
    ("scope", "left"),
    [({"all": True}, []), ({"tenant": "acme"}, ["beta"]), ({"model": "llama"}, ["acme", "beta"])],
    ids=["all", "tenant", "model"],
)
@scenario
async def test_a_purge_of_a_tenant_or_of_all_deletes_its_responses(
    world: World, scope: dict[str, Any], left: list[str]
) -> None:
    setting = await start(world, KEYS)
    ids = {name: id_of(await ask(setting.one, "The sea?", key=f"sk-{name}")) for name in ("acme", "beta")}
    purged = await setting.other.http.post("/admin/cache/purge", json=scope, headers=ADMIN)
    assert purged.json()["responses"] == 2 - len(left)
    for name, id_ in ids.items():
        answer = await ask(setting.one, "And?", id_, key=f"sk-{name}", store=False)
        assert answer.status_code == (200 if name in left else 404)
    kept = {
        key for name in left for key in (responses_key(name), response_sizes_key(name), response_key(name, ids[name]))
    }
    assert set(await kept_keys(world)) == kept


@scenario
async def test_a_response_that_was_in_progress_at_a_purge_is_not_stored(world: World) -> None:
    setting = await start(world, KEYS)
    setting.script.may_end.clear()
    asked = asyncio.ensure_future(ask(setting.one, "The sea?", key="sk-acme", stream=True))
    await eventually(lambda: _is(setting.engine.bodies))
    await asyncio.sleep(0.2)
    await setting.other.http.post("/admin/cache/purge", json={"tenant": "acme"}, headers=ADMIN)
    await asyncio.sleep(0.2)
    setting.script.may_end.set()
    first = id_of(await asked)
    assert await kept_results(setting.one) == {"purged": 1}
    assert (await ask(setting.one, "And?", first, key="sk-acme")).status_code == 404


@scenario
async def test_a_record_of_another_form_is_not_found(world: World) -> None:
    setting = await start(world)
    await world.redis.client.hset(response_key("default", "resp_x"), mapping={"digest": "d", "size": "many"})
    assert (await ask(setting.one, "And?", "resp_x")).status_code == 404
    await world.redis.client.set(response_key("default", "resp_1"), "mine")
    assert (await ask(setting.one, "The sea?")).status_code == 200
    assert await kept_results(setting.one) == {"failed": 1}
    await asyncio.sleep(0.1)
    assert await world.redis.client.exists(responses_key("default")) == 0, "what could not be written is not counted"


def test_all_turns_of_a_conversation_can_be_read() -> None:
    assert kept_response.MAX_TURNS >= 1000
