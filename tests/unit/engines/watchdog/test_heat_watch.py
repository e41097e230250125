"""Temperature, power and capacity reach the announcement. The GPUs are readings that the test gives."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from engines.watchdog.gpu_sensors import GpuReading
from engines.watchdog.heat_watch import HeatWatch
from engines.watchdog.record import Record
from router.core.cache.redis_keys import WATCHDOG_LOG_KEY
from router.shared.engines.announcements import AnnouncedEngine
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENGINE = AnnouncedEngine(name="e0", model="llama", task="any", url="http://127.0.0.1:1", served_model="l")


class Heated:
    """A watch of GPU 1, read each five seconds, and what it announced."""

    def __init__(self, client: Any, engine: AnnouncedEngine | None = ENGINE) -> None:
        self.now = 0.0
        self.steps = 0
        self.reading = GpuReading(60.4, 250.3)
        self.announced: list[AnnouncedEngine] = []
        self._engine = engine
        self.watch = HeatWatch(
            "e0", (1,), self._read, limit=85.0, record=Record(client, lambda _: None), announcer=self, interval=0,
            clock=lambda: self.now,
        )  # fmt: skip

    async def change(self, name: str, **changes: Any) -> None:
        if self._engine is not None and (changed := replace(self._engine, **changes)) != self._engine:
            self._engine = changed
            self.announced.append(changed)

    async def see(self, celsius: float | None, times: int = 1) -> float:
        """The announced share."""
        for _ in range(times):
            self.now += 5
            self.reading = GpuReading(celsius, 250.3)
            await self.watch.step()
        assert self._engine is not None
        return self._engine.capacity

    def _read(self, gpus: Sequence[int]) -> GpuReading:
        assert gpus == (1,)
        self.steps += 1
        return self.reading


async def test_the_readings_are_announced_rounded_and_only_when_they_change(client: Any, redis: Any) -> None:
    heated = Heated(client)
    await heated.see(60.4, times=3)
    await heated.see(60.1)
    (announced,) = heated.announced
    assert (announced.capacity, announced.temperature_celsius, announced.power_watts) == (1.0, 60, 250)


async def test_a_hot_engine_gets_a_smaller_share_until_it_is_cool_and_both_are_recorded(
    client: Any, redis: Any
) -> None:
    heated = Heated(client)
    assert (await heated.see(88), heated.watch.is_hot) == (0.5, True)
    assert (await heated.see(70, times=6), heated.watch.is_hot) == (0.5, True)
    assert (await heated.see(70), heated.watch.is_hot) == (1.0, False)
    entries = [entry for _, entry in await redis.xrange(WATCHDOG_LOG_KEY)]
    assert [(entry["event"], entry["capacity"]) for entry in entries] == [("capacity", "0.5"), ("capacity", "1")]
    assert entries[0]["text"] == "88 C, limit 85 C: 50% of its in-flight limit"


async def test_a_sensor_that_fails_leaves_the_share_and_is_announced_as_unknown(client: Any, redis: Any) -> None:
    heated = Heated(client)
    await heated.see(88)
    assert await heated.see(None, times=20) == 0.5
    assert heated.announced[-1].temperature_celsius is None


async def test_an_unexpected_failure_is_recorded_once_and_the_watch_continues(client: Any, redis: Any) -> None:
    heated = Heated(client)
    heated.reading = GpuReading("warm")  # type: ignore[arg-type]
    running = asyncio.ensure_future(heated.watch.run())
    await eventually(lambda: heated.steps > 2)
    running.cancel()
    ((_, entry),) = await redis.xrange(WATCHDOG_LOG_KEY)
    assert entry["event"] == "failed"


async def test_an_engine_that_is_not_announced_yet_is_none_of_its_business(client: Any, redis: Any) -> None:
    heated = Heated(client, engine=None)
    await heated.watch.step()
    assert heated.announced == []
