"""The check of the engines, and what follows from each round of it."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from router.flow.brownout import PressureMonitor
from router.flow.replicas.probe_round import on_probe_round
from router.process.process_state import ProcessState
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.gpu_turns import GpuTurns, build_gpu_turns
from router.process.wiring.live_configuration import LiveConfiguration
from router.process.wiring.redis_link import RedisLink
from router.settings import Settings
from router.telemetry.telemetry import Telemetry
from router.upstream.probe import EngineProbe


class EngineChecks(NamedTuple):
    """What decides which engines get requests: their checks, and the turns at GPUs."""

    probe: EngineProbe
    turns: GpuTurns


def build_engine_checks(
    settings: Settings, process_state: ProcessState, redis: RedisLink, live: Sequence[LiveConfiguration],
    engines: EnginePool,
) -> EngineChecks:  # fmt: skip
    probe = _build_probe(process_state.telemetry, redis, engines)
    return EngineChecks(probe, build_gpu_turns(settings, process_state, redis, live, engines, probe))


def _build_probe(telemetry: Telemetry, redis: RedisLink, engines: EnginePool) -> EngineProbe:
    catalog, breaker_state = engines.catalog, engines.breakers.state

    def update_gauges() -> None:
        telemetry.update_gauges(
            catalog.engines.values(), breaker_state, redis_up=redis.pipeline.up,
            asleep=catalog.asleep_engines(breaker_state),
        )  # fmt: skip

    return EngineProbe(
        catalog,
        engines.client,
        model_lists=engines.model_lists,
        on_round=partial(
            on_probe_round,
            engines.selector,
            PressureMonitor(catalog, engines.breakers),
            engines.admission,
            update_gauges,
        ),
        on_up=engines.admission.recheck_engine,
    )
