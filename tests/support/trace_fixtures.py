"""The fixture of routers whose spans are recorded in memory. It also needs router_fixtures."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from router.telemetry.tracing import otlp
from tests.support.logging_state import logging_as_it_was
from tests.support.recorded_spans import TRACING, RecordedSpans
from tests.support.router_server import RouterServer

TracedRouter = Callable[..., Awaitable[tuple[RouterServer, RecordedSpans]]]


@pytest.fixture
def traced_process() -> Iterator[None]:
    """Restores what open_tracer changes of the whole process: levels of loggers, and the switch interval of threads."""
    interval = sys.getswitchinterval()
    with logging_as_it_was():
        yield
    sys.setswitchinterval(interval)


@pytest_asyncio.fixture(loop_scope="session")
async def traced(redis: object, traced_process: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TracedRouter]:
    """Starts a router with tracing on; `tracing` is added to its table, `spans` may be those of another router."""
    monkeypatch.setattr(otlp, "EXPORT_INTERVAL", 0.005)
    async with AsyncExitStack() as stack:

        async def make(
            text: str, tracing: str = "", spans: RecordedSpans | None = None
        ) -> tuple[RouterServer, RecordedSpans]:
            recorded = spans or RecordedSpans()
            text = f"{text}\n{TRACING}{tracing}"
            server = RouterServer(text, open_exporter=lambda _: recorded.exporter)
            return await stack.enter_async_context(server), recorded

        yield make
