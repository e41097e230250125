"""The background tasks of a process, which keep it in sync with the other processes through Redis."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from router.flow.replicas.invalidation import InvalidationHandler
from router.flow.sharing.coalescer import Coalescer
from router.net.redis.commands import Command
from router.net.redis.listener import Listener
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.tasks import cancel_and_wait
from router.shared.accounting.ledger import FLUSH_INTERVAL
from router.shared.cache.hit_counter import HitCounter
from router.shared.cache.purges import Purges
from router.shared.cache.retention import REFRESH_INTERVAL, WorthRetention
from router.shared.connection.redis_writes import RedisWrites
from router.shared.connection.rights_report import RightsReport
from router.shared.credentials.stored_keys import StoredKeys
from router.shared.engines.announcements import Announcements
from router.shared.engines.drains import Drains
from router.shared.inflight.inflight_leases import InFlightLeases
from router.shared.quota.rate_limits import TenantLimits
from router.upstream.model_lists import AdapterRefresh

log = logging.getLogger("roundhouse.redis")

_HIT_FLUSH_INTERVAL: Final = 2.0  # seconds
_ANNOUNCEMENTS_INTERVAL: Final = 2.0  # seconds between two reads, which decide whether a lease has ended
_LOAD_RETRY_INTERVAL: Final = 0.5  # seconds until the next attempt, after Redis accepted no writes or was down
_RESTART_DELAY: Final = 1.0  # seconds, after a task has failed
_MAX_COMMANDS: Final = 500  # in one turn; see `execute_in_turns`

_Service = Callable[[], Coroutine[Any, Any, None]]


class BackgroundServices:
    """Starts, runs and closes everything in this process that talks to Redis in the background."""

    def __init__(
        self,
        *,
        pipeline: RedisPipeline,
        redis_writes: RedisWrites,
        rights_report: RightsReport,
        purges: Purges,
        leases: InFlightLeases,
        listener: Listener,
        coalescer: Coalescer,
        hit_counter: HitCounter,
        retention: WorthRetention | None,
        tenant_limits: TenantLimits,
        drains: Drains,
        announcements: Announcements,
        stored_keys: StoredKeys,
        invalidation_handler: InvalidationHandler,
        flush_savings: Callable[[], None],
        adapter_refresh: AdapterRefresh,
    ) -> None:
        """`flush_savings` sends the sums of the savings ledger. `retention`: None keeps every entry for its TTL."""
        self._pipeline = pipeline
        self._redis_writes = redis_writes
        self._rights_report = rights_report
        self._purges = purges
        self._leases = leases
        self._listener = listener
        self._coalescer = coalescer
        self._hit_counter = hit_counter
        self._retention = retention
        self._tenant_limits = tenant_limits
        self._drains = drains
        self._announcements = announcements
        self._stored_keys = stored_keys
        self._invalidation_handler = invalidation_handler
        self._flush_savings = flush_savings
        self._adapter_refresh = adapter_refresh

    async def start(self) -> None:
        """Connects to Redis and waits for that for a moment. Does not fail if Redis is down; `run` retries."""
        await self._pipeline.start()
        if self._pipeline.up:
            await self._stored_keys.try_refresh()
            with contextlib.suppress(RedisDownError):  # it has gone down since; `run` waits for it
                await self._purges.load()
            await self._drains.try_refresh()
            await self._announcements.try_refresh()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        services: list[_Service] = [
            self._load_purges,
            self._redis_writes.run,
            self._rights_report.run,
            self._listener.run,
            self._leases.run,
            self._tenant_limits.run,
            self._flush_hits_periodically,
            self._flush_savings_periodically,
            self._read_announcements_periodically,
            self._stored_keys.run,
        ]
        if self._retention is not None:
            services.append(partial(self._refresh_retention_periodically, self._retention))
        tasks = [loop.create_task(keep_running(service)) for service in services]
        try:
            await asyncio.wait(tasks)
        finally:
            await cancel_and_wait(*tasks)

    async def _load_purges(self) -> None:
        while not self._purges.loaded:
            await self._pipeline.wait_until_up()
            with contextlib.suppress(RedisDownError):  # it has gone down since
                await self._purges.load()
            if not self._purges.loaded:  # also without an error, if the log was lost and Redis accepts no writes
                await asyncio.sleep(_LOAD_RETRY_INTERVAL)

    async def _read_announcements_periodically(self) -> None:
        while True:
            await asyncio.sleep(_ANNOUNCEMENTS_INTERVAL)
            await self._announcements.try_refresh()

    async def _flush_hits_periodically(self) -> None:
        while True:
            await asyncio.sleep(_HIT_FLUSH_INTERVAL)
            with contextlib.suppress(RedisDownError):
                await execute_in_turns(self._pipeline, self._hit_counter.take_commands())

    async def _refresh_retention_periodically(self, retention: WorthRetention) -> None:
        while True:
            retention.refresh()
            await asyncio.sleep(REFRESH_INTERVAL)

    async def _flush_savings_periodically(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_INTERVAL)
            self._flush_savings()

    @property
    def has_unsent_records(self) -> bool:
        return self._leases.is_writing

    async def aclose(self) -> None:
        # First: the ends of in-flight requests go to their followers through the pipeline.
        await self._coalescer.aclose()
        with contextlib.suppress(RedisDownError):
            await execute_in_turns(self._pipeline, self._hit_counter.take_commands())
        self._flush_savings()
        await self._invalidation_handler.aclose()
        self._stored_keys.flush_used()
        self._stored_keys.withdraw()
        await self._adapter_refresh.aclose()
        await self._pipeline.aclose()  # sends what is queued
        # Last: until the pipeline is closed, replies make the stream writers send what remains.
        self._leases.stop()


async def keep_running(service: _Service) -> None:
    """Runs it until it returns. One that fails is logged and started again."""
    while True:
        try:
            return await service()
        except Exception:
            # The last line of defence: a defect must not end this process' claims, limits or purges for good.
            log.exception("a task in the background failed; it starts again")
        await asyncio.sleep(_RESTART_DELAY)


async def execute_in_turns(pipeline: RedisPipeline, commands: Sequence[Command]) -> None:
    """Executes thousands of commands so that cache lookups, which share the connection, do not wait behind all of them.

    Raises RedisDownError.
    """
    for start in range(0, len(commands), _MAX_COMMANDS):
        await pipeline.execute(*commands[start : start + _MAX_COMMANDS])
