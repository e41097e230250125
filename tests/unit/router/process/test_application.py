"""The application: what becomes of engines that are announced."""

import asyncio
import logging
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from router.process.application import _FLEET_RETRY, Application
from router.settings import Settings, parse
from router.shared.engines.announcements import AnnouncedEngine, Fleet
from tests.support.router_server import router_config
from tests.support.virtual_time import on_virtual_time

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


@on_virtual_time
async def test_an_announced_engine_that_could_not_be_applied_once_joins_later_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtimes, process_state = Runtimes(), MagicMock()
    application = Application(runtimes.create, process_state, CONFIGURED)
    runtimes.failures = 3
    with caplog.at_level(logging.ERROR):
        process_state.on_fleet_change()
        await asyncio.sleep(2.9 * _FLEET_RETRY)
        assert (runtimes.failures, len(runtimes.created)) == (0, 1)
        await asyncio.sleep(0.2 * _FLEET_RETRY)
        assert len(runtimes.created) == 2
    assert [engine.name for engine in runtimes.created[-1].settings.engine] == ["a", "new"]
    assert len([line for line in caplog.messages if "cannot be applied" in line]) == 1
    assert application.settings == CONFIGURED
    await asyncio.sleep(10 * _FLEET_RETRY)
    assert len(runtimes.created) == 2, "it has joined"


@on_virtual_time
async def test_an_engine_without_room_for_its_slots_is_tried_again_until_the_workers_count_together() -> None:
    runtimes, process_state = Runtimes(), MagicMock()
    application = Application(runtimes.create, process_state, CONFIGURED)
    process_state.on_fleet_change()
    await asyncio.sleep(_FLEET_RETRY)
    applied = runtimes.created[-1].catalog.set_announced
    assert applied.call_count == 1
    applied.side_effect = [False, False, True]
    process_state.on_fleet_change()
    await asyncio.sleep(1.9 * _FLEET_RETRY)
    assert applied.call_count == 3
    await asyncio.sleep(10 * _FLEET_RETRY)
    assert applied.call_count == 4, "no more, since the workers count its requests together"
    assert application.settings == CONFIGURED
