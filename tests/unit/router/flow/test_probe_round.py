"""What follows from a round of probes: first the breakers, then the metrics, then the requests that wait."""

import asyncio
from typing import Any

from router.core.resilience.breaker import BreakerPolicy, BreakerState
from router.core.routing.draft_models.draft_stats import DraftStats
from router.core.routing.prefill import Prefills
from router.flow.attempts.admission import Admission
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_selection import EngineSelector
from router.flow.brownout import PressureMonitor
from router.flow.replicas.probe_round import on_probe_round
from router.net.redis.clock import RedisClock
from router.net.redis.pipeline import RedisDownError
from router.shared.engines.breakers import Breakers
from router.shared.prompts.prompt_records import PromptRecords
from router.upstream.catalog import Catalog, Model
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from router.upstream.engine_gauges import EngineGauges


class NoRedis:
    def send(self, *_: Any, **__: Any) -> None:
        raise RedisDownError


def breakers_without_redis() -> Breakers:
    pipeline: Any = NoRedis()
    policy = BreakerPolicy(open_above=0.9, close_below=0.8, failures=3, cooldown=10)
    return Breakers(pipeline, policy, engine_names=lambda: ("a",), clock=RedisClock())


async def test_metrics_and_waiting_requests_meet_the_breakers_as_the_round_leaves_them() -> None:
    a = Engine(
        EngineConfig(name="a", model="m", task="any", url="http://127.0.0.1:1", served_model="m", max_in_flight=1)
    )
    catalog, breakers = Catalog([Model("m", "")], [a]), breakers_without_redis()
    admission = Admission(
        catalog,
        readiness=EngineHealth(breakers).readiness,
        queue_timeout=30.0,
        set_queue_length=lambda _, __: None,
    )
    assert admission.try_acquire("t", [a]) is not None
    waiting = asyncio.ensure_future(admission.acquire("t", [a]))
    await asyncio.sleep(0)
    a.update_gauges(EngineGauges(kv_cache_usage=0.99))
    shown: list[BreakerState] = []
    prefills = Prefills()
    on_probe_round(
        EngineSelector(
            catalog,
            DraftStats(),
            prefills,
            PromptRecords(prefills, "p"),
            exploration_rate=0.0,
            clock=lambda: 0.0,
            random=lambda: 0.5,
        ),
        PressureMonitor(catalog, breakers),
        admission,
        lambda: shown.append(breakers.state("a")),
    )
    assert shown == [BreakerState.OPEN]
    assert await waiting is None, "the only engine has just been found to be full"
