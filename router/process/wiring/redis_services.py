"""What a process shares with others through one Redis; it lives as long as `cache.url` stays the same."""

from collections.abc import Sequence

from router.core.cache.redis_keys import tracked_prefixes
from router.process.process_state import ProcessState
from router.process.wiring.background import build_background
from router.process.wiring.cache import build_cache
from router.process.wiring.live_configuration import LiveConfiguration
from router.process.wiring.redis_link import open_redis_link, redis_identity
from router.process.wiring.shared_records import SharedRecords, breaker_policy, build_shared_records
from router.settings import Settings
from router.shared.quota.rate_limits import tenant_budgets, tenant_quotas


class RedisServices:
    """The connections, the cache, the requests in flight, and the records that all routers apply.

    - They are started with the first configuration that is attached, and closed with the last one that is detached.
    - Each of these gets what changes in Redis. What is read and listened to is what any of them needs.
    """

    def __init__(self, settings: Settings, process_state: ProcessState, former: "RedisServices | None") -> None:
        """`former`: those of another Redis, whose drains and announced engines hold until this one is read."""
        self.identity = redis_identity(settings)
        self._live: list[LiveConfiguration] = []
        self.redis = open_redis_link(settings)
        self.cache = build_cache(process_state.telemetry, self.redis)
        self.records: SharedRecords = build_shared_records(
            settings, process_state, self.redis, self._live, former.records if former is not None else None
        )
        self._process_state = process_state
        self._background = build_background(settings, process_state, self.redis, self._live, self.records, self.cache)
        self._is_started = False

    @property
    def live(self) -> Sequence[LiveConfiguration]:
        return self._live

    @property
    def is_shared(self) -> bool:
        return len(self._live) > 1

    def take_effect(self, settings: Settings, old: "RedisServices | None") -> None:
        """`settings`: the ones in effect from now on. `old`: the services before, often these."""
        cache = settings.cache
        self.redis.pipeline.set_times(cache.timeout, cache.retry)
        self._background.listener.retry_interval = cache.retry
        self.records.breakers.policy = breaker_policy(settings)
        self._process_state.tenant_limits.configure(
            self.redis.pipeline, tenant_quotas(settings), tenant_budgets(settings), clock=self.redis.clock.now
        )
        self.cache.local.resize(cache.local)
        self.cache.retention.enabled = cache.retention == "worth"
        self._process_state.prompt_records.link = self._background.record_link
        if old is not None and old is not self:
            self.records.drains.take_over(old.records.drains)

    async def attach(self, configuration: LiveConfiguration) -> None:
        """Returns after the first contact with Redis, whether it answers or not."""
        self._live.append(configuration)
        stored_keys = self.records.stored_keys
        if configuration.has_stored_keys and stored_keys.loaded:
            configuration.auth.set_stored_keys(stored_keys.records)
        configuration.engines.catalog.set_drained(self.records.drains.names)
        configuration.engines.catalog.set_announced(self.records.announcements.fleet.engines)
        tenants = dict.fromkeys(name for each in self._live for name in each.tenants)
        await self._background.listener.track(tracked_prefixes(tenants))
        await self._configure_keys()
        if not self._is_started:
            self._is_started = True
            await self._background.services.start()
        else:
            self.records.breakers.refresh()  # of new engines, other routers may have opened some

    async def detach(self, configuration: LiveConfiguration) -> None:
        """Changes nothing for one that was never attached."""
        self.records.stored_keys.flush_used()  # while its keys still say which were used
        self._live[:] = [each for each in self._live if each is not configuration]
        if self._live:
            await self._configure_keys()
        elif self._is_started:
            await self._background.services.aclose()

    async def _configure_keys(self) -> None:
        await self.records.stored_keys.configure(
            enabled=any(each.has_stored_keys for each in self._live),
            publishes=any(each.publishes_keys for each in self._live),
        )
