"""A blocked event loop is not taken for a silent Redis."""

import asyncio
import socket
import threading
import time
from typing import Any

import pytest
import uvloop

from router.net.redis.connection import RedisConnection
from router.net.redis.handshake import Handshake
from tests.support.waiting import TEST_TIMEOUT

HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_replies_that_arrived_while_the_loop_was_blocked_are_in_time(new_loop: Any) -> None:
    """The server runs in its own thread, and replies while the client's event loop is blocked."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        request_arrived = threading.Event()

        def serve() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.recv(65536)
                connected.sendall(HELLO)
                connected.recv(65536)
                connected.sendall(b":1\r\n")
                request_arrived.set()
                connected.recv(65536)

        async def work() -> Any:
            connection = RedisConnection()
            await connection.connect(listening.getsockname(), Handshake(None, None, 0, None), TEST_TIMEOUT)
            batch = connection.execute([("GET", "k")], 0.05)
            await asyncio.sleep(0)
            assert request_arrived.wait(TEST_TIMEOUT)
            time.sleep(0.1)  # noqa: ASYNC251 - it is the loop that is to be held up
            try:
                return await batch
            finally:
                connection.abort()

        serving = threading.Thread(target=serve)
        serving.start()
        loop = new_loop()
        try:
            assert loop.run_until_complete(work()) == [1]
        finally:
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
            serving.join()
