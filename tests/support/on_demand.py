"""A model whose engine is started by demand: what an autoscaler such as KEDA does, for tests."""

import asyncio
import contextlib
from types import TracebackType
from typing import Protocol, Self

from tests.support.router_server import RouterClient

QUEUED = 'llm_requests_queued{model="llama"}'
WAKE = "60s"


def with_wake(text: str, wake: str = WAKE, model: str = "llama") -> str:
    return text.replace(f'name = "{model}"\naliases', f'name = "{model}"\nwake = "{wake}"\naliases')


async def queued(*routers: RouterClient) -> float:
    """The sum over the routers, which is what KEDA's query asks for."""
    pages = [await router.metrics() for router in routers]
    return sum(page.get(QUEUED, 0.0) for page in pages)


class Starts(Protocol):
    async def start(self) -> None: ...


class Launcher:
    """Starts an engine once a request waits at one of the routers, and at least `waiting` of them do."""

    def __init__(self, engine: Starts, *routers: RouterClient, waiting: int = 1) -> None:
        self._engine = engine
        self._routers = routers
        self._waiting = waiting
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while await queued(*self._routers) < self._waiting:  # noqa: ASYNC110 - as an autoscaler does
            await asyncio.sleep(0.05)
        await self._engine.start()
