"""Engines that end, streams with errors in their bytes, and clients that disconnect; tests/world has further faults."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.purge_log import keys_except_log
from tests.support.redis_process import RedisServer
from tests.support.router_server import (
    LLAMA,
    EngineSet,
    MakeRouter,
    RouterServer,
    ScriptedRouter,
    chat_body,
    router_config,
)
from tests.support.simulated_engine import SimulatedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, parse_events
from tests.support.streaming_client import open_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def nothing_was_kept(router: RouterServer, engines: EngineSet, redis: Any, *, stream: bool) -> None:
    """Checks that nothing was stored: writes of earlier requests precede the hit of a later one."""
    await asyncio.gather(engines.chat.clear_faults(), engines.code.clear_faults())
    sentinel = (await router.chat("A well answered one", model="mistral")).headers["x-cache-key"]
    assert (await router.chat("A well answered one", model="mistral")).headers["x-cache"] == "HIT"
    assert await keys_except_log(redis) == {sentinel}
    assert (await router.chat("The sea?", stream=stream)).headers["x-cache"] == "MISS"
    assert (await router.chat("The sea?", stream=stream)).headers["x-cache"] == "HIT"


async def test_an_engine_that_is_gone_is_skipped_and_then_excluded(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    async with SimulatedEngine(LLAMA) as dying_engine:
        table = {**engines.as_config(), "llama-chat": ("llama", "chat", dying_engine.url)}
        router = await make_router(router_config(redis_server.url, table))
        assert (await router.chat("The sea?")).headers["x-engine"] == "llama-chat"
        await dying_engine.kill()
        for n in range(3):
            assert (await router.chat(f"The sea {n}?")).headers["x-engine"] == "llama-code"
        failed = {k: v for k, v in (await router.metrics()).items() if "llm_retries_total" in k}
        assert sum(failed.values()) <= 2, "its idle connection, and a refused one"
        assert (await router.metrics())['roundhouse_engine_up{engine="llama-chat"}'] == 0


async def test_with_every_engine_gone_the_response_is_503_with_retry_after_and_hits_are_served(
    redis_server: RedisServer, make_router: MakeRouter
) -> None:
    async with SimulatedEngine(LLAMA) as dying_engine:
        router = await make_router(router_config(redis_server.url, {"one": ("llama", "any", dying_engine.url)}))
        await router.chat("The sea?")
        await dying_engine.kill()
        await router.chat("Its kept connection breaks at this one")
        answer = await router.chat("Is anybody there?")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"


async def test_a_request_that_crashes_an_engine_goes_to_the_next(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    async with SimulatedEngine(LLAMA) as dying_engine:
        table = {"llama-chat": ("llama", "chat", dying_engine.url), "llama-code": ("llama", "code", engines.code.url)}
        router = await make_router(router_config(redis_server.url, table))
        await dying_engine.set_faults({"fault": "exit", "after": 0, "code": 3})
        answer = await router.chat("The sea?", stream=True)
        assert (answer.status_code, answer.headers["x-engine"]) == (200, "llama-code")
        assert await dying_engine.wait_for_exit() == 3


async def test_another_engine_goes_on_with_the_stream_of_an_engine_that_is_stopped(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    async with SimulatedEngine(LLAMA) as dying_engine:
        table = {"first": ("llama", "chat", dying_engine.url), "second": ("llama", "any", engines.code.url)}
        router = await make_router(router_config(redis_server.url, table))
        await dying_engine.set_faults({"fault": "stall", "after": 3})
        async with open_stream(router, "The sea?") as answer:
            await answer.read_until_text(" ")
            await dying_engine.stop()
            assert (await answer.read_to_end()).endswith(DONE_FRAME)


async def test_an_engines_error_about_the_request_reaches_the_client_unchanged(
    router: RouterServer, engines: EngineSet, redis: Any
) -> None:
    before = (await engines.code.stats())["received"]
    for stream in (False, True):
        answer = await router.chat("far too long " * 5000, stream=stream)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert "maximum context length is 4096 tokens" in error["message"]
        assert (error["type"], error["code"]) == ("BadRequestError", 400)
        assert answer.headers["x-cache"] == "MISS"
    assert (await engines.code.stats())["received"] == before, "no other engine is tried"
    assert not [name for name in await router.metrics() if "llm_retries_total" in name]
    await nothing_was_kept(router, engines, redis, stream=False)


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
async def test_a_faulty_stream_is_not_stored(scripted: ScriptedRouter, redis: Any, pieces: tuple[bytes, ...]) -> None:
    router, engine = await scripted(*pieces)
    assert (await router.chat("x", stream=True)).status_code == 200
    engine.pieces = (ROLE_FRAME, chat_frame(content="a", finish="stop"), DONE_FRAME)
    assert (await router.chat("x", stream=True)).headers["x-cache"] == "MISS"
    assert (await router.chat("x", stream=True)).headers["x-cache"] == "HIT"


async def test_a_response_without_tokens_is_a_response_however_it_is_cut(scripted: ScriptedRouter, redis: Any) -> None:
    nothing = (ROLE_FRAME, chat_frame(content="", finish="stop"), DONE_FRAME)
    router, engine = await scripted(b"".join(nothing))
    at_once = await router.chat("x", stream=True)
    engine.pieces = nothing
    one_by_one = await router.chat("x", stream=True)
    assert (at_once.status_code, at_once.content) == (200, b"".join(nothing))
    assert (one_by_one.status_code, one_by_one.content) == (200, b"".join(nothing))
    assert not await keys_except_log(redis)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{}", b'{"choices": null}', b'{"error": {"message": "m"}, "choices": []}',
        b'{"choices": [{"index": 0, "message": {"content": "x"}',
    ],
)  # fmt: skip
async def test_a_malformed_json_response_is_an_error(scripted: ScriptedRouter, redis: Any, body: bytes) -> None:
    pieces = (body,) if body else ()
    router, _ = await scripted(*pieces, content_type="application/json")
    answer = await router.chat("x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_failed")
    assert not await keys_except_log(redis)


async def test_an_event_with_only_a_role_does_not_stop_the_first_token_timer(
    scripted: ScriptedRouter,
) -> None:
    limits = '[timeouts]\nfirst_token = "200ms"\nbetween_tokens = "60s"'
    router, engine = await scripted(ROLE_FRAME, b": keep-alive\n\n", hold=True, rest=limits)
    answer = await router.chat("x", stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "engine_timeout")
    await asyncio.wait_for(engine.client_disconnected.wait(), 10)


async def test_the_timer_between_tokens_runs_from_the_last_token(scripted: ScriptedRouter) -> None:
    limits = '[timeouts]\nfirst_token = "60s"\nbetween_tokens = "200ms"'
    router, engine = await scripted(ROLE_FRAME, chat_frame(content="a"), hold=True, rest=limits)
    answer = await router.chat("x", stream=True)
    assert answer.content.startswith(ROLE_FRAME + chat_frame(content="a"))
    assert parse_events(answer.content)[-1]["error"]["code"] == "engine_failed"
    await asyncio.wait_for(engine.client_disconnected.wait(), 10)


@pytest.mark.parametrize(
    ("stream", "marker"),
    [(False, "[[sim:stall after=3]]"), (True, "[[sim:stall after=0]]"), (True, "[[sim:stall after=3]]")],
    ids=["json", "before-the-first-token", "mid-stream"],
)
async def test_a_client_that_disconnects_frees_the_engine(
    router: RouterServer, engines: EngineSet, redis: Any, stream: bool, marker: str
) -> None:
    before = await engines.chat.stats(in_flight=0)
    body = json.dumps(chat_body(f"The sea? {marker}", stream=stream)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await engines.chat.stats(started=before["started"] + 1, in_flight=1)
    if stream and "after=3" in marker:
        await reader.readuntil(b'"content":" ')
    assert (await router.http.get("/healthz")).json()["engines"]["llama-chat"]["in_flight"] == 1
    writer.close()
    await engines.chat.stats(aborted=before["aborted"] + 1, in_flight=0)
    metrics = await router.metrics()
    assert metrics['llm_requests_in_flight{engine="llama-chat"}'] == 0
    assert sum(v for k, v in metrics.items() if k.startswith("llm_requests_total") and 'status="499"' in k) == 1
    assert not await keys_except_log(redis)
