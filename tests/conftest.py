"""The fixtures that all tests share."""

from tests.simulation import clock

# Before the router is imported, which keeps references to the clocks; they are real except in tests/world.
clock.install(is_used=False)

pytest_plugins = [
    "tests.support.redis_fixtures",
    "tests.support.router_fixtures",
    "tests.support.router_pair_fixtures",
    "tests.support.trace_fixtures",
]
