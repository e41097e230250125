"""The server: which settings it gets, and the order in which it executes commands."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn

from router.net.server.connection import BoundedHttpProtocol
from router.process.server import DrainingServer, make_server
from router.settings import Settings, parse
from tests.support.router_server import router_config


@pytest.mark.parametrize(("setting", "seconds"), [("", 75.0), ('keep_alive = "620s"', 620.0)])
async def test_an_idle_connection_of_a_client_stays_open_for_router_keep_alive(
    setting: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.process.server.limit_integer_digits", lambda: None)
    text = (
        f'[router]\n{setting}\n[[model]]\nname = "m"\n[[engine]]\nname = "e"\nmodel = "m"\nurl = "http://127.0.0.1:1"\n'
    )
    server = make_server(parse(text, {}), MagicMock(), None, lambda _: None)
    server.config.load()
    protocol: Any = server.config.http_protocol_class
    connection = protocol(config=server.config, server_state=MagicMock(), app_state={})
    assert isinstance(connection, BoundedHttpProtocol)
    assert connection._timeouts.keep_alive == seconds


async def test_a_stop_that_comes_during_a_reload_begins_when_the_reload_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.process.server.freeze_gc", lambda: None)
    events: list[str] = []
    may_end = asyncio.Event()

    async def reload(_: Settings) -> None:
        await may_end.wait()
        events.append("reloaded")

    application: Any = SimpleNamespace(reload=reload, drain=lambda: events.append("draining"))
    server = DrainingServer(
        uvicorn.Config(application, log_config=None), application, drain_seconds=0.0, reloader=None,
        on_ready=lambda _: None, heartbeat=lambda: None,
        on_reloaded=lambda problem: events.append(f"problem: {problem}"),
    )  # fmt: skip
    server.config.load()
    server.submit(parse(router_config("redis://127.0.0.1:1", {"a": ("llama", "any", "http://127.0.0.1:1")}), {}))
    tick = asyncio.create_task(server.on_tick(1))
    await asyncio.sleep(0)
    server.submit("drain")
    await asyncio.sleep(0)
    assert events == []
    may_end.set()
    assert await tick, "it stops"
    assert events == ["reloaded", "problem: None", "draining"]
