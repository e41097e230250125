"""Requests that wait in the queue for an engine to start."""

import asyncio

from router.core.resilience.breaker import BreakerState
from router.core.resilience.readiness import Readiness, engine_readiness
from router.flow.attempts.admission import Admission
from router.upstream.catalog import Catalog, Model
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig


def readiness(engine: Engine) -> Readiness:
    return engine_readiness(
        up=engine.up, drained=engine.drained, breaker=BreakerState.CLOSED, in_flight=engine.in_flight
    )


async def test_no_engines_are_selected_for_requests_that_wait_before_one_is_up() -> None:
    engine = Engine(
        EngineConfig(name="a", model="m", task="any", url="http://127.0.0.1:1", served_model="m", max_in_flight=64)
    )
    engine.update_status(up=False)
    admission = Admission(
        Catalog([Model("m", "", wake=60.0)], [engine]),
        readiness=readiness,
        queue_timeout=30.0,
        set_queue_length=lambda model, queued: None,
    )
    selected = 0

    def can_use(_: Engine) -> bool:
        nonlocal selected
        selected += 1
        return True

    waiting = [asyncio.ensure_future(admission.wait_for_start("t", "m", can_use, 0, 60.0)) for _ in range(50)]
    await asyncio.sleep(0)
    admission.recheck()
    assert selected == 0
    engine.update_status(up=True)
    admission.recheck()
    for each in waiting:
        (await each).release()
    assert selected == 50  # once for each
