"""Listening sockets in tests: nothing of them is left when the event loop ends."""

import asyncio
import gc
import socket
import warnings

import pytest

from tests.support.scripted_engine import ScriptedEngine


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_is_accepted_while_its_server_stops_is_closed(turns: int) -> None:
    async def stop_after_a_connection() -> None:
        engine = ScriptedEngine()
        await engine.start()
        with socket.create_connection(("127.0.0.1", int(engine.url.rpartition(":")[2]))):
            for _ in range(turns):
                await asyncio.sleep(0)
            await engine.stop()
        await asyncio.sleep(0)

    gc.collect()  # what earlier tests have left
    with warnings.catch_warnings(record=True) as unclosed:
        warnings.simplefilter("always")
        asyncio.run(stop_after_a_connection())
        gc.collect()
    assert [str(each.message) for each in unclosed] == []
