"""How many lines of batches may begin at an engine: below three quarters of its limit, configured or learned."""

from math import inf

import pytest

from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from router.upstream.engine_gauges import EngineGauges


def engine(max_in_flight: int | None = None) -> Engine:
    return Engine(
        EngineConfig(name="a", model="m", task="any", url="http://a", served_model="m", max_in_flight=max_in_flight)
    )


@pytest.mark.parametrize(("limit", "running", "spare"), [(8, 0, 6), (8, 5, 1), (8, 6, 0), (8, 8, -2), (1, 0, 1)])
def test_a_quarter_of_the_configured_slots_stays_free(limit: int, running: int, spare: int) -> None:
    found = engine(limit)
    found.update_gauges(EngineGauges(running=1.0, waiting=0.0))
    for _ in range(running):
        found.start_request()
    assert found.spare_slots == spare


def test_without_a_limit_the_gauges_and_the_own_requests_since_count() -> None:
    found = engine()
    assert found.spare_slots == inf
    found.update_gauges(EngineGauges(running=12.0, waiting=4.0))
    assert found.spare_slots == 0, "there is a queue"
    for _ in range(5):
        found.start_request()
    found.update_gauges(EngineGauges(running=5.0, waiting=0.0))
    assert found.spare_slots == 1
    found.start_request()
    assert found.spare_slots == 0
    found.end_request()
    assert found.spare_slots == 1
    for _ in range(9):
        found.update_gauges(EngineGauges(running=8.0, waiting=0.0))
    assert found.spare_slots == 1, "three of other processes; nine is three quarters of the limit"


def test_what_was_learned_outlives_a_reload_and_not_the_end_of_the_engine() -> None:
    found, reloaded = engine(), engine()
    found.update_gauges(EngineGauges(running=12.0, waiting=4.0))
    reloaded.inherit_state(found)
    assert reloaded.learned_limit.limit == 12
    reloaded.update_status(up=False)
    assert reloaded.learned_limit.limit is None
