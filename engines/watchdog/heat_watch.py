"""Watches the temperature of one engine's GPUs, and lowers the share of its in-flight limit while they are hot."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from engines.watchdog.engine_watch import EngineAnnouncer
from engines.watchdog.gpu_sensors import GpuReading, ReadGpus
from engines.watchdog.heat import HeatState, decide_share
from engines.watchdog.periodic import repeat
from engines.watchdog.record import Record


class HeatWatch:
    """Announces temperature, power and share to the routers until it is cancelled.

    It runs beside the watch of the throughput, since a reading may hang with a broken driver.
    """

    def __init__(
        self, engine: str, gpus: Sequence[int], read: ReadGpus, *, limit: float, record: Record,
        announcer: EngineAnnouncer, interval: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`limit` in degrees Celsius, `interval` between two readings in seconds."""
        self._engine = engine
        self._gpus = gpus
        self._read = read
        self._limit = limit
        self._record = record
        self._announcer = announcer
        self._interval = interval
        self._sleep = sleep
        self._clock = clock
        self._state = HeatState()

    @property
    def is_hot(self) -> bool:
        """Whether the share is lowered."""
        return self._state.share < 1.0

    async def run(self) -> None:
        await repeat(self.step, engine=self._engine, record=self._record, interval=self._interval, sleep=self._sleep)

    async def step(self) -> None:
        reading = await asyncio.to_thread(self._read, self._gpus)
        state = decide_share(self._state, reading.celsius, self._limit, self._clock())
        before, self._state = self._state, state
        if state.share != before.share:
            text = f"{reading.celsius:.0f} C, limit {self._limit:.0f} C: {state.share:.0%} of its in-flight limit"
            await self._record.write(self._engine, "capacity", text, capacity=f"{state.share:g}")
        await self._announce(reading, state.share)

    async def _announce(self, reading: GpuReading, share: float) -> None:
        # Rounded, so that not every reading is another announcement.
        celsius = round(reading.celsius) if reading.celsius is not None else None
        watts = round(reading.watts) if reading.watts is not None else None
        await self._announcer.change(self._engine, capacity=share, temperature_celsius=celsius, power_watts=watts)
