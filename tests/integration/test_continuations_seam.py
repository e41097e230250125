"""Streams that break off while their router stops, or while engines are announced. The rest is in tests/world."""

import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from router.shared.announcements import AnnouncedEngine, write_command
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, chat_delta_text, parse_events
from tests.support.streaming_client import open_stream
from tests.support.toy_engine import Break, ToyEngine, toy_engines
from tests.support.toy_model import ToyModel
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER = "The sea is wide, and the möwe 🙂 flies over it."


def new_engine(name: str, *breaks: Break, **options: Any) -> ToyEngine:
    return ToyEngine(ToyModel(ANSWER, [3, 1, 2]), *breaks, name=name, **options)


class Engines(NamedTuple):
    """`first` breaks the stream of its first request off once `first.may_break` is set; `second` is whole."""

    first: ToyEngine
    second: ToyEngine
    as_config: dict[str, tuple[str, str, str]]


@pytest_asyncio.fixture(loop_scope="session")
async def engines(redis: Any) -> AsyncIterator[Engines]:
    first, second = new_engine("a", Break(1500)), new_engine("b")
    first.may_break.clear()
    async with toy_engines(first, second) as as_config:
        yield Engines(first, second, as_config)


async def start(make_router: MakeRouter, text: str, *engines: ToyEngine) -> RouterServer:
    router = await make_router(text)
    for engine in engines:
        await engine.asked_for_models.wait()
    return router


async def is_idle(router: RouterServer) -> bool:
    page = (await router.http.get("/healthz")).json()
    return not any(engine["in_flight"] for engine in page["engines"].values())


def error_of(answer: bytes) -> Any:
    """The error event that ends a stream."""
    assert DONE_FRAME not in answer
    return parse_events(answer)[-1]["error"]


async def test_a_router_that_stops_at_the_seam_ends_in_time(
    tmp_path: Path, redis_server: RedisServer, engines: Engines
) -> None:
    first, second, as_config = engines
    second.breaks.append(Break(0, "stall"))
    served = RouterProcess(tmp_path, router_config(redis_server.url, as_config, router='grace = "200ms"'))
    served.start()
    try:
        await served.wait_until_ready()
        body = chat_body("x", stream=True, temperature=0, seed=3)
        async with http_client(served.url) as http, http.stream("POST", "/v1/chat/completions", json=body) as answer:
            chunks = answer.aiter_raw()
            received = await anext(chunks)
            first.may_break.set()
            await second.stalled.wait()
            served.process.send_signal(signal.SIGTERM)
            try:
                async for chunk in chunks:
                    received += chunk
            except httpx.RemoteProtocolError:  # cut off
                pass
        await second.left.wait()
        assert await asyncio.to_thread(served.process.wait, 20) == 0
    finally:
        served.kill()
    assert DONE_FRAME not in received
    assert b"data: " in received
    assert "Traceback" not in served.log.read_text()


async def test_an_engine_that_was_withdrawn_meanwhile_does_not_go_on(
    redis_server: RedisServer, make_router: MakeRouter, engines: Engines, redis: Any
) -> None:
    first, second, as_config = engines
    b = AnnouncedEngine(name="b", model="llama", task="any", url=second.url, served_model=LLAMA)
    await redis.execute_command(*write_command("test", [b]))
    router = await start(make_router, router_config(redis_server.url, {"a": as_config["a"]}), first, second)

    async def has_b() -> bool:
        return "b" in (await router.http.get("/healthz")).json()["engines"]

    async def has_no_b() -> bool:
        return not await has_b()

    await eventually(has_b)
    async with open_stream(router, "x", temperature=0, seed=16) as stream:
        await stream.read_until_text("The")
        await redis.execute_command(*write_command("test", withdrawn=["b"]))
        await eventually(has_no_b)
        first.may_break.set()
        assert error_of(await stream.read_to_end())["code"] == "engine_failed"
    assert second.bodies == []


async def test_an_engine_that_was_announced_meanwhile_goes_on(
    redis_server: RedisServer, make_router: MakeRouter, engines: Engines, redis: Any
) -> None:
    """As in a rolling update: the engines that were there when the stream began are all replaced."""
    first, second, as_config = engines
    router = await start(make_router, router_config(redis_server.url, {"a": as_config["a"]}), first)

    async def is_up() -> bool:
        page = (await router.http.get("/healthz")).json()["engines"]
        return bool("b" in page and page["b"]["up"])

    async with open_stream(router, "x", temperature=0, seed=17) as stream:
        await stream.read_until_text("The")
        b = AnnouncedEngine(name="b", model="llama", task="any", url=second.url, served_model=LLAMA)
        await redis.execute_command(*write_command("test", [b]))
        await eventually(is_up)
        first.may_break.set()
        answer = await stream.read_to_end()
    assert chat_delta_text(parse_events(answer)) == ANSWER
    assert len(second.bodies) == 1
    await eventually(partial(is_idle, router))
