"""The records in Redis that all routers apply: API keys, drains, announced engines, and what tenants have used."""

import time
from functools import partial
from typing import NamedTuple

from router.api.access.auth import Authenticator
from router.flow.attempts.admission import Admission
from router.flow.replicas.invalidation import on_drains
from router.process.process_state import ProcessState
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.redis_link import RedisLink
from router.settings import Settings, tenants
from router.shared.credentials.stored_keys import StoredKeys
from router.shared.engines.announcements import Announcements, Fleet
from router.shared.engines.drains import Drains
from router.shared.quota.rate_limits import TenantLimits, tenant_budgets, tenant_quotas
from router.upstream.catalog import Catalog


class SharedRecords(NamedTuple):
    stored_keys: StoredKeys
    drains: Drains
    announcements: Announcements
    tenant_limits: TenantLimits


def build_shared_records(
    settings: Settings,
    process_state: ProcessState,
    redis: RedisLink,
    auth: Authenticator,
    engines: EnginePool,
    old: tuple[Settings, SharedRecords] | None,
) -> SharedRecords:
    """`old`: those of the configuration that this one replaces, whose last records hold until Redis is read."""
    pipeline, clock, former = redis.pipeline, redis.clock, old[1] if old is not None else None
    stored_keys = StoredKeys(
        pipeline,
        auth.set_stored_keys,
        clock=clock.now,
        take_used=auth.take_used,
        enabled=has_stored_keys(settings),
        publishes=settings.auth_mode == "keys",
        previous=old[1].stored_keys if old is not None and old[0].redis_url == settings.redis_url else None,
    )
    catalog, admission = engines.catalog, engines.admission
    drains = Drains(pipeline, partial(on_drains, catalog, admission), former.drains if former is not None else None)
    catalog.set_drained(drains.names)
    announcements = Announcements(
        pipeline,
        partial(_on_fleet_change, catalog, admission, process_state),
        clock=time.monotonic,
        redis_clock=clock.now,
        previous=former.announcements if former is not None else None,
    )
    catalog.set_announced(announcements.fleet.engines)
    tenant_limits = TenantLimits(pipeline, tenant_quotas(settings), tenant_budgets(settings), clock=clock.now)
    return SharedRecords(stored_keys, drains, announcements, tenant_limits)


def build_authenticator(settings: Settings, redis: RedisLink) -> Authenticator:
    return Authenticator(
        settings.auth_mode,
        {key: tenant.name for tenant in settings.tenant for key in tenant.keys},
        tenants(settings),
        guarded=settings.auth.mode is None,
        has_stored_keys=has_stored_keys(settings),
        clock=redis.clock.now,
    )


def has_stored_keys(settings: Settings) -> bool:
    """Whether keys in Redis make a difference."""
    return settings.auth.mode in (None, "keys")


def _on_fleet_change(catalog: Catalog, admission: Admission, process_state: ProcessState, fleet: Fleet) -> None:
    """Applies the announced states at once; the application applies other engines and revisions."""
    catalog.set_announced(fleet.engines)
    admission.recheck()  # an engine with a higher capacity takes waiting requests
    process_state.on_fleet_change()
