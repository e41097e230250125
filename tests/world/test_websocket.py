"""A WebSocket at /v1/responses in the world: hits, errors, a client that leaves, pings, slow messages."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.protocol import CLIENT, Protocol

from router.api.websocket.event_messages import HEADERS_EVENT
from router.net.server.websocket import PING_INTERVAL
from tests.support.conversations import RepeatingEngine, ask, id_of, texts_of
from tests.support.router_server import router_config
from tests.support.typed_answers import RESPONSES, post_typed, typed_events
from tests.world.defaults import default_router
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

Event = dict[str, Any]
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: router\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Socket:
    """A connection after its handshake, whose client does no more than the test says.

    `headers`: of the last response.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.headers: dict[str, str] = {}
        self._parser = Protocol(CLIENT)
        self._texts: deque[bytes] = deque()

    async def answer(self, text: str, **fields: Any) -> list[Event]:
        """The events of a response, to its last."""
        self.create(text, **fields)
        events = [await self.receive()]
        while events[-1]["type"] not in ("response.completed", "response.failed", "error"):
            events.append(await self.receive())
        self.headers = events[0].get("headers", {})
        return [event for event in events if event["type"] != HEADERS_EVENT]

    def create(self, text: str, **fields: Any) -> None:
        message = {"type": "response.create", "model": "llama", "input": text, **fields}
        self._parser.send_text(json.dumps(message).encode())
        self.writer.write(b"".join(self._parser.data_to_send()))

    async def receive(self) -> Event:
        while not self._texts:
            data = await self.reader.read(65536)
            assert data, "the connection has closed"
            self._parser.receive_data(data)
            frames: list[Any] = self._parser.events_received()
            self._texts.extend(frame.data for frame in frames if frame.data)
        event: Event = json.loads(self._texts.popleft())
        return event


@asynccontextmanager
async def opened(router: WorldRouter) -> AsyncIterator[Socket]:
    host, _, port = router.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(HANDSHAKE)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    yield Socket(reader, writer)
    writer.close()


@scenario
async def test_a_hit_has_the_events_of_the_miss_and_of_http(world: World) -> None:
    router, _ = await default_router(world)
    async with opened(router) as socket:
        miss = await socket.answer("The sea?")
        assert await socket.answer("The sea?") == miss
    over_http = await post_typed(router, RESPONSES, "The sea?", stream=True)
    assert (over_http.headers["x-cache"], typed_events(over_http.content)) == ("HIT", miss)


@scenario
async def test_each_turn_begins_with_the_headers_of_http_so_its_client_knows_a_hit(world: World) -> None:
    router, _ = await default_router(world)
    async with opened(router) as socket:
        first, second = {"text": "The sea?"}, {"text": "And the sky?"}
        for result in (("MISS", "new"), ("HIT", None)):
            id_ = (await socket.answer(**first))[-1]["response"]["id"]
            assert (socket.headers["x-cache"], socket.headers.get("x-cache-reason")) == result
            id_ = (await socket.answer(**second, previous_response_id=id_))[-1]["response"]["id"]
            assert socket.headers["x-cache"] == result[0]
        await socket.answer(**first, generate=False)
        assert socket.headers == {}
        socket.create(**first)
        message = await socket.receive()
    assert message.keys() == {"type", "headers"}
    over_http = await post_typed(router, RESPONSES, "The sea?", stream=True)
    names = over_http.headers.keys() - {"date", "server", "connection", "transfer-encoding", "content-length"}
    assert message["headers"].keys() == names
    for name in names - {"x-request-id"}:
        assert message["headers"][name] == over_http.headers[name]


@scenario
async def test_an_engine_that_fails_is_an_error_message(world: World) -> None:
    router, engines = await default_router(world)
    for engine in (engines.chat, engines.code):
        await engine.set_faults({"fault": "status", "code": 500})
    async with opened(router) as socket:
        (event,) = await socket.answer("The sea?")
    assert (event["type"], event["status"], event["error"]["code"]) == ("error", 502, "engine_failed")


@scenario
async def test_a_client_that_answers_no_ping_is_cut_off(world: World) -> None:
    router, _ = await default_router(world)
    async with opened(router) as socket:
        await asyncio.sleep(PING_INTERVAL - 1)
        assert not socket.reader.at_eof()
        await asyncio.sleep(PING_INTERVAL + 2)
        assert await socket.reader.read() == b"\x89\x00"


@scenario
async def test_a_message_that_does_not_arrive_in_time_closes(world: World) -> None:
    router, _ = await default_router(world)
    async with opened(router) as socket:
        socket.writer.write(b"\x81\xfe\x01\x00" + bytes(4))  # 256 bytes are to follow
        for _ in range(60):
            await asyncio.sleep(1)
            socket.writer.write(b" ")
        assert b"did not arrive in time" in await socket.reader.read()


@scenario
async def test_a_client_that_leaves_ends_its_generation(world: World) -> None:
    router, engines = await default_router(world)
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    async with opened(router) as socket:
        socket.create("The sea?")
        await socket.receive()
    await engines.chat.stats(in_flight=0)
    assert (await engines.chat.stats())["aborted"] == 1


@scenario
async def test_a_turn_continues_what_was_kept_over_http_and_http_what_was_said_here(world: World) -> None:
    engine = await world.scripted_engine(script=RepeatingEngine())
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))
    first = id_of(await ask(router, "The sea?"))
    async with opened(router) as socket:
        second = (await socket.answer("The sky?", previous_response_id=first))[-1]["response"]["id"]
        # The connection does not have what was said before it, so it has no turn of this conversation.
        third = (await socket.answer("The land?", previous_response_id=second))[-1]["response"]["id"]
        (event,) = await socket.answer("And?", previous_response_id=first, generate=False)
        assert (event["status"], event["error"]["code"]) == (400, "previous_response_not_found")
        own = (await socket.answer("The wind?"))[-1]["response"]["id"]
        own = (await socket.answer("The rain?", previous_response_id=own, store=True))[-1]["response"]["id"]
    for id_, texts in ((third, ["The sea?", "The sky?", "The land?"]), (own, ["The wind?", "The rain?"])):
        await ask(router, "And?", id_)
        assert texts_of(json.loads(engine.bodies[-1])["input"])[::2] == [*texts, "And?"]


@scenario
async def test_an_id_that_nobody_knows_is_an_error_message(world: World) -> None:
    router, _ = await default_router(world)
    async with opened(router) as socket:
        (event,) = await socket.answer("And?", previous_response_id="resp_unknown")
    assert (event["status"], event["error"]["code"]) == (404, "previous_response_not_found")
