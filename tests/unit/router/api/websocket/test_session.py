"""One message after the other, and how a connection ends; with a fake connection and a fake application."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from router.api.websocket.conversation import Conversation
from router.api.websocket.event_messages import HEADERS_EVENT
from router.api.websocket.session import IDLE_TIMEOUT, Session
from router.flow.body_budget import BodyAllocation, BodyBudget
from router.net.server.client_connection import CLIENT_EXTENSION
from router.net.server.websocket import GOING_AWAY, NORMAL_CLOSURE, Message
from tests.support.virtual_time import on_virtual_time

COMPLETED = b'data: {"type":"response.completed","response":{"id":"resp_1","output":[]}}\n\n'
HANDSHAKE = {
    "type": "http", "method": "GET", "path": "/v1/responses", "query_string": b"x=1",
    "headers": [(b"authorization", b"Bearer a"), (b"sec-websocket-key", b"k"), (b"x-request-id", b"mine")],
}  # fmt: skip


class FakeConnection:
    def __init__(self, *texts: bytes, ends: bool = True) -> None:
        self.is_full = False
        self.on_disconnect: Callable[[], None] | None = None
        self.sent: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None
        self.budget = BodyBudget()
        self.drained_at: list[int] = []
        self._texts = deque(texts)
        self._ends = ends

    async def receive(self) -> Message | None:
        if not self._texts:
            if not self._ends:
                await asyncio.Event().wait()
            return None
        allocation = BodyAllocation(self.budget, 1000)
        allocation.allocate(len(self._texts[0]))
        return Message(self._texts.popleft(), allocation)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.ensure_future(coroutine)

    def send(self, texts: list[bytes]) -> None:
        self.sent += [json.loads(text) for text in texts]

    async def drain(self) -> None:
        self.drained_at.append(len(self.sent))
        self.is_full = False

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


class FakeApplication:
    """Answers each request with the next of `answers`: a part of a stream, or a status with a body."""

    def __init__(self, *answers: Any) -> None:
        self.scopes: list[Any] = []
        self.bodies: list[Any] = []
        self._answers = deque(answers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        self.bodies.append(json.loads((await receive())["body"]))
        answer = self._answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        scope["extensions"][CLIENT_EXTENSION].start_response(status, b"Retry-After: 3\r\nx-request-id: r1\r\n", None)
        await send({"type": "http.response.body", "body": body})


def create(**fields: Any) -> bytes:
    return json.dumps({"type": "response.create", **fields}).encode()


async def serve(connection: FakeConnection, application: FakeApplication, **options: Any) -> None:
    subject: Any = connection
    conversation = Conversation(lambda: BodyAllocation(connection.budget, 1000), 1000)
    options.setdefault("is_draining", lambda: False)
    await Session(application, HANDSHAKE, conversation, **options).serve(subject)
    assert connection.budget.allocated == 0


async def test_each_message_is_a_post_with_the_headers_of_the_handshake_but_its_own_id() -> None:
    application = FakeApplication(COMPLETED, COMPLETED)
    connection = FakeConnection(create(model="m"), create(model="n"))
    await serve(connection, application)
    assert [event["type"] for event in connection.sent] == [HEADERS_EVENT, "response.completed"] * 2
    assert application.bodies == [{"model": "m", "stream": True}, {"model": "n", "stream": True}]
    scope = application.scopes[0]
    assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", "/v1/responses", b"")
    assert scope["headers"] == [
        (b"authorization", b"Bearer a"), (b"content-type", b"application/json"), (b"content-length", b"27"),
    ]  # fmt: skip


async def test_the_headers_of_a_response_are_sent_once_with_its_first_event() -> None:
    connection = FakeConnection(create())
    await serve(connection, FakeApplication(b': heartbeat\n\ndata: {"type":"x"}\n\n' + COMPLETED))
    headers = {"type": HEADERS_EVENT, "headers": {"retry-after": "3", "x-request-id": "r1"}}
    assert (connection.sent[0], len(connection.sent)) == (headers, 3)


async def test_an_error_has_the_headers_of_its_response() -> None:
    connection = FakeConnection(create())
    await serve(connection, FakeApplication((429, b'{"error":{"code":"x"}}')))
    assert connection.sent == [
        {"type": "error", "status": 429, "error": {"code": "x"}, "headers": {"retry-after": "3", "x-request-id": "r1"}}
    ]


async def test_a_stream_without_an_end_is_an_error_and_so_is_an_application_that_raises() -> None:
    connection = FakeConnection(create(), create(), create())
    await serve(connection, FakeApplication(b'data: {"type":"x"}\n\n', RuntimeError("made up"), COMPLETED))
    assert [(event["type"], event.get("status")) for event in connection.sent] == [
        (HEADERS_EVENT, None), ("x", None), ("error", 500), ("error", 500),
        (HEADERS_EVENT, None), ("response.completed", None),
    ]  # fmt: skip


async def test_no_message_is_taken_before_the_client_has_read_the_answer_to_the_last() -> None:
    connection = FakeConnection(create(generate=False), b"no JSON", create(generate=False, model=7))
    await serve(connection, FakeApplication())
    assert [event.get("status") for event in connection.sent] == [None, None, 400, 400]
    assert connection.drained_at == [2, 3, 4]


@on_virtual_time
async def test_an_idle_connection_closes() -> None:
    connection = FakeConnection(ends=False)
    await serve(connection, FakeApplication())
    assert asyncio.get_running_loop().time() == pytest.approx(IDLE_TIMEOUT)
    assert (connection.sent, connection.closed) == ([], (NORMAL_CLOSURE, "idle"))


@on_virtual_time
async def test_an_old_connection_closes_and_says_why() -> None:
    connection = FakeConnection(create(), ends=False)
    await serve(connection, FakeApplication(COMPLETED), max_age=IDLE_TIMEOUT / 2)
    assert asyncio.get_running_loop().time() == pytest.approx(IDLE_TIMEOUT / 2)
    assert connection.sent[-1]["error"]["code"] == "websocket_connection_limit_reached"
    assert connection.closed == (NORMAL_CLOSURE, "too old")


async def test_while_the_router_drains_a_connection_closes_after_its_answer() -> None:
    connection = FakeConnection(create(), create())
    await serve(connection, FakeApplication(COMPLETED), is_draining=lambda: True)
    assert [event["type"] for event in connection.sent] == [HEADERS_EVENT, "response.completed"]
    assert connection.closed is not None
    assert connection.closed[0] == GOING_AWAY


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    connection = FakeConnection(create())
    connection.is_full = True
    await serve(connection, FakeApplication(COMPLETED))
    assert not connection.is_full


async def test_a_disconnect_cancels_what_may_be_cancelled() -> None:
    connection = FakeConnection(create())
    seen: list[bool] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        client = scope["extensions"][CLIENT_EXTENSION]
        client.cancel_on_disconnect()
        assert connection.on_disconnect is not None
        connection.on_disconnect()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            seen.append(client.cancelled_by_disconnect)
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    subject: Any = application
    await serve(connection, subject)
    assert seen == [True]
