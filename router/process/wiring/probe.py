"""The check of the engines, and what follows from each round of it."""

from functools import partial

from router.flow.brownout import PressureMonitor
from router.flow.replicas.probe_round import on_probe_round
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.redis_link import RedisLink
from router.telemetry.telemetry import Telemetry
from router.upstream.probe import EngineProbe


def build_probe(telemetry: Telemetry, redis: RedisLink, engines: EnginePool) -> EngineProbe:
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
