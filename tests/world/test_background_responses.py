"""`background: true` at /v1/responses, over two routers and one Redis."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from random import Random
from typing import Any, Final, NoReturn

import httpx
import pytest

from router.core.api_keys import hash_key
from router.core.cache.redis_keys import response_key
from router.core.endpoints.conversations import background_events
from router.core.endpoints.recording.sse import split_events
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.responses.background_records import BackgroundRecords
from router.shared.responses.response_records import ResponseRecords
from tests.support.conversations import RepeatingEngine, ask, id_of, response_of, texts_of
from tests.support.router_server import RouterClient, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.typed_answers import RESPONSES, typed_events
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

KEYS: Final = '[auth]\nmode = "keys"\n' + "".join(
    f'[[tenant]]\nname = "{name}"\nkeys = ["{hash_key(f"sk-{name}".encode())}"]\n' for name in ("acme", "beta")
)
TIMEOUTS: Final = '\n[timeouts]\nbetween_tokens = "10m"\n'
NOT_COMPLETE: Final = [(400, "previous_response_not_complete"), (400, "response_not_complete")]
KINDS: Final = [
    "response.created", "response.output_item.added", "response.content_part.added", "response.output_text.delta",
    "response.completed",
]  # fmt: skip


def limited(limit: str) -> str:
    """KEYS with a limit for acme."""
    return KEYS.replace("keys = [", f"{limit}\nkeys = [", 1)


class Setting:
    """Two routers with one engine, whose streams end once `script.may_end` is set."""

    def __init__(self, routers: list[WorldRouter], engine: ScriptedEngine, script: RepeatingEngine) -> None:
        self.one, self.other = routers
        self.engine = engine
        self.script = script


async def start(world: World, rest: str = "", *, router: str = "") -> Setting:
    script = RepeatingEngine()
    script.may_end.clear()
    engine = await world.scripted_engine(script=script)
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=rest + TIMEOUTS, router=router)
    return Setting([await world.router(text), await world.router(text)], engine, script)


async def begin(router: RouterClient, text: str = "The sea?", *args: Any, **fields: Any) -> dict[str, Any]:
    """The response object of one in the background."""
    return response_of(await ask(router, text, *args, background=True, **fields))


async def get(router: RouterClient, id_: str, query: str = "", **headers: str) -> httpx.Response:
    return await router.http.get(f"{RESPONSES}/{id_}{query}", headers=headers)


async def until_status(router: RouterClient, id_: str, status: str) -> dict[str, Any]:
    async def found() -> dict[str, Any] | None:
        answer = await get(router, id_)
        response: dict[str, Any] = answer.json()
        return response if answer.status_code == 200 and response["status"] == status else None

    result: dict[str, Any] = await eventually(found, 60)
    return result


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Without the heartbeats."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [frame for frame in split_events(answer.content) if not frame.startswith(b":")]
    return typed_events(b"".join(frames)) if frames else []


def kinds(answer: httpx.Response) -> list[str]:
    return [event["type"] for event in events_of(answer)]


# -- one that completes -----------------------------------------------------------------------------------------------


@scenario
async def test_the_client_is_answered_at_once_and_every_router_shows_the_state(world: World) -> None:
    setting = await start(world)
    queued = await begin(setting.one, instructions="Be brief.", metadata={"a": "b"})
    id_ = queued["id"]
    assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
    assert (queued["instructions"], queued["metadata"]) == ("Be brief.", {"a": "b"})
    running = await until_status(setting.other, id_, "in_progress")
    assert (running["id"], running["background"]) == (id_, True)
    setting.script.may_end.set()
    for router in (setting.one, setting.other):
        done = await until_status(router, id_, "completed")
        assert (done["id"], done["background"], texts_of(done["output"])) == (id_, True, ["The sea? Yes."])
    asked = json.loads(setting.engine.bodies[-1])
    assert "background" not in asked


@scenario
async def test_a_hit_is_completed_at_once(world: World) -> None:
    setting = await start(world)
    setting.script.may_end.set()
    first = await ask(setting.one, "The sea?")
    answers = [await ask(router, "The sea?", background=True) for router in (setting.one, setting.other)]
    assert [answer.headers["x-cache"] for answer in answers] == ["HIT"] * 2
    responses = [response_of(answer) for answer in answers]
    assert [response["status"] for response in responses] == ["completed"] * 2
    assert len({response["id"] for response in responses} | {id_of(first)}) == 3
    assert (await get(setting.one, responses[1]["id"])).json() == responses[1]
    assert len(setting.engine.bodies) == 1


@scenario
async def test_one_can_be_continued_and_continue_others(world: World) -> None:
    setting = await start(world)
    setting.script.may_end.set()
    first = id_of(await ask(setting.one, "The sea?"))
    second = await begin(setting.other, "The sky?", first)
    done = await until_status(setting.one, second["id"], "completed")
    assert [second["previous_response_id"], done["previous_response_id"]] == [first, first]
    third = await ask(setting.one, "The land?", second["id"])
    asked = json.loads(setting.engine.bodies[-1])["input"]
    assert texts_of(asked)[::2] == ["The sea?", "The sky?", "The land?"]
    listed = await setting.other.http.get(f"{RESPONSES}/{id_of(third)}/input_items")
    assert len(listed.json()["data"]) == 5


@scenario
async def test_one_that_is_running_cannot_be_continued_yet(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    assert await _refusals(setting, id_) == NOT_COMPLETE


async def _refusals(setting: Setting, id_: str) -> list[tuple[int, str]]:
    """Of a turn after it, and of a list of its items."""
    answers = [await ask(setting.other, "And?", id_), await get(setting.other, f"{id_}/input_items")]
    return [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]


@scenario
async def test_equal_requests_share_a_generation(world: World) -> None:
    setting = await start(world)
    ids = [(await begin(router))["id"] for router in (setting.one, setting.other, setting.one)]
    foreground = asyncio.ensure_future(ask(setting.other, "The sea?", stream=True))
    await asyncio.sleep(1)
    setting.script.may_end.set()
    assert (await foreground).headers["x-cache"] == "COALESCED"
    for id_ in ids:
        assert (await until_status(setting.one, id_, "completed"))["id"] == id_
    assert len(setting.engine.bodies) == 1


@scenario
async def test_a_request_without_the_cache_runs_in_the_background_too(world: World) -> None:
    setting = await start(world)
    answer = await setting.one.post(
        RESPONSES, {"model": "llama", "input": "The sea?", "background": True}, **{"cache-control": "no-store"}
    )
    setting.script.may_end.set()
    await until_status(setting.other, id_of(answer), "completed")


@scenario
async def test_it_has_two_lines_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    setting = await start(world, router='log_format = "json"')
    setting.script.may_end.set()
    with caplog.at_level(logging.INFO, "roundhouse.access"):
        answer = await ask(setting.one, "The sea?", background=True)
        id_ = id_of(answer)
        await eventually(lambda: _are(len(caplog.messages) == 2))
    lines = {line["request"]: line for line in map(json.loads, caplog.messages)}
    assert lines[answer.headers["x-request-id"]]["path"] == "POST /v1/responses background"
    own = lines[id_]
    assert (own["path"], own["cache"], own["outcome"], own["engine"]) == (RESPONSES, "MISS", "complete", "one")
    assert own["completion_tokens"] == 2


async def _are(value: bool) -> bool:
    return value


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"store": False}, 400, "background_not_stored"),
        ({"model": "unknown"}, 404, "model_not_found"),
        ({"input": []}, 400, None),
        ({"temperature": "hot"}, 400, None),
        ({"previous_response_id": "resp_9"}, 404, "previous_response_not_found"),
    ],
)
@scenario
async def test_what_is_refused_is_refused_at_once(
    world: World, fields: dict[str, Any], status: int, code: str | None
) -> None:
    setting = await start(world)
    answer = await setting.one.post(RESPONSES, {"model": "llama", "input": "The sea?", "background": True, **fields})
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    if code is not None:
        assert answer.json()["error"]["code"] == code
    assert [key async for key in world.redis.client.scan_iter(match="rh:1:response:*")] == []


@pytest.mark.parametrize("setting_text", ["max_background = 2", "max_background_per_tenant = 2"])
@scenario
async def test_no_more_run_at_once_than_the_settings_allow(world: World, setting_text: str) -> None:
    setting = await start(world, f"[responses]\n{setting_text}\n")
    ids = [(await begin(setting.one, f"{number}?"))["id"] for number in range(2)]
    refused = await ask(setting.one, "2?", background=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "background_limit")
    assert int(refused.headers["retry-after"]) > 0
    setting.script.may_end.set()
    for id_ in ids:
        await until_status(setting.one, id_, "completed")
    await begin(setting.one, "2?")


@scenario
async def test_it_counts_for_the_limits_of_its_tenant_until_it_ends(world: World) -> None:
    setting = await start(world, limited("concurrent_requests = 1"))
    id_ = (await begin(setting.one, key="sk-acme"))["id"]
    own = {"authorization": "Bearer sk-acme"}
    assert (await ask(setting.other, "The sky?", key="sk-acme")).status_code == 429
    # To look at it is no work for an engine.
    routers = (setting.one, setting.other)
    following = [asyncio.ensure_future(get(router, id_, "?stream=true", **own)) for router in routers]
    await asyncio.sleep(1)
    assert (await get(setting.other, id_, **own)).json()["status"] == "in_progress"
    assert (await ask(setting.other, "The sky?", key="sk-acme")).status_code == 429
    setting.script.may_end.set()
    assert [kinds(await each) for each in following] == [KINDS] * 2
    assert (await get(setting.one, id_, **own)).json()["status"] == "completed"
    assert (await ask(setting.other, "The sky?", key="sk-acme")).status_code == 200


@pytest.mark.parametrize(("method", "rest"), [("POST", "/cancel"), ("DELETE", "")])
@scenario
async def test_a_tenant_ends_its_response_though_that_takes_its_whole_limit(
    world: World, method: str, rest: str
) -> None:
    setting = await start(world, limited("concurrent_requests = 1"))
    id_ = (await begin(setting.one, key="sk-acme"))["id"]
    own = {"authorization": "Bearer sk-acme"}
    answer = await setting.other.http.request(method, f"{RESPONSES}/{id_}{rest}", headers=own)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("limit", ["tokens_per_minute = 5", "tokens_per_day = 5"])
@scenario
async def test_its_state_can_be_read_though_it_has_used_all_tokens_of_its_tenant(world: World, limit: str) -> None:
    setting = await start(world, limited(limit))
    setting.script.may_end.set()
    id_ = (await begin(setting.one, key="sk-acme"))["id"]
    await asyncio.sleep(1)
    assert (await ask(setting.other, "The sky?", key="sk-acme")).status_code == 429
    for query in ("", "?stream=true"):
        assert (await get(setting.other, id_, query, authorization="Bearer sk-acme")).status_code == 200


@pytest.mark.parametrize("has_redis", [True, False])
@scenario
async def test_a_tenant_without_tokens_still_has_a_limit_of_requests(world: World, has_redis: bool) -> None:
    setting = await start(world, limited("tokens_per_minute = 5\nrequests_per_minute = 3"))
    setting.script.may_end.set()
    await ask(setting.one, "The sea?", key="sk-acme")
    await asyncio.sleep(1)
    assert (await ask(setting.one, "The sky?", key="sk-acme")).status_code == 429
    if not has_redis:
        world.redis.stop()
    answers = [await get(setting.one, "resp_9", authorization="Bearer sk-acme") for _ in range(5)]
    assert [answer.status_code for answer in answers] == ([404] * 2 + [429] * 3 if has_redis else [503] * 3 + [429] * 2)


@scenario
async def test_without_redis_it_is_refused(world: World) -> None:
    setting = await start(world)
    world.redis.freeze()
    answer = await ask(setting.one, "The sea?", background=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_down")
    world.redis.thaw()


@scenario
async def test_one_that_was_refused_since_redis_did_not_answer_leaves_no_record(world: World) -> None:
    setting = await start(world)
    world.redis.freeze()
    # Without a lookup, the first command is the one that begins the record.
    body = {"model": "llama", "input": "The sea?", "background": True}
    answer = await setting.one.post(RESPONSES, body, **{"cache-control": "no-store, no-cache"})
    assert answer.status_code == 503
    world.redis.thaw()
    await asyncio.sleep(90)
    assert [key async for key in world.redis.client.scan_iter("rh:1:response:*")] == []


# -- one that does not complete ---------------------------------------------------------------------------------------


@scenario
async def test_one_whose_engine_fails_is_failed(world: World) -> None:
    engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))
    await engine.set_faults({"fault": "drop", "after": 3})
    id_ = (await begin(router))["id"]
    failed = await until_status(router, id_, "failed")
    assert (failed["id"], failed["error"]["code"]) == (id_, "server_error")
    streamed = await get(router, id_, "?stream=true")
    assert kinds(streamed)[-1] == "response.failed"


@scenario
async def test_one_whose_router_dies_is_failed_at_the_other(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    await until_status(setting.other, id_, "in_progress")
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    await asyncio.sleep(3)
    setting.one.kill()
    failed = await until_status(setting.other, id_, "failed")
    assert failed["error"] == {
        "code": "server_error",
        "message": "The router that generated the response is gone, or could not store it.",
    }  # fmt: skip
    assert kinds(await following)[-1] == "response.failed"
    assert kinds(await get(setting.other, id_, "?stream=true")) == ["response.created", "response.failed"]


@scenario
async def test_one_whose_router_stops_is_failed_at_once(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    await setting.one.stop()
    response = (await get(setting.other, id_)).json()
    assert (response["status"], response["error"]["message"]) == (
        "failed", "The router that generated the response was stopped.",
    )  # fmt: skip


@scenario
async def test_one_that_takes_too_long_is_failed(world: World) -> None:
    setting = await start(world, '[responses]\nbackground_timeout = "20s"\n')
    id_ = (await begin(setting.one))["id"]
    failed = await until_status(setting.other, id_, "failed")
    assert failed["error"]["message"] == "The response was not complete after 20 seconds."


@scenario
async def test_a_long_one_survives_a_pause_of_redis(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    await asyncio.sleep(120)
    world.redis.freeze()
    await asyncio.sleep(15)
    setting.script.may_end.set()
    await asyncio.sleep(5)
    world.redis.thaw()
    await until_status(setting.other, id_, "completed")


@scenario
async def test_one_whose_router_lives_survives_an_outage_of_redis_longer_than_its_lease(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    await asyncio.sleep(3)
    world.redis.freeze()
    await asyncio.sleep(40)
    polling = asyncio.ensure_future(_ended_status(setting.other, id_))
    await asyncio.sleep(1)
    world.redis.thaw()
    await asyncio.sleep(10)
    setting.script.may_end.set()
    assert await polling == "completed"


async def _ended_status(router: RouterClient, id_: str) -> str:
    while True:
        answer = await get(router, id_)
        if answer.status_code == 200 and answer.json()["status"] not in ("queued", "in_progress"):
            status: str = answer.json()["status"]
            return status
        await asyncio.sleep(0.1)


SMALL: Final = "The sea?"
WITH_LARGE_INPUT: Final = [*80 * [{"role": "user", "content": "x"}], {"role": "user", "content": "y"}]


@pytest.mark.parametrize(
    ("asked", "status", "can_be_continued"),
    [(SMALL, "completed", True), (WITH_LARGE_INPUT, "completed", False), ("x" * 4000, "failed", False)],
    ids=["small", "large input", "large"],
)
@scenario
async def test_one_is_stored_though_redis_refuses_that_at_first(
    world: World, monkeypatch: pytest.MonkeyPatch, asked: Any, status: str, can_be_continued: bool
) -> None:
    setting = await start(world, '[responses]\nmax_size = "2KiB"\n')
    id_ = (await begin(setting.one, asked))["id"]
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    await asyncio.sleep(1)
    refused: list[object] = []

    async def refuse(*arguments: Any, **_: Any) -> NoReturn:
        refused.append(arguments)
        raise RedisDownError

    with monkeypatch.context() as patch:
        patch.setattr(ResponseRecords, "store", refuse)
        patch.setattr(BackgroundRecords, "end", refuse)
        setting.script.may_end.set()
        await asyncio.sleep(5)
    assert refused
    ended = await until_status(setting.other, id_, status)
    assert "could not store it" not in str(ended["error"])
    assert kinds(await following)[-1] == f"response.{status}"
    assert (await get(setting.one, id_)).json() == ended
    assert ((await ask(setting.one, "And?", id_)).status_code == 200) == can_be_continued


@scenario
async def test_one_that_redis_does_not_store_for_its_whole_lease_is_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    await asyncio.sleep(1)

    async def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RedisDownError

    monkeypatch.setattr(ResponseRecords, "store", refuse)
    monkeypatch.setattr(BackgroundRecords, "end", refuse)
    setting.script.may_end.set()
    await asyncio.sleep(80)
    failed = (await get(setting.other, id_)).json()
    assert failed["error"]["message"] == "The router that generated the response is gone, or could not store it."


@scenario
async def test_redis_has_time_for_each_large_part_of_a_response(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = await start(world)
    large: list[int] = []
    execute = RedisPipeline.execute

    def record(self: RedisPipeline, *commands: Any, size: int = 0) -> Any:
        words = [word for command in commands if isinstance(command, tuple) for word in command]
        sent = sum(len(word) for word in words if isinstance(word, bytes))
        if sent > 10_000:
            large.append(sent)
            assert size >= sent
        return execute(self, *commands, size=size)

    monkeypatch.setattr(RedisPipeline, "execute", record)
    instructions = Random(1).randbytes(20_000).hex()
    id_ = (await begin(setting.one, instructions=instructions))["id"]
    await until_status(setting.other, id_, "in_progress")
    await cancel(setting.other, id_)
    await asyncio.sleep(10)
    assert kinds(await get(setting.other, id_, "?stream=true")) == [*KINDS[:-1], "response.cancelled"]
    # It begins, is in progress, is cancelled, and gets its events; it may be renewed while it is queued.
    assert len(large) in (4, 5)


# -- streams ----------------------------------------------------------------------------------------------------------


@scenario
async def test_a_stream_that_its_client_leaves_goes_on_and_is_resumed_at_another_router(world: World) -> None:
    setting = await start(world)
    seen: list[dict[str, Any]] = []
    body = {"model": "llama", "input": "The sea?", "background": True, "stream": True}
    async with setting.one.http.stream("POST", RESPONSES, json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                if len(seen) == 2:
                    break
    id_ = seen[0]["response"]["id"]
    await asyncio.sleep(30)
    resumed = asyncio.ensure_future(get(setting.other, id_, "?stream=true&starting_after=1"))
    whole = asyncio.ensure_future(get(setting.one, id_, "?stream=true"))
    await asyncio.sleep(40)  # a heartbeat comes after at most twice its 15 s
    assert not resumed.done()
    setting.script.may_end.set()
    rest = events_of(await resumed)
    assert [event["sequence_number"] for event in seen + rest] == list(range(5))
    assert [event["type"] for event in seen + rest] == KINDS
    assert {event["response"]["id"] for event in seen + rest if "response" in event} == {id_}
    assert events_of(await whole) == seen + rest
    assert b": heartbeat" in (await resumed).content
    for query, first in (("", 0), ("&starting_after=0", 1), ("&starting_after=3", 4), ("&starting_after=4", 5)):
        answer = await get(setting.other, id_, f"?stream=true{query}")
        assert events_of(answer) == (seen + rest)[first:]
    assert len(setting.engine.bodies) == 1


@scenario
async def test_a_stream_of_a_hit_has_its_events(world: World) -> None:
    setting = await start(world)
    setting.script.may_end.set()
    await ask(setting.one, "The sea?")
    answer = await ask(setting.one, "The sea?", background=True, stream=True)
    events = events_of(answer)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    id_ = events[0]["response"]["id"]
    assert (events[-1]["type"], events[-1]["response"]["id"]) == ("response.completed", id_)
    assert events_of(await get(setting.other, id_, "?stream=true")) == events


@scenario
async def test_an_event_that_ends_a_response_comes_after_it_is_stored(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    await asyncio.sleep(1)
    setting.script.may_end.set()
    assert kinds(await following)[-1] == "response.completed"
    assert (await ask(setting.one, "The sky?", id_)).status_code == 200


@scenario
async def test_a_stream_survives_a_pause_of_redis_and_of_the_router_that_generates(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    await asyncio.sleep(3)
    world.redis.freeze()
    await asyncio.sleep(8)
    world.redis.thaw()
    await asyncio.sleep(3)
    setting.one.freeze()
    await asyncio.sleep(8)
    setting.one.thaw()
    await asyncio.sleep(3)
    setting.script.may_end.set()
    assert kinds(await following) == KINDS


@scenario
async def test_each_outage_of_redis_may_take_as_long_in_a_stream(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    for _ in range(3):
        await asyncio.sleep(25)
        world.redis.freeze()
        await asyncio.sleep(8)
        world.redis.thaw()
    await asyncio.sleep(3)
    setting.script.may_end.set()
    assert kinds(await following) == KINDS


@scenario
async def test_nothing_is_written_for_those_that_have_left_once_another_follows(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    await until_status(setting.other, id_, "in_progress")
    for _ in range(3):
        following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
        await asyncio.sleep(10)
        assert await setting.one.run_inside(_count_written_streams(setting.one)) == 1
        following.cancel()
        await asyncio.sleep(10)


async def _count_written_streams(router: WorldRouter) -> int:
    return len(router.application._runtime.services.cache.leases._writers)


class SlowTalker(RepeatingEngine):
    """Says a word every five seconds, for 100 seconds."""

    async def _events(self, response: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        said = [event async for event in super()._events(response)]
        for event in said[:3] + 20 * [said[3]]:
            await asyncio.sleep(5)
            yield event
        yield said[4]


@scenario
async def test_a_client_that_reads_nothing_for_a_while_gets_each_event_once(world: World) -> None:
    engine = await world.scripted_engine(script=SlowTalker())
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=TIMEOUTS)
    routers = [await world.router(text), await world.router(text)]
    id_ = (await begin(routers[0]))["id"]
    # Also at the router that generates it.
    following = [
        asyncio.ensure_future(router.http.get(f"{RESPONSES}/{id_}?stream=true", timeout=120)) for router in routers
    ]
    await asyncio.sleep(22)
    for router in routers:
        await router.set_clients_read(False)
    await asyncio.sleep(50)
    for router in routers:
        await router.set_clients_read(True)
    for answer in following:
        events = events_of(await answer)
        assert [event["sequence_number"] for event in events] == list(range(24))
        assert events[-1]["type"] == "response.completed"


@scenario
async def test_events_that_are_too_large_are_not_kept_but_the_response_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_events, "MAX_LOG_SIZE", 800)
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    await until_status(setting.other, id_, "in_progress")
    late = events_of(await get(setting.other, id_, "?stream=true"))
    assert [(event["type"], event["error"]["param"]) for event in late] == [("error", "stream")]
    setting.script.may_end.set()
    await until_status(setting.other, id_, "completed")
    for query, numbers in (("", [0, 4]), ("&starting_after=2", [4]), ("&starting_after=4", [])):
        events = events_of(await get(setting.other, id_, f"?stream=true{query}"))
        assert [event["sequence_number"] for event in events] == numbers


@scenario
async def test_no_event_up_to_starting_after_is_sent_of_one_that_is_running(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    await until_status(setting.other, id_, "in_progress")
    numbers = (0, 3, 4, 999)
    following = [
        asyncio.ensure_future(get(setting.other, id_, f"?stream=true&starting_after={number}")) for number in numbers
    ]
    await asyncio.sleep(2)
    setting.script.may_end.set()
    for number, stream in zip(numbers, following, strict=True):
        assert [event["sequence_number"] for event in events_of(await stream)] == list(range(number + 1, 5))


@scenario
async def test_the_stream_of_one_that_was_cancelled_has_the_events_before(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    await until_status(setting.other, id_, "in_progress")
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    await asyncio.sleep(1)
    await cancel(setting.other, id_)
    # Its router may not have stored the events yet.
    assert kinds(await get(setting.one, id_, "?stream=true"))[0] == "response.created"
    events = events_of(await following)
    assert [event["type"] for event in events] == [*KINDS[:-1], "response.cancelled"]
    for number in (-1, 0, 2, 4, 9):
        query = f"&starting_after={number}" if number >= 0 else ""
        assert events_of(await get(setting.other, id_, f"?stream=true{query}")) == events[number + 1 :]


@scenario
async def test_a_stream_does_not_say_failed_of_one_that_completes_later(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    await asyncio.sleep(3)
    world.redis.freeze()
    with pytest.raises(httpx.RemoteProtocolError):
        await following
    world.redis.thaw()
    await asyncio.sleep(10)
    setting.script.may_end.set()
    await until_status(setting.one, id_, "completed")
    assert kinds(await get(setting.other, id_, "?stream=true")) == KINDS


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("?stream=true&starting_after=x", 400, "starting_after"),
        ("?stream=true&starting_after=-1", 400, "starting_after"),
        ("?stream=false&starting_after=x", 200, None),
    ],
)
@scenario
async def test_a_number_of_an_event_is_a_number(world: World, query: str, status: int, param: str | None) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    answer = await get(setting.one, id_, query)
    assert answer.status_code == status
    if param is not None:
        assert answer.json()["error"]["param"] == param


@scenario
async def test_what_was_not_made_in_the_background_is_no_stream(world: World) -> None:
    setting = await start(world)
    setting.script.may_end.set()
    id_ = id_of(await ask(setting.one, "The sea?"))
    answer = await get(setting.one, id_, "?stream=true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")
    assert (await get(setting.one, "resp_9", "?stream=true")).status_code == 404


# -- the ends that a client wants -------------------------------------------------------------------------------------


async def cancel(router: RouterClient, id_: str, **headers: str) -> httpx.Response:
    return await router.http.post(f"{RESPONSES}/{id_}/cancel", headers=headers)


@scenario
async def test_one_is_cancelled_at_any_router_and_stays_cancelled(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    await asyncio.sleep(1)
    for router in (setting.other, setting.one, setting.other):
        response = (await cancel(router, id_)).json()
        assert (response["id"], response["status"], response["error"]) == (id_, "cancelled", None)
    assert kinds(await following)[-1] == "response.cancelled"
    await eventually(lambda: _is_idle(setting.one))
    setting.script.may_end.set()
    assert (await get(setting.one, id_)).json()["status"] == "cancelled"
    assert await _refusals(setting, id_) == NOT_COMPLETE


async def _is_idle(router: WorldRouter) -> bool:
    metrics = await router.metrics()
    return all(value == 0 for name, value in metrics.items() if name.startswith("llm_requests_in_flight"))


@scenario
async def test_one_that_is_complete_stays_so(world: World) -> None:
    setting = await start(world)
    setting.script.may_end.set()
    id_ = (await begin(setting.one))["id"]
    done = await until_status(setting.one, id_, "completed")
    assert (await cancel(setting.other, id_)).json() == done


@scenario
async def test_only_what_was_made_in_the_background_is_cancelled(world: World) -> None:
    setting = await start(world, KEYS)
    setting.script.may_end.set()
    first = id_of(await ask(setting.one, "The sea?", key="sk-acme"))
    own = {"authorization": "Bearer sk-acme"}
    refused = await cancel(setting.one, first, **own)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_background")
    second = (await begin(setting.one, "The sky?", key="sk-acme"))["id"]
    for headers, status in (({"authorization": "Bearer sk-beta"}, 404), ({}, 401), (own, 200)):
        assert (await cancel(setting.other, second, **headers)).status_code == status
        assert (await get(setting.other, second, "?stream=true", **headers)).status_code == status
    assert (await cancel(setting.other, "resp_9", **own)).status_code == 404


@scenario
async def test_one_that_is_deleted_ends(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    assert (await setting.other.http.delete(f"{RESPONSES}/{id_}")).json()["deleted"] is True
    await eventually(lambda: _is_idle(setting.one))
    setting.script.may_end.set()
    await asyncio.sleep(10)
    assert (await get(setting.one, id_)).status_code == 404
    assert not await world.redis.client.exists(response_key("default", id_))


# -- what happens to the router ---------------------------------------------------------------------------------------


@scenario
async def test_a_router_that_drains_waits_for_it(world: World) -> None:
    setting = await start(world, router='drain = "5s"')
    id_ = (await begin(setting.one))["id"]
    await setting.one.run_inside(_drain(setting.one))
    stopping = asyncio.ensure_future(setting.one.stop())
    await asyncio.sleep(20)
    assert (await get(setting.other, id_)).json()["status"] == "in_progress"
    setting.script.may_end.set()
    await stopping
    assert (await get(setting.other, id_)).json()["status"] == "completed"


async def _drain(router: WorldRouter) -> None:
    router.application.drain()


@scenario
async def test_a_reload_changes_nothing_for_it(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    following = asyncio.ensure_future(get(setting.one, id_, "?stream=true"))
    await asyncio.sleep(1)
    text = router_config(world.redis.url, {"one": ("llama", "any", setting.engine.url)}, cache='ttl = "1h"')
    await setting.one.reload(text + TIMEOUTS)
    await asyncio.sleep(10)
    assert (await get(setting.one, id_)).json()["status"] == "in_progress"
    setting.script.may_end.set()
    assert kinds(await following) == KINDS
    assert (await get(setting.one, id_)).json()["status"] == "completed"


@scenario
async def test_what_was_failed_for_a_client_stays_failed_though_its_router_was_only_paused(world: World) -> None:
    setting = await start(world)
    id_ = (await begin(setting.one))["id"]
    await asyncio.sleep(1)
    setting.one.freeze()
    await until_status(setting.other, id_, "failed")
    setting.one.thaw()
    setting.script.may_end.set()
    await asyncio.sleep(10)
    for router in (setting.one, setting.other):
        assert (await get(router, id_)).json()["status"] == "failed"
    assert await setting.one.run_inside(_runs(setting.one)) == 0


async def _runs(router: WorldRouter) -> int:
    return len(router.application._runtime.services.cache.background)


@scenario
async def test_a_purge_of_its_tenant_ends_it(world: World) -> None:
    setting = await start(world, f'[auth]\nmode = "open"\nadmin_keys = ["{hash_key(b"sk-admin")}"]\n')
    id_ = (await begin(setting.one))["id"]
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    await asyncio.sleep(1)
    answer = await setting.other.http.post(
        "/admin/cache/purge", json={"tenant": "default"}, headers={"authorization": "Bearer sk-admin"}
    )
    assert answer.status_code == 200
    last = events_of(await following)[-1]
    assert (last["type"], last["error"]["code"]) == ("response.failed", "response_not_found")
    setting.script.may_end.set()
    await asyncio.sleep(10)
    assert (await get(setting.one, id_)).status_code == 404


@pytest.mark.parametrize("size", ["1MiB", "2KiB"])
@scenario
async def test_one_whose_purge_log_was_lost_ends_as_its_stream_says(world: World, size: str) -> None:
    setting = await start(world, f'[responses]\nmax_size = "{size}"\n')
    await setting.one.http.post("/admin/purge", json={})
    id_ = (await begin(setting.one, "x" * 800))["id"]
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    await asyncio.sleep(3)
    await world.redis.client.delete("rh:1:purge:log")
    await asyncio.sleep(30)
    setting.script.may_end.set()
    end = kinds(await following)[-1]
    for router in (setting.one, setting.other):
        assert f"response.{(await get(router, id_)).json()['status']}" == end
    await asyncio.sleep(60)
    assert f"response.{(await get(setting.other, id_)).json()['status']}" == end


@scenario
async def test_those_that_begin_just_after_redis_lost_its_data_complete(world: World) -> None:
    setting = await start(world)
    await setting.one.http.post("/admin/purge", json={})
    await begin(setting.one, "Before?")
    world.redis.stop()
    await asyncio.sleep(1)
    world.redis.start()
    ids: list[str] = []
    while len(ids) < 20:
        answer = await ask(setting.one, f"{len(ids)}?", background=True)
        if answer.status_code == 200:
            ids.append(answer.json()["id"])
        await asyncio.sleep(0.01)
    await asyncio.sleep(20)
    setting.script.may_end.set()
    await asyncio.sleep(5)
    assert [(await get(setting.other, id_)).json()["status"] for id_ in ids] == ["completed"] * 20


@scenario
async def test_a_large_one_can_be_read_and_not_continued(world: World) -> None:
    setting = await start(world, '[responses]\nmax_size = "2KiB"\n')
    setting.script.may_end.set()
    id_ = (await begin(setting.one, [{"role": "user", "content": "x"}] * 80 + [{"role": "user", "content": "y"}]))["id"]  # type: ignore[arg-type]
    done = await until_status(setting.other, id_, "completed")
    assert texts_of(done["output"]) == ["y Yes."]
    assert kinds(await get(setting.other, id_, "?stream=true"))[-1] == "response.completed"
    assert await _refusals(setting, id_) == NOT_COMPLETE


@scenario
async def test_one_that_is_too_large_itself_is_failed(world: World) -> None:
    setting = await start(world, '[responses]\nmax_size = "2KiB"\n')
    id_ = (await begin(setting.one, "x" * 4000))["id"]
    following = asyncio.ensure_future(get(setting.other, id_, "?stream=true"))
    await asyncio.sleep(1)
    setting.script.may_end.set()
    failed = await until_status(setting.other, id_, "failed")
    assert failed["error"]["message"] == "The response is larger than responses.max_size."
    assert kinds(await get(setting.other, id_, "?stream=true")) == ["response.created", "response.failed"]
    assert kinds(await following)[-1] == "response.failed"


@pytest.mark.parametrize("is_stream", [False, True])
@scenario
async def test_a_hit_that_is_too_large_is_failed_for_all(world: World, is_stream: bool) -> None:
    setting = await start(world, '[responses]\nmax_size = "2KiB"\n')
    setting.script.may_end.set()
    await ask(setting.one, "x" * 4000)
    answer = await ask(setting.one, "x" * 4000, background=True, stream=is_stream)
    assert answer.headers["x-cache"] == "HIT"
    response = events_of(answer)[-1]["response"] if is_stream else answer.json()
    assert response["status"] == "failed"
    assert (await get(setting.other, response["id"])).json() == response
