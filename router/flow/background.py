"""What runs beside the requests of a process, so that it knows of the others."""

import asyncio
import contextlib
from typing import Final

from router.flow.coalescer import Coalescer
from router.flow.invalidation import InvalidationHandler
from router.net.redis.listener import Listener
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.tasks import cancel_and_wait
from router.shared.drains import Drains
from router.shared.hit_counter import HitCounter
from router.shared.inflight_leases import InFlightLeases
from router.shared.purges import Purges
from router.shared.rate_limits import TenantLimits

_HIT_FLUSH_INTERVAL: Final = 2.0  # seconds
_LOAD_RETRY_INTERVAL: Final = 0.5  # seconds after which a Redis that took no writes, or was away, may be asked again
_MAX_BATCH: Final = 500  # commands, so that lookups need not wait behind thousands


class BackgroundServices:
    """The line to Redis, what is heard over it, and the claims that are held through it."""

    def __init__(
        self,
        *,
        pipeline: RedisPipeline,
        purges: Purges,
        leases: InFlightLeases,
        listener: Listener,
        coalescer: Coalescer,
        hit_counter: HitCounter,
        tenant_limits: TenantLimits,
        drains: Drains,
        invalidation_handler: InvalidationHandler,
    ) -> None:
        self._pipeline = pipeline
        self._purges = purges
        self._leases = leases
        self._listener = listener
        self._coalescer = coalescer
        self._hit_counter = hit_counter
        self._tenant_limits = tenant_limits
        self._drains = drains
        self._invalidation_handler = invalidation_handler

    async def start(self) -> None:
        """Looks for Redis; waits for it a moment."""
        await self._pipeline.start()
        if self._pipeline.up:
            with contextlib.suppress(RedisDownError):  # it was up, and is away again; `run` will wait for it
                await self._purges.load()
            await self._drains.try_refresh()

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        works = (
            self._load_purges(),
            self._listener.run(),
            self._leases.run(),
            self._tenant_limits.run(),
            self._flush_hits_periodically(),
        )
        tasks = [loop.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks)
        finally:
            await cancel_and_wait(*tasks)

    async def _load_purges(self) -> None:
        while not self._purges.loaded:
            await self._pipeline.wait_until_up()
            with contextlib.suppress(RedisDownError):  # it was up, and is away again
                await self._purges.load()
            if not self._purges.loaded:
                await asyncio.sleep(_LOAD_RETRY_INTERVAL)

    async def _flush_hits_periodically(self) -> None:
        while True:
            await asyncio.sleep(_HIT_FLUSH_INTERVAL)
            self._flush_hits()

    def _flush_hits(self) -> None:
        commands = self._hit_counter.take_commands()
        with contextlib.suppress(RedisDownError):
            for at in range(0, len(commands), _MAX_BATCH):
                self._pipeline.send(*commands[at : at + _MAX_BATCH])

    async def aclose(self) -> None:
        """Ends the flights that are still in the air, and lets what is to be written be written."""
        await self._coalescer.aclose()
        self._flush_hits()
        await self._invalidation_handler.aclose()
        await self._pipeline.aclose()
        self._leases.stop()
