"""What a WebSocket does with a client that sends too much, or reads too little."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from router.flow.body_budget import BodyAllocation, BodyBudget
from router.net.server.timeouts import ClientTimeouts
from router.net.server.websocket import CLOSE_TIMEOUT, MAX_WAITING, Message, WebSocketConnection, WebSocketLimits
from tests.support.waiting import eventually

TEXT = Frame(Opcode.TEXT, b"x").serialize(mask=True)


class FakeTransport:
    def __init__(self) -> None:
        self.is_aborted = False

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


async def open_connection(transport: Any) -> tuple[WebSocketConnection, list[Message]]:
    """A connection that waits for its first message, takes it, and answers it for ever; and what it has taken."""
    taken: list[Message] = []

    async def serve(connection: WebSocketConnection) -> None:
        message = await connection.receive()
        if message is not None:
            taken.append(message)
            await asyncio.Event().wait()

    budget = BodyBudget()
    limits = WebSocketLimits(1000, ClientTimeouts(30, 60, 75), lambda: BodyAllocation(budget, 10_000))
    connection = WebSocketConnection(limits, serve)
    connection.attach(transport, set(), set())
    await asyncio.sleep(0)
    return connection, taken


async def test_one_message_is_answered_while_as_many_as_are_allowed_wait() -> None:
    connection, taken = await open_connection(FakeTransport())
    connection.data_received(TEXT * (1 + MAX_WAITING))
    await eventually(lambda: taken)
    assert connection.is_open
    connection.data_received(TEXT)
    assert not connection.is_open


async def test_a_client_that_sends_no_more_is_cut_off_soon_though_it_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = FakeTransport()
    connection, _ = await open_connection(transport)
    timers: list[tuple[float, Callable[[], object]]] = []
    monkeypatch.setattr(
        asyncio.get_running_loop(), "call_later", lambda delay, callback: timers.append((delay, callback))
    )
    has_left: list[bool] = []
    connection.on_disconnect = lambda: has_left.append(True)
    connection.eof_received()
    ((delay, cut_off),) = timers
    cut_off()
    assert (delay, has_left, transport.is_aborted) == (CLOSE_TIMEOUT, [True], True)
