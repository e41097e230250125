"""Failing engines: what the client receives, which engine takes over, and that nothing is stored."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.support.fault_timeouts import timeouts_for
from tests.support.foreign_script import ForeignScript
from tests.support.purge_log import keys_except_log
from tests.support.router_server import chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, chat_text, parse_events
from tests.support.waiting import eventually, read_until
from tests.world.http import PORT
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import PROBED, World, scenario
from tests.world.scripted import scripted_router

Fault = dict[str, Any]
SECRET = "sk-secret-1234567890"

BEFORE_ANY_TOKEN: list[tuple[Fault, bool]] = [
    ({"fault": "status", "code": 500}, False),
    ({"fault": "status", "code": 500}, True),
    ({"fault": "status", "code": 429, "retry_after": "7"}, False),
    ({"fault": "status", "code": 404}, True),
    ({"fault": "status", "code": 401}, False),
    ({"fault": "error", "after": 3}, False),
    ({"fault": "error", "after": 0}, True),
    ({"fault": "drop"}, False),
    ({"fault": "drop", "how": "close"}, True),
    ({"fault": "drop", "after": 3}, False),
    ({"fault": "drop", "after": 0}, True),
    ({"fault": "malformed"}, False),
    ({"fault": "malformed"}, True),
    ({"fault": "stall", "after": 0}, True),
]
AFTER_SOME_TOKENS: list[Fault] = [
    {"fault": "error", "after": 3},
    {"fault": "drop", "after": 3},
    {"fault": "drop", "after": 3, "how": "close"},
    {"fault": "stall", "after": 3},
]


def named(value: Any) -> str:
    return "-".join(map(str, value.values())) if isinstance(value, dict) else "stream" if value else "json"


async def router_for(world: World, engines: WorldEngines, fault: Fault) -> WorldRouter:
    """Starts a router whose engines will have the fault."""
    return await world.router(router_config(world.redis.url, engines.as_config(), rest=timeouts_for(fault)))


async def on_llamas(engines: WorldEngines, fault: Fault) -> None:
    await asyncio.gather(engines.chat.set_faults(fault), engines.code.set_faults(fault))


async def _is_asked_again(router: WorldRouter) -> bool:
    engines = (await router.http.get("/healthz")).json()["engines"].values()
    return all(engine["state"] != "refused" for engine in engines)


async def nothing_was_kept(router: WorldRouter, engines: WorldEngines, redis: Any, *, stream: bool) -> None:
    """Checks that nothing was stored: writes of earlier requests precede the hit of a later one."""
    await asyncio.gather(engines.chat.clear_faults(), engines.code.clear_faults())
    sentinel = (await router.chat("A well answered one", model="mistral")).headers["x-cache-key"]
    assert (await router.chat("A well answered one", model="mistral")).headers["x-cache"] == "HIT"
    assert await keys_except_log(redis) == {sentinel}
    await eventually(lambda: _is_asked_again(router))  # engines that refused the router's key
    assert (await router.chat("The sea?", stream=stream)).headers["x-cache"] == "MISS"
    assert (await router.chat("The sea?", stream=stream)).headers["x-cache"] == "HIT"


@pytest.mark.parametrize(("fault", "stream"), BEFORE_ANY_TOKEN, ids=named)
@scenario
async def test_another_engine_takes_over_before_the_first_token(world: World, fault: Fault, stream: bool) -> None:
    engines = await world.engines()
    router = await router_for(world, engines, fault)
    await engines.chat.set_faults(fault)
    answer = await router.chat("The sea?", stream=stream)
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
    assert (answer.headers["x-engine"], answer.headers["x-task"]) == ("llama-code", "chat")
    assert chat_text(answer)
    assert answer.content.endswith(DONE_FRAME) is stream
    assert (await router.chat("The sea?", stream=stream)).headers["x-cache"] == "HIT"
    retries = {name: value for name, value in (await router.metrics()).items() if "llm_retries_total" in name}
    assert len(retries) == 1
    assert 'engine="llama-chat"' in next(iter(retries))


@pytest.mark.parametrize(("fault", "stream"), BEFORE_ANY_TOKEN, ids=named)
@scenario
async def test_when_every_engine_fails_the_client_gets_an_error_and_nothing_is_stored(
    world: World, fault: Fault, stream: bool
) -> None:
    engines = await world.engines()
    redis = world.redis.client
    router = await router_for(world, engines, fault)
    await on_llamas(engines, fault)
    answer = await router.chat("The sea?", stream=stream, headers={"x-request-id": "mine"})
    expected = {"stall": 504}.get(fault["fault"], {429: 503, 404: 404}.get(fault.get("code", 0), 502))
    assert answer.status_code == expected
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert (answer.headers["x-cache"], answer.headers["x-request-id"]) == ("MISS", "mine")
    assert answer.headers["x-cache-key"].startswith("rh:1:default:llama:")
    assert ("retry-after" in answer.headers) is (expected == 503)
    assert "engine-" not in answer.text, "addresses of the internal network are not revealed"
    await nothing_was_kept(router, engines, redis, stream=stream)


@pytest.mark.parametrize("fault", AFTER_SOME_TOKENS, ids=named)
@scenario
async def test_a_stream_that_fails_ends_with_one_error_without_done_and_is_not_stored(
    world: World, fault: Fault
) -> None:
    engines = await world.engines()
    redis = world.redis.client
    router = await router_for(world, engines, fault)
    await on_llamas(engines, fault)
    answer = await router.chat("The sea?", stream=True)
    assert answer.status_code == 200
    assert b"[DONE]" not in answer.content
    *well, last = parse_events(answer.content)
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert not any("error" in event for event in well)
    assert any(event["choices"][0]["delta"].get("content") for event in well)
    metrics = await router.metrics()
    assert sum(v for k, v in metrics.items() if re.match("llm_cache_writes_total.*(error|incomplete)", k)) == 1
    assert sum(v for k, v in metrics.items() if k.startswith("llm_requests_total") and 'status="broken"' in k) == 1
    await nothing_was_kept(router, engines, redis, stream=True)


@scenario
async def test_a_stream_that_lacks_only_its_end_is_completed_and_not_stored(world: World) -> None:
    engines = await world.engines()
    redis = world.redis.client
    fault = {"fault": "no_done"}
    router = await router_for(world, engines, fault)
    await on_llamas(engines, fault)
    answer = await router.chat("The sea?", stream=True)
    assert answer.content.endswith(DONE_FRAME)
    assert not any("error" in event for event in parse_events(answer.content))
    await nothing_was_kept(router, engines, redis, stream=True)


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_response_without_a_finish_reason_is_forwarded_and_not_stored(world: World, stream: bool) -> None:
    engines = await world.engines()
    redis = world.redis.client
    router = await world.router(router_config(world.redis.url, engines.as_config()))
    await on_llamas(engines, {"fault": "no_finish"})
    answer = await router.chat("The sea?", stream=stream)
    assert (answer.status_code, answer.content.endswith(DONE_FRAME)) == (200, stream)
    assert chat_text(answer)
    assert (await router.metrics())['llm_cache_writes_total{result="incomplete"}'] == 1
    await nothing_was_kept(router, engines, redis, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_slow_response_ends_at_its_total_time_limit(world: World, stream: bool) -> None:
    engines = await world.engines()
    limits = '[timeouts]\nfirst_token = "200ms"\nbetween_tokens = "60s"\nmin_tokens_per_second = 1000'
    table = {"mistral": engines.as_config()["mistral"]}
    router = await world.router(router_config(world.redis.url, table, rest=limits))
    before = (await engines.mistral.stats())["aborted"]
    await engines.mistral.set_faults({"fault": "tps", "rate": 20})
    answer = await router.chat("The sea?", model="mistral", stream=stream, max_tokens=100)
    if stream:
        assert len(parse_events(answer.content)) < 40
        assert "error" in parse_events(answer.content)[-1]
    else:
        assert answer.status_code == 504
    await engines.mistral.stats(aborted=before + 1, in_flight=0)


@scenario
async def test_the_number_of_requests_in_flight_returns_to_zero_whatever_happens(world: World) -> None:
    engines = await world.engines()
    router = await router_for(world, engines, {"fault": "stall"})
    markers = ["", "[[sim:status code=500]]", "[[sim:error after=2]]", "[[sim:drop after=2]]", "[[sim:stall after=2]]"]
    markers += ["[[sim:stall after=0]]", "[[sim:malformed]]", "[[sim:no_done]]", "far too long " * 5000]
    await asyncio.gather(
        *(router.chat(f"{m}{s}", stream=s) for m in markers for s in (False, True) if s or "stall" not in m)
    )
    async with router.http.stream("POST", "/v1/chat/completions", json=chat_body(markers[4], stream=True)) as answer:
        stream = answer.aiter_bytes()
        await read_until(stream, bool)
    await asyncio.gather(*(engine.stats(in_flight=0) for engine in engines))
    health = (await router.http.get("/healthz")).json()
    assert {name: engine["in_flight"] for name, engine in health["engines"].items()} == dict.fromkeys(
        engines.as_config(), 0
    )


@scenario
async def test_an_engine_that_is_gone_is_skipped_and_then_excluded(world: World) -> None:
    dying_engine = await world.engine()
    engines = await world.engines()
    table = {**engines.as_config(), "llama-chat": ("llama", "chat", dying_engine.url)}
    router = await world.router(router_config(world.redis.url, table))
    assert (await router.chat("The sea?")).headers["x-engine"] == "llama-chat"
    await asyncio.sleep(PROBED)  # no check is in progress, so the requests find it down
    dying_engine.kill()
    for n in range(3):
        assert (await router.chat(f"The sea {n}?")).headers["x-engine"] == "llama-code"
    failed = {k: v for k, v in (await router.metrics()).items() if "llm_retries_total" in k}
    assert sum(failed.values()) <= 2, "its idle connection, and a refused one"
    assert (await router.metrics())['roundhouse_engine_up{engine="llama-chat"}'] == 0
    await asyncio.sleep(PROBED)  # the cause that a check finds replaces that of a request
    metrics = await router.metrics()
    words = "engine llama-chat is down: cannot connect to the engine"
    labels = f'kind="engine",problem="{words}",severity="critical",subject="llama-chat"'
    problems = [name for name in metrics if name.startswith("roundhouse_problem")]
    assert problems == [f"roundhouse_problem{{{labels}}}"]


@scenario
async def test_with_every_engine_gone_the_response_is_503_with_retry_after_and_hits_are_served(world: World) -> None:
    dying_engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", dying_engine.url)}))
    await router.chat("The sea?")
    dying_engine.kill()
    await router.chat("Its kept connection breaks at this one")
    answer = await router.chat("Is anybody there?")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")
    assert int(answer.headers["retry-after"]) >= 1
    assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"


@scenario
async def test_a_request_that_crashes_an_engine_goes_to_the_next(world: World) -> None:
    dying_engine = await world.engine()
    engines = await world.engines()
    table = {"llama-chat": ("llama", "chat", dying_engine.url), "llama-code": ("llama", "code", engines.code.url)}
    router = await world.router(router_config(world.redis.url, table))
    await dying_engine.set_faults({"fault": "exit", "after": 0, "code": 3})
    answer = await router.chat("The sea?", stream=True)
    assert (answer.status_code, answer.headers["x-engine"]) == (200, "llama-code")
    assert dying_engine.process.dead


@scenario
async def test_an_engines_error_about_the_request_reaches_the_client(world: World) -> None:
    engines = await world.engines()
    router = await world.router(router_config(world.redis.url, engines.as_config()))
    for stream in (False, True):
        answer = await router.chat("far too long " * 5000, stream=stream)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert "maximum context length is 4096 tokens" in error["message"]
        assert (error["type"], error["code"]) == ("BadRequestError", "context_length_exceeded")
        assert answer.headers["x-cache"] == "MISS"
    assert (await engines.code.stats())["received"] == 0, "no other engine is tried"
    assert not [name for name in await router.metrics() if "llm_retries_total" in name]
    await nothing_was_kept(router, engines, world.redis.client, stream=False)


@pytest.mark.parametrize(
    "pieces",
    [
        (ROLE_FRAME, chat_frame(content="", finish="stop"), DONE_FRAME),
        (ROLE_FRAME, chat_frame(content="a"), chat_frame(content="b", finish="abort"), DONE_FRAME),
        (ROLE_FRAME, chat_frame(content="a", finish="stop"), b'data: {"error": {"message": "late"}}\n\n', DONE_FRAME),
        (
            ROLE_FRAME,
            chat_frame(content="a"),
            b"data: {oops\n\n",
            chat_frame(content="b", finish="stop"),
            b'data: "usage"\n\n',
            DONE_FRAME,
        ),
        (
            ROLE_FRAME,
            chat_frame(content="a"),
            b'data: [{"a":1}]\n\n',
            chat_frame(content="b", finish="stop"),
            DONE_FRAME,
        ),
    ],
    ids=["empty", "abort", "late-error", "broken-json", "no-object"],
)
@scenario
async def test_a_faulty_stream_is_not_stored(world: World, pieces: tuple[bytes, ...]) -> None:
    router, engine = await scripted_router(world, *pieces)
    assert (await router.chat("x", stream=True)).status_code == 200
    engine.pieces = (ROLE_FRAME, chat_frame(content="a", finish="stop"), DONE_FRAME)
    assert (await router.chat("x", stream=True)).headers["x-cache"] == "MISS"
    assert (await router.chat("x", stream=True)).headers["x-cache"] == "HIT"


@scenario
async def test_a_response_without_tokens_is_a_response_however_it_is_cut(world: World) -> None:
    nothing = (ROLE_FRAME, chat_frame(content="", finish="stop"), DONE_FRAME)
    router, engine = await scripted_router(world, b"".join(nothing))
    at_once = await router.chat("x", stream=True)
    engine.pieces = nothing
    one_by_one = await router.chat("x", stream=True)
    assert (at_once.status_code, at_once.content) == (200, b"".join(nothing))
    assert (one_by_one.status_code, one_by_one.content) == (200, b"".join(nothing))
    assert not await keys_except_log(world.redis.client)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{}", b'{"choices": null}', b'{"error": {"message": "m"}, "choices": []}',
        b'{"choices": [{"index": 0, "message": {"content": "x"}',
    ],
)  # fmt: skip
@scenario
async def test_a_malformed_json_response_is_an_error(world: World, body: bytes) -> None:
    pieces = (body,) if body else ()
    router, _ = await scripted_router(world, *pieces, content_type="application/json")
    answer = await router.chat("x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_failed")
    assert not await keys_except_log(world.redis.client)


@scenario
async def test_an_event_with_only_a_role_does_not_stop_the_first_token_timer(world: World) -> None:
    limits = '[timeouts]\nfirst_token = "200ms"\nbetween_tokens = "60s"'
    router, engine = await scripted_router(world, ROLE_FRAME, b": keep-alive\n\n", hold=True, rest=limits)
    answer = await router.chat("x", stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "engine_timeout")
    await asyncio.wait_for(engine.client_disconnected.wait(), 10)


@scenario
async def test_the_timer_between_tokens_runs_from_the_last_token(world: World) -> None:
    limits = '[timeouts]\nfirst_token = "60s"\nbetween_tokens = "200ms"'
    router, engine = await scripted_router(world, ROLE_FRAME, chat_frame(content="a"), hold=True, rest=limits)
    answer = await router.chat("x", stream=True)
    assert answer.content.startswith(ROLE_FRAME + chat_frame(content="a"))
    assert parse_events(answer.content)[-1]["error"]["code"] == "engine_failed"
    await asyncio.wait_for(engine.client_disconnected.wait(), 10)


@pytest.mark.parametrize(
    ("stream", "marker"),
    [(False, "[[sim:stall after=3]]"), (True, "[[sim:stall after=0]]"), (True, "[[sim:stall after=3]]")],
    ids=["json", "before-the-first-token", "mid-stream"],
)
@scenario
async def test_a_client_that_disconnects_frees_the_engine(world: World, stream: bool, marker: str) -> None:
    engines = await world.engines()
    router = await world.router(router_config(world.redis.url, engines.as_config()))
    body = json.dumps(chat_body(f"The sea? {marker}", stream=stream)).encode()
    reader, writer = await asyncio.open_connection(router.name, PORT)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await engines.chat.stats(started=1, in_flight=1)
    if stream and "after=3" in marker:
        await reader.readuntil(b'"content":" ')
    assert (await router.http.get("/healthz")).json()["engines"]["llama-chat"]["in_flight"] == 1
    writer.close()
    await engines.chat.stats(aborted=1, in_flight=0)
    metrics = await router.metrics()
    assert metrics['llm_requests_in_flight{engine="llama-chat"}'] == 0
    assert sum(v for k, v in metrics.items() if k.startswith("llm_requests_total") and 'status="499"' in k) == 1

    async def is_released() -> bool:
        return not await keys_except_log(world.redis.client)

    await eventually(is_released)


@scenario
async def test_an_engine_that_refuses_the_key_of_a_request_is_not_asked_until_it_lets_a_check_in(world: World) -> None:
    script = ForeignScript(api_key=SECRET)
    engine = await world.scripted_engine(script=script)
    table = {"foreign": ("llama", "any", engine.url)}
    router = await world.router(router_config(world.redis.url, table, rest=f'api_key = "{SECRET}"'))
    await asyncio.sleep(PROBED)  # so that no check notices the new key before a request does
    script.api_key = "rotated"
    refused, blocked = await router.chat("one"), await router.chat("two")
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "engine_failed")
    assert (blocked.status_code, blocked.json()["error"]["code"]) == (503, "no_engine")
    assert "refuse the router's key" in blocked.json()["error"]["message"]
    assert "Incorrect" not in refused.text + blocked.text

    async def state() -> tuple[str, bool]:
        facts = (await router.http.get("/healthz")).json()["engines"]["foreign"]
        return facts["state"], facts["up"]

    assert await state() == ("refused", False)
    script.api_key = SECRET
    await asyncio.sleep(PROBED)
    assert await state() == ("up", True)
    assert (await router.chat("two")).status_code == 200
