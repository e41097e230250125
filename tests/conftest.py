"""The fixtures that all tests share."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.simulation import clock

# Before the router is imported, which keeps references to the clocks; they are real except in tests/world.
clock.install(is_used=False)

# As every server without an access log leaves it: see uvicorn.Config.
logging.getLogger("uvicorn.access").propagate = False

# The examples of `ci` are always the same ones, and `make test-compiled` has them all.
settings.register_profile("brief", settings.get_profile("ci"), max_examples=20)

pytest_plugins = [
    "tests.support.import_order",
    "tests.support.object_store_fixture",
    "tests.support.process_state",
    "tests.support.redis_fixtures",
    "tests.support.router_fixtures",
    "tests.support.router_pair_fixtures",
    "tests.support.trace_fixtures",
]


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Without the logger of asyncio: it logs the tasks of an earlier test when they are deleted."""
    caplog.handler.addFilter(_is_not_of_asyncio)
    yield caplog
    caplog.handler.removeFilter(_is_not_of_asyncio)


def _is_not_of_asyncio(record: logging.LogRecord) -> bool:
    return record.name != "asyncio"
