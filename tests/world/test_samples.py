"""Several kept answers to one request: `cache.samples`. Their ids distinguish answers."""

import asyncio
import json
from collections import Counter
from typing import Any, Final

import httpx
import pytest

from router.api.access.auth import hash_key
from router.core.cache.redis_keys import samples_key
from tests.support.router_server import router_config
from tests.support.sse_answers import parse_events
from tests.support.time_travel import DAY, backdate_entry
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario

FOUR: Final = "samples = 4"


def table(engine: WorldEngine) -> dict[str, tuple[str, str, str]]:
    return {"one": ("llama", "any", engine.url)}


async def start(world: World, cache: str = FOUR) -> tuple[WorldRouter, WorldRouter, WorldEngine]:
    """Two routers, and their engine."""
    engine = await world.engine()
    text = router_config(world.redis.url, table(engine), cache=cache)
    return await world.router(text), await world.router(text), engine


async def ask(router: WorldRouter, session: str | None = None, control: str = "", **fields: Any) -> httpx.Response:
    headers = {"x-session-id": session} if session is not None else {}
    return await router.chat("The sea?", headers=headers | ({"cache-control": control} if control else {}), **fields)


def answer_id(answer: httpx.Response) -> str:
    assert answer.status_code == 200
    if answer.headers["content-type"].startswith("text/event-stream"):
        first, *_ = parse_events(answer.content)
        return str(first["id"])
    return str(answer.json()["id"])


def cache_result(answer: httpx.Response) -> tuple[str, str | None]:
    """X-Cache and X-Cache-Reason."""
    return answer.headers["x-cache"], answer.headers.get("x-cache-reason")


@scenario
async def test_misses_fill_the_set_and_then_its_answers_are_handed_out_in_turn_by_all_routers(world: World) -> None:
    one, two, engine = await start(world)
    first = [await ask(router) for router in (one, two, one, two)]
    assert [cache_result(answer) for answer in first] == [("MISS", "new"), *[("MISS", "sample")] * 3]
    ids = [answer_id(answer) for answer in first]
    assert len(set(ids)) == 4
    again = [await ask(router) for router in (two, two, one, one, one)]
    assert [cache_result(answer) for answer in again] == [("HIT", None)] * 5
    assert [answer_id(answer) for answer in again] == [*ids, ids[0]]
    assert (await engine.stats())["started"] == 4
    keys = [answer.headers["x-cache-key"] for answer in first]
    assert keys == [keys[0], *[f"{keys[0]}.{number}" for number in (1, 2, 3)]]
    assert [answer.headers["x-cache-key"] for answer in again[:4]] == keys


@scenario
async def test_an_answer_that_was_stored_before_is_the_first_sample(world: World) -> None:
    one, _, engine = await start(world, cache="")
    old = await ask(one)
    await one.reload(router_config(world.redis.url, table(engine), cache=FOUR))
    assert answer_id(await ask(one)) == answer_id(old)
    assert cache_result(await ask(one)) == ("MISS", "sample")
    await one.reload(router_config(world.redis.url, table(engine)))
    assert [answer_id(await ask(one)) for _ in range(2)] == [answer_id(old)] * 2


@scenario
async def test_json_and_streams_share_the_samples(world: World) -> None:
    one, two, _ = await start(world)
    ids = [answer_id(await ask(one, stream=number % 2 == 0)) for number in range(4)]
    again = [await ask(two, stream=number % 2 == 1) for number in range(4)]
    assert [answer_id(answer) for answer in again] == ids
    assert {cache_result(answer) for answer in again} == {("HIT", None)}


@scenario
async def test_concurrent_requests_share_one_generation_for_each_sample(world: World) -> None:
    one, two, engine = await start(world)
    await engine.set_faults({"fault": "ttft", "ms": 300})
    answers = await asyncio.gather(*[ask((one, two)[n % 2], stream=n % 3 == 0) for n in range(40)])
    assert Counter(cache_result(answer)[0] for answer in answers) == {"MISS": 4, "COALESCED": 36}
    assert set(Counter(map(answer_id, answers)).values()) == {10}
    assert (await engine.stats())["started"] == 4


@scenario
async def test_a_session_never_gets_an_answer_twice(world: World) -> None:
    one, two, engine = await start(world)
    for _ in range(4):
        await ask(one)
    await engine.set_faults({"fault": "ttft", "ms": 300})
    routers = [(one, two)[n % 2] for n in range(12)]
    answers = [await ask(router, "s") for router in routers[:3]]
    assert {cache_result(answer) for answer in answers} == {("HIT", None)}
    answers += await asyncio.gather(*[ask(router, "s") for router in routers])
    assert Counter(map(cache_result, answers)) == {("HIT", None): 4, ("BYPASS", "session"): 11}
    assert len(set(map(answer_id, answers))) == 15
    # Another session gets what these have left, each once.
    others = [await ask(router, "other") for router in routers[:5]]
    assert len(set(map(answer_id, others))) == 5
    assert [cache_result(answer) for answer in others] == [*[("HIT", None)] * 4, ("BYPASS", "session")]
    assert {answer_id(answer) for answer in others[:4]} <= set(map(answer_id, answers))


@scenario
async def test_an_answer_beyond_those_of_a_session_replaces_the_next_one(world: World) -> None:
    one, _, _ = await start(world, cache="samples = 2")
    first, second = await ask(one, "s"), await ask(one, "s")
    third = await ask(one, "s")
    assert cache_result(third) == ("BYPASS", "session")
    assert "x-cache-key" not in third.headers
    kept = [answer_id(await ask(one)) for _ in range(4)]
    assert kept == [answer_id(second), answer_id(third)] * 2
    assert answer_id(first) not in kept


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"seed": 7}, {"seed": 7, "temperature": 1.5}])
@scenario
async def test_temperature_0_and_a_seed_have_one_answer(world: World, fields: dict[str, Any]) -> None:
    one, _, _ = await start(world)
    answers = [await ask(one, "s", **fields) for _ in range(3)]
    assert [cache_result(answer)[0] for answer in answers] == ["MISS", "HIT", "HIT"]
    assert len(set(map(answer_id, answers))) == 1
    assert not await world.redis.client.exists(samples_key(answers[0].headers["x-cache-key"]))


@scenario
async def test_several_choices_are_one_sample(world: World) -> None:
    one, _, _ = await start(world, cache="samples = 2")
    answers = [await ask(one, n=2, temperature=1) for _ in range(3)]
    assert [cache_result(answer)[0] for answer in answers] == ["MISS", "MISS", "HIT"]
    assert [len(answer.json()["choices"]) for answer in answers] == [2, 2, 2]


@scenario
async def test_no_cache_replaces_the_next_sample_and_counts_for_the_session(world: World) -> None:
    one, _, _ = await start(world, cache="samples = 2")
    old = [answer_id(await ask(one)) for _ in range(2)]
    new = await ask(one, "s", control="no-cache")
    assert cache_result(new) == ("BYPASS", "no-cache")
    assert [answer_id(await ask(one)) for _ in range(2)] == [old[1], answer_id(new)]
    assert answer_id(await ask(one, "s")) == old[1]


@scenario
async def test_max_age_concerns_the_next_sample(world: World) -> None:
    one, _, _ = await start(world, cache="samples = 2")
    first = [await ask(one) for _ in range(2)]
    await backdate_entry(world.redis.client, first[1].headers["x-cache-key"], 100)
    kept, renewed = await ask(one, control="max-age=60"), await ask(one, control="max-age=60")
    assert (cache_result(kept), cache_result(renewed)) == (("HIT", None), ("MISS", "expired"))
    assert [answer_id(await ask(one)) for _ in range(2)] == [answer_id(first[0]), answer_id(renewed)]


@scenario
async def test_a_purged_sample_is_added_again_when_it_is_next(world: World) -> None:
    engine = await world.engine()
    auth = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
    text = router_config(world.redis.url, table(engine), cache="samples = 2", rest=auth)
    one, two = await world.router(text), await world.router(text)
    first = [await ask(one) for _ in range(2)]
    key = first[1].headers["x-cache-key"]
    purge = await two.http.post("/admin/cache/purge", json={"key": key}, headers={"authorization": "Bearer admin"})
    assert purge.json()["entries"] == 1
    answers = [await ask(two) for _ in range(2)]
    assert [cache_result(answer) for answer in answers] == [("HIT", None), ("MISS", "purged")]
    assert answers[1].headers["x-cache-key"] == key


@scenario
async def test_without_an_engine_another_kept_answer_is_better_than_an_error(world: World) -> None:
    one, _, engine = await start(world)
    kept = [answer_id(await ask(one)) for _ in range(2)]
    await engine.set_faults({"fault": "status", "code": 500})
    answers = [await ask(one, "s") for _ in range(4)]
    assert {cache_result(answer) for answer in answers} == {("HIT", None)}
    assert set(map(answer_id, answers)) == set(kept)
    assert answer_id(await ask(one, "s")) in kept
    assert (await ask(one, "s", control="no-cache")).status_code >= 500


@scenario
async def test_without_an_engine_a_session_gets_the_only_sample_that_is_kept_again(world: World) -> None:
    one, _, engine = await start(world, cache="samples = 2")
    kept = await ask(one, "s")
    await engine.set_faults({"fault": "status", "code": 500})
    assert {answer_id(await ask(one, "s")) for _ in range(4)} == {answer_id(kept)}


@scenario
async def test_a_stale_sample_is_served_if_no_other_is_fresh(world: World) -> None:
    one, _, engine = await start(world, cache="samples = 2")
    kept = await ask(one)
    await backdate_entry(world.redis.client, kept.headers["x-cache-key"], DAY + 10)
    await engine.set_faults({"fault": "status", "code": 500})
    answers = [await ask(one) for _ in range(2)]
    assert [cache_result(answer)[0] for answer in answers] == ["STALE", "STALE"]
    assert {answer.headers["x-cache-key"] for answer in answers} == {kept.headers["x-cache-key"]}


@scenario
async def test_only_if_cached_gets_any_sample_that_is_kept(world: World) -> None:
    one, _, _ = await start(world)
    assert [(await ask(one, "s", "only-if-cached")).status_code for _ in range(4)] == [504] * 4
    first, second = await ask(one, "s"), await ask(one, "s")
    assert [cache_result(answer) for answer in (first, second)] == [("MISS", "new"), ("MISS", "sample")]
    await world.redis.client.delete(first.headers["x-cache-key"])
    answers = [await ask(one, control="only-if-cached") for _ in range(4)]
    assert {answer_id(answer) for answer in answers} == {answer_id(second)}


@scenario
async def test_a_model_that_is_only_looked_up_takes_no_turns(world: World) -> None:
    one, _, _ = await start(world, cache="samples = 2")
    kept = await ask(one)
    text = router_config(world.redis.url, table(await world.engine()), cache="samples = 2")
    reading = await world.router(text.replace("[[model]]", '[[model]]\ncache = "read"'))
    answers = [await ask(reading, "s") for _ in range(4)]
    assert {answer_id(answer) for answer in answers} == {answer_id(kept)}


@scenario
async def test_conversations_with_the_same_first_answer_are_not_one_session(world: World) -> None:
    one, _, engine = await start(world, cache="samples = 2")
    first = await one.post("/v1/responses", {"model": "llama", "input": "The sea?", "temperature": 0})
    turn = {"model": "llama", "input": "More?", "previous_response_id": first.json()["id"]}
    answers = [await one.post("/v1/responses", turn) for _ in range(6)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS"] * 2 + ["HIT"] * 4
    assert (await engine.stats())["started"] == 3


@scenario
async def test_after_a_purge_of_its_tenant_a_session_gets_new_samples(world: World) -> None:
    engine = await world.engine()
    auth = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
    one = await world.router(router_config(world.redis.url, table(engine), cache="samples = 2", rest=auth))
    for _ in range(3):
        last = await ask(one, "s")
    assert cache_result(last) == ("BYPASS", "session")
    purged = {"tenant": "default"}
    await one.http.post("/admin/cache/purge", json=purged, headers={"authorization": "Bearer admin"})
    assert cache_result(await ask(one, "s"))[0] == "MISS"


@scenario
async def test_while_redis_is_down_concurrent_requests_share_a_generation_as_ever(world: World) -> None:
    one, _, engine = await start(world)
    world.redis.stop()
    await asyncio.sleep(1)
    await engine.set_faults({"fault": "ttft", "ms": 300})
    answers = await asyncio.gather(*[ask(one) for _ in range(8)])
    assert Counter(cache_result(answer)[0] for answer in answers) == {"BYPASS": 1, "COALESCED": 7}
    world.redis.start()
    await asyncio.sleep(1)
    assert [cache_result(await ask(one))[0] for _ in range(5)] == ["MISS"] * 4 + ["HIT"]


@scenario
async def test_where_redis_takes_no_writes_the_first_sample_is_served(world: World) -> None:
    one, _, _ = await start(world)
    first, *_ = [await ask(one) for _ in range(4)]
    world.redis.is_full = True
    world.expected_errors.append("takes no writes")
    assert {answer_id(await ask(one, "s")) for _ in range(3)} == {answer_id(first)}


@scenario
async def test_the_settings_of_a_tenant_come_before_those_of_the_model_and_of_the_cache(world: World) -> None:
    engine = await world.engine()

    def text(cache: str, model: str, tenant: str) -> str:
        rest = f'[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n{tenant}\n[[tenant]]\nname = "other"\n'
        return router_config(world.redis.url, table(engine), cache=cache, rest=rest).replace(
            "aliases", f"{model}\naliases"
        )

    async def misses(tenant: str, prompt: str) -> int:
        answers = [await router.chat(prompt, headers={"x-tenant-id": tenant}) for _ in range(5)]
        return [cache_result(answer)[0] for answer in answers].count("MISS")

    router = await world.router(text("samples = 2", "", ""))
    assert (await misses("acme", "a"), await misses("other", "a")) == (2, 2)
    await router.reload(text("samples = 2", "samples = 3", "samples = 1"))
    assert (await misses("acme", "b"), await misses("other", "b")) == (1, 3)
    await router.reload(text("", "", "samples = 4"))
    assert (await misses("acme", "c"), await misses("other", "c")) == (4, 1)


@scenario
async def test_of_one_request_the_samples_given_to_the_last_sessions_are_remembered(world: World) -> None:
    one, _, _ = await start(world, cache="samples = 2\nttl = '1h'\nstale_if_error = '1h'")
    first = await ask(one, "person@example.com")
    key = samples_key(first.headers["x-cache-key"])
    client = world.redis.client
    assert "person" not in json.dumps(await client.zrevrange(key, 0, -1))
    assert 7190 <= await client.ttl(key) <= 7200
