"""A WebSocket at /v1/responses, with the client library that OpenAI's SDK uses."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from router.api.access.auth import hash_key
from router.api.websocket.event_messages import HEADERS_EVENT
from router.net.server.websocket import MAX_WAITING
from router.settings import parse
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.typed_answers import RESPONSES, post_typed, typed_events
from tests.support.waiting import TEST_TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="session")

Event = dict[str, Any]
KEYS = '[auth]\nmode = "keys"\n[[tenant]]\nname = "acme"\nkeys = ["{key}"]'


@asynccontextmanager
async def opened(router: RouterServer | RouterProcess, **options: Any) -> AsyncIterator[ClientConnection]:
    # The router's answers are read with a limit of time; a client's own pings are not part of these tests.
    options = {"ping_interval": None, "proxy": None, **options}
    async with connect(f"ws://127.0.0.1:{router.port}{RESPONSES}", **options) as socket:
        yield socket


async def create(socket: ClientConnection, text: Any, **fields: Any) -> None:
    await socket.send(json.dumps({"type": "response.create", "model": "llama", "input": text, **fields}))


async def events_of(socket: ClientConnection) -> list[Event]:
    """The events of a response, to its last, without the message that has its headers."""
    events: list[Event] = []
    async with asyncio.timeout(TEST_TIMEOUT):
        while not events or events[-1]["type"] not in ("response.completed", "response.failed", "error"):
            events.append(json.loads(await socket.recv()))
    return [event for event in events if event["type"] != HEADERS_EVENT]


async def answer(socket: ClientConnection, text: Any, **fields: Any) -> list[Event]:
    await create(socket, text, **fields)
    return await events_of(socket)


async def close_code(socket: ClientConnection) -> int | None:
    async with asyncio.timeout(TEST_TIMEOUT):
        await socket.wait_closed()
    return socket.close_code


def said(events: list[Event]) -> str:
    text: str = events[-1]["response"]["output"][0]["content"][0]["text"]
    return text


async def test_a_miss_and_a_hit_have_the_events_of_http(router: RouterServer, engines: EngineSet) -> None:
    before = (await engines.chat.stats())["received"]
    async with opened(router) as socket:
        miss = await answer(socket, "The sea?")
        assert miss[0]["type"] == "response.created"
        assert await answer(socket, "The sea?") == miss
    over_http = await post_typed(router, RESPONSES, "The sea?", stream=True)
    assert over_http.headers["x-cache"] == "HIT"
    assert typed_events(over_http.content) == miss
    assert (await engines.chat.stats())["received"] == before + 1


async def test_a_turn_that_names_the_last_response_is_sent_whole(router: RouterServer) -> None:
    async with opened(router) as socket:
        first = (await answer(socket, "The sea?", store=False))[-1]["response"]
        second = await answer(socket, "And the sky?", store=False, previous_response_id=first["id"])
    whole = [
        {"type": "message", "role": "user", "content": "The sea?"},
        *first["output"],
        {"type": "message", "role": "user", "content": "And the sky?"},
    ]
    over_http = await post_typed(router, RESPONSES, "", input=whole, store=False, stream=True)
    assert over_http.headers["x-cache"] == "HIT"
    assert typed_events(over_http.content) == second


async def test_a_warm_up_asks_no_engine_and_the_next_turn_continues_it(
    router: RouterServer, engines: EngineSet
) -> None:
    before = (await engines.chat.stats())["received"]
    async with opened(router) as socket:
        prepared = await answer(socket, [{"role": "user", "content": "The sea?"}], generate=False)
        assert [event["type"] for event in prepared] == ["response.created", "response.completed"]
        assert prepared[-1]["response"]["output"] == []
        assert (await engines.chat.stats())["received"] == before
        events = await answer(socket, [], previous_response_id=prepared[-1]["response"]["id"])
        assert events == await answer(socket, [{"role": "user", "content": "The sea?"}])
    assert (await engines.chat.stats())["received"] == before + 1


async def test_errors_are_messages_and_the_connection_goes_on(router: RouterServer) -> None:
    async with opened(router) as socket:
        for message, status, code in (
            ('{"type": "response.create", "model": "gpt-4", "input": "x"}', 404, "model_not_found"),
            ('{"type": "response.create", "model": "llama"}', 400, None),
            ('{"type": "response.create", "model": "llama", "input": 7}', 400, None),
            ('{"type": "response.create", "model": "llama", "input": "x", "stream_id": "a"}', 400, "invalid_message"),
            ('{"type": "response.append", "input": []}', 400, "invalid_message"),
            ("no JSON", 400, "invalid_message"),
            ("[]", 400, "invalid_message"),
        ):
            await socket.send(message)
            (event,) = await events_of(socket)
            assert (event["type"], event["status"], event["error"]["code"]) == ("error", status, code)
        unknown = await answer(socket, "x", previous_response_id="resp_1")
        assert (unknown[0]["status"], len(unknown)) == (404, 1)
        assert unknown[0]["headers"]["x-request-id"]
        await socket.send('{"type": "response.processed", "response_id": "resp_1"}')
        assert (await answer(socket, "The sea?"))[-1]["type"] == "response.completed"


async def test_messages_that_are_sent_ahead_are_answered_in_order(router: RouterServer) -> None:
    async with opened(router) as socket:
        for text in ("One?", "Two?", "Three?"):
            await create(socket, text)
        answers = [await events_of(socket) for _ in range(3)]
        again = [await answer(socket, text) for text in ("One?", "Two?", "Three?")]
    assert answers == again


async def test_a_key_is_needed_to_connect_and_for_each_message(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    def text(key: bytes) -> str:
        return router_config(redis_server.url, engines.as_config(), rest=KEYS.format(key=hash_key(key)))

    router = await make_router(text(b"one"))
    with pytest.raises(InvalidStatus) as refused:
        async with opened(router):
            pass
    response = refused.value.response
    assert response.status_code == 401
    assert response.body is not None
    assert json.loads(response.body)["error"]["code"] == "invalid_api_key"
    async with opened(router, additional_headers={"authorization": "Bearer one"}) as socket:
        assert (await answer(socket, "The sea?"))[-1]["type"] == "response.completed"
        await router.application.reload(parse(text(b"two"), {}))
        (event,) = await answer(socket, "The sea?")
        assert (event["status"], event["error"]["code"]) == (401, "invalid_api_key")


async def test_a_page_needs_an_origin_that_is_allowed(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    text = router_config(redis_server.url, engines.as_config(), router='allowed_origins = ["https://app.example"]')
    router = await make_router(text)
    async with opened(router, origin="https://app.example") as socket:
        assert (await answer(socket, "The sea?"))[-1]["type"] == "response.completed"
    with pytest.raises(InvalidStatus) as refused:
        async with opened(router, origin="https://evil.example"):
            pass
    assert refused.value.response.status_code == 403


async def test_a_message_over_the_limit_of_bodies_closes_with_1009(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), router='max_body = "64KiB"'))
    async with opened(router) as socket:
        await create(socket, "x" * (1 << 20))
        assert await close_code(socket) == 1009


async def test_a_binary_message_closes_with_1003(router: RouterServer) -> None:
    async with opened(router) as socket:
        await socket.send(b"{}")
        assert await close_code(socket) == 1003


async def test_too_many_messages_ahead_close_with_1008(router: RouterServer, engines: EngineSet) -> None:
    await engines.chat.set_faults({"fault": "stall", "after": 1})
    async with opened(router) as socket:
        for _ in range(MAX_WAITING + 2):  # the first one is being answered
            await create(socket, "The sea?")
        assert await close_code(socket) == 1008


async def test_a_client_that_leaves_ends_its_generation(router: RouterServer, engines: EngineSet) -> None:
    before = (await engines.chat.stats())["aborted"]
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    async with opened(router) as socket:
        await create(socket, "The sea?", store=False)
        await socket.recv()
    await engines.chat.stats(in_flight=0)
    assert (await engines.chat.stats())["aborted"] == before + 1


async def test_off_codex_is_told_to_use_http(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), router="websocket = false"))
    with pytest.raises(InvalidStatus) as refused:
        async with opened(router):
            pass
    response = refused.value.response
    assert (response.status_code, response.headers["upgrade"]) == (426, "HTTP/1.1")
    assert response.body is not None
    assert json.loads(response.body)["error"]["code"] == "websocket_not_served"


async def test_openais_client_talks_over_a_websocket(router: RouterServer) -> None:
    http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
    client = AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", http_client=http)
    async with client, client.responses.connect() as connection:
        await connection.response.create(model="llama", input="The sea?")
        event: Any = await connection.recv()
        assert (event.type, event.headers["x-cache"]) == (HEADERS_EVENT, "MISS")
        while event.type != "response.completed":
            event = await connection.recv()
    assert event.response.output_text


async def test_a_stop_ends_the_response_and_then_the_connection(
    tmp_path: Path, redis: Any, redis_server: RedisServer, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    text = router_config(redis_server.url, engines.as_config(), router='drain = "0s"\ngrace = "1s"')
    served = RouterProcess(tmp_path, text)
    served.start()
    try:
        await served.wait_until_ready()
        async with opened(served) as idle, opened(served) as busy:
            await create(busy, "The sea?")
            await busy.recv()
            served.process.send_signal(signal.SIGTERM)
            assert await close_code(idle) == 1001
            assert (await events_of(busy))[-1]["type"] == "response.failed"
            assert await close_code(busy) == 1001
        assert await asyncio.to_thread(served.process.wait, TEST_TIMEOUT) == 0
    finally:
        served.kill()


async def test_a_plain_get_is_405_as_ever(router: RouterServer) -> None:
    response: httpx.Response = await router.http.get(RESPONSES)
    assert (response.status_code, response.headers["allow"]) == (405, "OPTIONS, POST")
