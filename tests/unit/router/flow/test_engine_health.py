"""What the health of the engines permits."""

from typing import Any

from router.core.resilience.breaker import BreakerPolicy
from router.core.resilience.retry import CONTINUATIONS_PER_SECOND
from router.core.resilience.retry_budget import RetryBudget
from router.flow.attempts.engine_health import EngineHealth
from router.net.client.errors import EngineError
from router.net.redis.clock import RedisClock
from router.shared.engines.breakers import Breakers
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig

BROKEN_OFF = EngineError("broken-off", "the engine closed the connection")


def test_streams_of_an_engine_that_died_go_on_when_the_budget_of_retries_is_used_up() -> None:
    nothing: Any = None
    policy = BreakerPolicy(open_above=0.9, close_below=0.8, failures=3, cooldown=10)
    breakers = Breakers(nothing, policy, engine_names=lambda: ("a",), clock=RedisClock())
    health = EngineHealth(breakers, clock=lambda: 0.0)
    engine = Engine(EngineConfig(name="a", model="m", task="any", url="http://127.0.0.1:1", served_model="m"))

    def permitted(*, continues: bool) -> int:
        count = 0
        while health.permit(engine, previous_error=BROKEN_OFF, continues=continues) is not None:
            count += 1
        return count

    assert permitted(continues=False) == RetryBudget.MIN_RETRIES_PER_SECOND * RetryBudget.WINDOW
    assert permitted(continues=True) == CONTINUATIONS_PER_SECOND * RetryBudget.WINDOW
