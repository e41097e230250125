"""The fixtures that all tests share."""

pytest_plugins = [
    "tests.support.redis_fixtures",
    "tests.support.router_fixtures",
    "tests.support.router_pair_fixtures",
    "tests.support.trace_fixtures",
]
