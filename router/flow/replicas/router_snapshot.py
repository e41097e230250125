"""What this router process sees, as the status API shows it."""

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from router.build_info import build_version, is_compiled
from router.core.resilience.breaker import BreakerState
from router.core.routing.prefill import PrefixIndexStatus
from router.shared.status.router_snapshots import PackedEngine, RouterSnapshot
from router.shared.status.status_documents import BreakerStateName, ModelRow, RouterRow
from router.upstream.catalog import Catalog
from router.upstream.engine import Engine

BREAKER_STATES: Final[Mapping[BreakerState, BreakerStateName]] = {
    BreakerState.CLOSED: "closed", BreakerState.HALF_OPEN: "half-open", BreakerState.OPEN: "open",
}  # fmt: skip


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while the process lives. `started_at` in seconds since the epoch, by its own clock."""

    id: str
    host: str
    pid: int
    version: str
    compiled: bool
    started_at: float
    supervisor: int | None


def identify_process(now: float, *, is_worker: bool) -> ProcessIdentity:
    return ProcessIdentity(
        id=secrets.token_hex(8),
        host=socket.gethostname(),
        pid=os.getpid(),
        version=build_version(),
        compiled=is_compiled(),
        started_at=round(now, 3),
        supervisor=os.getppid() if is_worker else None,
    )


class ProcessLoad(msgspec.Struct, frozen=True, kw_only=True):
    """See RouterRow."""

    in_flight: int
    queued: int
    draining: bool


def take_snapshot(
    identity: ProcessIdentity,
    load: ProcessLoad,
    catalog: Catalog,
    breaker_state: Callable[[str], BreakerState],
    drafts: Mapping[str, str],
    prefix_status: Callable[[str], PrefixIndexStatus],
    now: float,
) -> RouterSnapshot:
    """`drafts`: the configured drafts, by the name of the engine's family. `prefix_status`: by the engine's URL.

    `now`: by Redis' clock.
    """
    asleep = catalog.asleep_engines(breaker_state)
    router = RouterRow(
        **msgspec.structs.asdict(identity), in_flight=load.in_flight, queued=load.queued, draining=load.draining,
        seen=0.0,
    )  # fmt: skip
    return RouterSnapshot(
        published_at=round(now, 3),
        router=router,
        engines=tuple(
            _engine_row(
                engine, breaker_state(engine.name), drafts.get(engine.family), prefix_status(engine.id),
                is_asleep=asleep.get(engine.name, False),
            )
            for engine in catalog.engines.values()
        ),
        models=model_rows(catalog, breaker_state),
    )  # fmt: skip


def model_rows(catalog: Catalog, breaker_state: Callable[[str], BreakerState]) -> tuple[ModelRow, ...]:
    return tuple(
        ModelRow(
            name=model.name, fallback=model.fallback,
            asleep=model.wake is not None and catalog.is_asleep(model.name, breaker_state),
        )
        for model in catalog.models
    )  # fmt: skip


def _engine_row(
    engine: Engine, breaker: BreakerState, draft: str | None, prefixes: PrefixIndexStatus, *, is_asleep: bool
) -> PackedEngine:
    gauges, announced = engine.gauges, engine.announced
    return PackedEngine(
        name=engine.name,
        model=engine.model,
        task=engine.task,
        url=engine.url,
        draft=draft,
        state=engine.state,
        drained=engine.drained,
        breaker=BREAKER_STATES[breaker],
        in_flight=engine.in_flight,
        max_in_flight=engine.max_in_flight,
        running=gauges.running,
        waiting=gauges.waiting,
        kv_cache_usage=gauges.kv_cache_usage,
        prefix_cache_hit_rate=gauges.prefix_cache_hit_rate,
        spec_acceptance_rate=gauges.spec_acceptance_rate,
        spec_tokens_per_step=gauges.spec_tokens_per_step,
        restarts=None if announced is None else sum(announced.restarts.values()),
        temperature_celsius=None if announced is None else announced.temperature_celsius,
        power_watts=None if announced is None else announced.power_watts,
        announced=announced is not None,
        prefix_tokens=prefixes.tokens,
        prefix_capacity_tokens=prefixes.capacity_tokens,
        prefix_entries=prefixes.entries,
        prefix_unused_seconds=prefixes.unused_seconds,
        seconds_per_token=prefixes.seconds_per_token,
        asleep=is_asleep,
        since=None if engine.since is None else round(engine.since, 3),
        cause=engine.cause,
        failures=engine.failures,
    )
