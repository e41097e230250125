"""The application: what becomes of engines that are announced."""

import asyncio
import logging
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from router.process.application import Application
from router.settings import Settings, parse
from router.shared.engines.announcements import AnnouncedEngine, Fleet
from tests.support.router_server import router_config
from tests.support.waiting import eventually

CONFIGURED = parse(router_config("unix:///x", {"a": ("llama", "chat", "http://127.0.0.1:1")}), {})
NEW = AnnouncedEngine(name="new", model="llama", task="chat", url="http://127.0.0.1:2", served_model="m")


class Runtimes:
    """Stands in for what creates runtimes; `failures`: how many of the next ones cannot be created."""

    def __init__(self) -> None:
        self.failures = 0
        self.created: list[Any] = []

    def create(self, settings: Settings, *_: object) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError("no space left on the device")
        runtime = MagicMock(start=AsyncMock(), aclose=AsyncMock(), on_replaced=AsyncMock(), settings=settings)
        runtime.announcements.fleet = Fleet({"new": NEW})
        self.created.append(runtime)
        return runtime


async def test_an_announced_engine_that_could_not_be_applied_once_joins_later_and_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("router.process.application._FLEET_RETRY", 0.001)
    runtimes, process_state = Runtimes(), MagicMock()
    application = Application(runtimes.create, process_state, CONFIGURED)
    runtimes.failures = 3
    with caplog.at_level(logging.ERROR):
        process_state.on_fleet_change()
        await eventually(lambda: len(runtimes.created) == 2)
    assert [engine.name for engine in runtimes.created[-1].settings.engine] == ["a", "new"]
    assert len([line for line in caplog.messages if "cannot be applied" in line]) == 1
    assert application.settings == CONFIGURED


async def test_an_engine_without_room_for_its_slots_is_tried_again_until_the_workers_count_its_requests_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.process.application._FLEET_RETRY", 0.001)
    runtimes, process_state = Runtimes(), MagicMock()
    application = Application(runtimes.create, process_state, CONFIGURED)
    process_state.on_fleet_change()
    await eventually(lambda: len(runtimes.created) == 2)
    applied = runtimes.created[-1].catalog.set_announced
    applied.side_effect = [False, False, True]
    process_state.on_fleet_change()
    await eventually(lambda: applied.call_count >= 4)
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert applied.call_count == 4, "the first one was with the new engine"
    assert application.settings == CONFIGURED
