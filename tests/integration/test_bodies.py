"""How many bytes of request bodies a process holds at once, and its response beyond the limit."""

import asyncio
from typing import Any

import pytest

from router.settings import ConfigurationError, Settings, parse
from tests.support.raw_http import CHAT_HEAD, CRLF, connect, http_request
from tests.support.router_server import EngineSet, RouterServer, ScriptedRouter, chat_body
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20
SMALL = 'max_body = "1MiB"\nmax_bodies = "1MiB"'


def large(prompt: str, size: int = 600_000, **fields: Any) -> bytes:
    return http_request(chat_body(prompt, padding="x" * size, **fields))


def held(router: RouterServer) -> int:
    return router.application._process_state.body_budget.allocated


async def test_a_process_limits_the_total_bytes_of_bodies_and_refuses_more_until_some_are_released(
    scripted: ScriptedRouter,
) -> None:
    router, engine = await scripted(ROLE_FRAME, chat_frame(content="a"), hold=True, router=SMALL)
    async with connect(router.port) as second:
        async with connect(router.port) as first:
            first.write(large("one", stream=True))
            await eventually(lambda: len(engine.bodies) == 1)
            assert 600_000 < held(router) < 601_000
            second.write(large("two"))
            answer = await second.read_response()
            assert (answer.status, answer.error_code) == (503, "bodies_full")
            assert b"\r\nretry-after: 1\r\n" in answer.head
            assert (await router.metrics())['llm_requests_rejected_total{reason="bodies_full",tenant="default"}'] == 1
            assert len(engine.bodies) == 1
        # The generation continues for cache.abandon after its client has disconnected.
        await eventually(lambda: held(router) == 0)
        second.write(large("two", stream=True))
        await eventually(lambda: len(engine.bodies) == 2)


async def test_a_body_without_a_content_length_is_refused_when_it_exceeds_the_limit(scripted: ScriptedRouter) -> None:
    router, engine = await scripted(ROLE_FRAME, chat_frame(content="a"), hold=True, router=SMALL)
    async with connect(router.port) as first, connect(router.port) as second:
        first.write(large("one", stream=True))
        await eventually(lambda: len(engine.bodies) == 1)
        second.write(CHAT_HEAD, b"transfer-encoding: chunked", CRLF, CRLF)
        for _ in range(10):
            second.write(b"%x\r\n%b\r\n" % (60_000, b"x" * 60_000))
        answer = await second.read_response()
        assert (answer.status, answer.error_code) == (503, "bodies_full")


async def test_a_generation_that_outlives_its_client_keeps_its_body(scripted: ScriptedRouter) -> None:
    router, engine = await scripted(
        ROLE_FRAME,
        chat_frame(content="a"),
        chat_frame(content="", finish="stop") + DONE_FRAME,
        paced=True,
        cache='on_abandon = "finish"',
    )
    async with connect(router.port) as connection:
        connection.write(large("one", stream=True))
        await eventually(lambda: len(engine.bodies) == 1)
    await eventually(lambda: router.application._runtime.active_requests == 0)
    assert held(router) > 600_000
    engine.chunk_permits.release()
    engine.chunk_permits.release()
    await eventually(lambda: held(router) == 0)


async def test_the_bytes_of_a_body_are_released_however_its_request_ends(
    router: RouterServer, engines: EngineSet
) -> None:
    body = chat_body("The sea?", padding="x" * 100_000)
    for answer in (
        await router.http.post("/v1/chat/completions", json=body),  # a miss
        await router.http.post("/v1/chat/completions", json=body),  # a hit
        await router.http.post("/v1/chat/completions", json={**body, "model": "nobody's"}),
        await router.http.post("/v1/chat/completions", content=b"[" * 100_000),
        await router.http.post("/v1/chat/completions", content=b"x" * (5 * MIB)),
        *await asyncio.gather(*[router.http.post("/v1/chat/completions", json={**body, "n": 2}) for _ in range(4)]),
    ):
        assert answer.status_code in (200, 400, 404, 413)
    await eventually(lambda: held(router) == 0)
    async with connect(router.port) as connection:
        connection.write(large("half")[:-1000])
        await eventually(lambda: held(router) > 0)
    await eventually(lambda: held(router) == 0)


async def test_the_limit_has_a_default_and_is_at_least_that_of_one_body() -> None:
    assert Settings().router.max_bodies == 256 * MIB
    with pytest.raises(ConfigurationError, match="max_bodies"):
        parse('[router]\nmax_body = "2MiB"\nmax_bodies = "1MiB"\n', {})
