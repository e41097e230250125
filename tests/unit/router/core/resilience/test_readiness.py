"""Whether an engine takes a request now."""

import pytest

from router.core.resilience.breaker import BreakerState
from router.core.resilience.readiness import Readiness, engine_readiness

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN


@pytest.mark.parametrize(
    ("up", "drained", "breaker", "in_flight", "expected"),
    [
        (True, False, CLOSED, 0, Readiness.READY),
        (True, False, CLOSED, 9, Readiness.READY),
        (None, False, CLOSED, 0, Readiness.READY),
        (True, False, HALF_OPEN, 0, Readiness.READY),
        (True, False, HALF_OPEN, 1, Readiness.PROBING),
        (False, False, CLOSED, 0, Readiness.DOWN),
        (False, False, HALF_OPEN, 1, Readiness.DOWN),
        (True, False, OPEN, 0, Readiness.BLOCKED),
        (True, True, CLOSED, 0, Readiness.BLOCKED),
        (True, True, HALF_OPEN, 1, Readiness.BLOCKED),
        (False, True, CLOSED, 0, Readiness.BLOCKED),
        (False, False, OPEN, 0, Readiness.BLOCKED),
    ],
)
def test_a_request_is_sent_to_an_engine_that_is_not_known_to_be_unable_and_to_a_half_open_one_alone(
    up: bool | None, drained: bool, breaker: BreakerState, in_flight: int, expected: Readiness
) -> None:
    assert engine_readiness(up=up, drained=drained, breaker=breaker, in_flight=in_flight) is expected
