"""A stream that breaks off while its router stops by a signal. The rest is in tests/world."""

import asyncio
import signal
from pathlib import Path

import httpx
import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import chat_body, router_config
from tests.support.sse_answers import DONE_FRAME
from tests.support.toy_model import ToyModel
from tests.support.toy_script import Break, ToyScript, toy_engines
from tests.support.waiting import TEST_TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_router_that_stops_at_the_seam_ends_in_time(tmp_path: Path, redis_server: RedisServer) -> None:
    model = ToyModel("The sea is wide, and the möwe 🙂 flies over it.", [3, 1, 2])
    first, second = ToyScript(model, Break(1500), name="a"), ToyScript(model, Break(0, "stall"), name="b")
    first.may_break.clear()
    async with toy_engines(first, second) as as_config:
        served = RouterProcess(tmp_path, router_config(redis_server.url, as_config, router='grace = "200ms"'))
        served.start()
        try:
            await served.wait_until_ready()
            body = chat_body("x", stream=True, temperature=0, seed=3)
            async with (
                http_client(served.url) as http,
                http.stream("POST", "/v1/chat/completions", json=body) as answer,
            ):
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
            await second.engine.client_disconnected.wait()
            assert await asyncio.to_thread(served.process.wait, TEST_TIMEOUT) == 0
        finally:
            served.kill()
    assert DONE_FRAME not in received
    assert b"data: " in received
    assert "Traceback" not in served.log.read_text()
