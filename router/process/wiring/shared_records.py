"""The records in Redis that all routers apply: API keys, drains, announced engines and breakers."""

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from router.api.access.auth import AdminAuthenticator, Authenticator
from router.core.api_keys import KeyRecord
from router.core.resilience.breaker import BreakerPolicy
from router.flow.replicas.invalidation import on_drains
from router.process.process_state import ProcessState
from router.process.wiring.live_configuration import LiveConfiguration, has_stored_keys
from router.process.wiring.redis_link import RedisLink
from router.settings import Settings, tenants
from router.shared.credentials.stored_keys import StoredKeys
from router.shared.engines.announcements import Announcements, Fleet
from router.shared.engines.breakers import Breakers
from router.shared.engines.drains import Drains


class SharedRecords(NamedTuple):
    stored_keys: StoredKeys
    drains: Drains
    announcements: Announcements
    breakers: Breakers


def build_shared_records(
    settings: Settings,
    process_state: ProcessState,
    redis: RedisLink,
    live: Sequence[LiveConfiguration],
    former: SharedRecords | None,
) -> SharedRecords:
    """`live`: what the records are applied to. `former`: those of another Redis, which hold until this one is read."""
    pipeline, clock = redis.pipeline, redis.clock

    def on_keys(records: Collection[KeyRecord]) -> None:
        for each in live:
            if each.has_stored_keys:
                each.auth.set_stored_keys(records)

    def on_drained(names: frozenset[str]) -> None:
        for each in live:
            on_drains(each.engines.catalog, each.engines.admission, names)

    def on_fleet(fleet: Fleet) -> None:
        """Applies the announced states at once; the application applies other engines and revisions."""
        for each in live:
            each.engines.catalog.set_announced(fleet.engines)
            each.engines.admission.recheck()  # an engine with a higher capacity takes waiting requests
        process_state.on_fleet_change()

    return SharedRecords(
        StoredKeys(
            pipeline,
            on_keys,
            clock=clock.now,
            take_used=lambda: [key for each in live for key in each.auth.take_used()],
            enabled=False,
        ),
        Drains(pipeline, on_drained, former.drains if former is not None else None),
        Announcements(
            pipeline,
            on_fleet,
            clock=time.monotonic,
            redis_clock=clock.now,
            previous=former.announcements if former is not None else None,
        ),
        Breakers(
            pipeline,
            breaker_policy(settings),
            engine_names=lambda: {name for each in live for name in each.engines.catalog.engines},
            clock=clock,
            previous=former.breakers if former is not None else None,
        ),
    )


def breaker_policy(settings: Settings) -> BreakerPolicy:
    limits = settings.breaker
    return BreakerPolicy(limits.open_above, limits.close_below, limits.failures, limits.cooldown)


def build_authenticator(settings: Settings, redis: RedisLink) -> Authenticator:
    return Authenticator(
        settings.auth_mode,
        {key: tenant.name for tenant in settings.tenant for key in tenant.keys},
        tenants(settings),
        guarded=settings.auth.mode is None,
        has_stored_keys=has_stored_keys(settings),
        clock=redis.clock.now,
    )


def build_admin_authenticator(settings: Settings, records: SharedRecords) -> AdminAuthenticator:
    return AdminAuthenticator(settings.auth.admin_keys, records.stored_keys.record_use)
