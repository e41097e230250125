"""Wires the watches of the engines that one launcher has started."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import httpx
import msgspec

from engines.spec import EngineSpec
from engines.watchdog.availability import Availability
from engines.watchdog.drains import Drains
from engines.watchdog.engine_watch import EngineAnnouncer, EngineWatch
from engines.watchdog.gpu_sensors import ReadGpus
from engines.watchdog.heat_watch import HeatWatch
from engines.watchdog.planned_restart import POLL_INTERVAL, PlannedRestart, Restart
from engines.watchdog.record import Record
from engines.watchdog.scrape import Scrape, scrape_engine
from engines.watchdog.settings import WatchdogSpec
from router.shared.connection.redis import open_client

_REDIS_TIMEOUT: Final = 5.0  # seconds


class WatchedEngine(msgspec.Struct, frozen=True):
    """One engine to watch.

    - `url`: where it listens now; Ray may start it at another address. None while it is not placed.
    - `restart`: EngineSupervisor.restart.
    - `gpus`: those whose temperature counts.
    """

    spec: EngineSpec
    url: Callable[[], str | None]
    restart: Restart
    gpus: Sequence[int] = ()


class Watchdog:
    """Watches engines, each with a call of `watch`."""

    def __init__(
        self, settings: WatchdogSpec, *, engines: Sequence[EngineSpec], client: httpx.AsyncClient, redis_url: str,
        announcer: EngineAnnouncer, read_gpus: ReadGpus | None, report: Callable[[str], None],
        poll_interval: float = POLL_INTERVAL,
    ) -> None:  # fmt: skip
        """Raises RedisUrlError.

        - `engines`: all engines of the configuration, also those that are started elsewhere.
        - `read_gpus`: see find_gpu_reader; None: the temperature is unknown.
        - `report` gets a line for a person about each event.
        - `poll_interval`: seconds between two checks whether a drained engine is idle.
        """
        self._settings = settings
        self._client = client
        self._redis = open_client(redis_url, timeout=_REDIS_TIMEOUT)
        self.drains = Drains(self._redis)
        self._record = Record(self._redis, report)
        self._availability = Availability(engines, client, self._redis, self.drains)
        self._announcer = announcer
        self._read_gpus = read_gpus
        self._poll_interval = poll_interval
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by model

    async def watch(self, engine: WatchedEngine) -> None:
        """Watches the engine until it is cancelled; if it has drained it for a restart, it resumes it then.

        If the watchdog is not enabled, it resumes what a launcher that was killed has drained, and returns.
        """
        heat = self._heat_watch(engine)
        watch = self._engine_watch(engine, heat)
        if not self._settings.enabled:
            await watch.resume_if_drained()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(watch.run())
            if heat is not None:
                group.create_task(heat.run())

    async def aclose(self) -> None:
        await self._redis.aclose()

    def _engine_watch(self, engine: WatchedEngine, heat: HeatWatch | None) -> EngineWatch:
        spec = engine.spec

        def scrape() -> Awaitable[Scrape]:
            # Nothing answers at an empty URL, so an engine that is not placed is unhealthy.
            return scrape_engine(self._client, engine.url() or "", time.monotonic)

        others = partial(self._availability.has_substitute, spec)

        async def request_count() -> float | None:
            reading = await scrape()
            return None if reading.running is None else reading.running + (reading.waiting or 0.0)

        restart = PlannedRestart(
            spec.name, self.drains, request_count=request_count, restart=engine.restart, others_available=others,
            drain_timeout=self._settings.drain_timeout, poll_interval=self._poll_interval,
            streams_go_on=spec.model in self._settings.continued_models,
        )  # fmt: skip
        return EngineWatch(
            spec.name, self._settings.policy, scrape=scrape, drains=self.drains, restart=restart,
            others_available=others, is_hot=lambda: heat is not None and heat.is_hot, record=self._record,
            announcer=self._announcer, turn=self._turns[spec.model], interval=self._settings.interval,
        )  # fmt: skip

    def _heat_watch(self, engine: WatchedEngine) -> HeatWatch | None:
        if self._read_gpus is None or not engine.gpus:
            return None
        return HeatWatch(
            engine.spec.name, engine.gpus, self._read_gpus, limit=self._settings.max_temperature,
            record=self._record, announcer=self._announcer, interval=self._settings.interval,
        )  # fmt: skip
