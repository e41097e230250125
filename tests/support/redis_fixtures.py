"""Fixtures that give a test every way in which people run Redis; all are started at once, when the first is wanted."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.redis_deployments import (
    DEPLOYMENTS,
    Deployment,
    StartDeployment,
    start_deployment,
    unavailable_reason,
)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def started() -> AsyncIterator[dict[str, Deployment | str]]:
    """Each deployment by its name, or why there is none."""
    reasons = {name: unavailable_reason(name) for name in DEPLOYMENTS}
    names = [name for name, reason in reasons.items() if reason is None]
    running = dict(zip(names, await asyncio.gather(*map(start_deployment, names)), strict=True))
    try:
        yield {**{name: reason for name, reason in reasons.items() if reason is not None}, **running}
    finally:
        for one in running.values():
            one.remove()


@pytest.fixture(params=DEPLOYMENTS)
def deployment(request: pytest.FixtureRequest, started: dict[str, Deployment | str]) -> Deployment:
    """Each way to run Redis in turn; what a test leaves there, the next finds."""
    found = started[request.param]
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest_asyncio.fixture(loop_scope="session")
async def start_own() -> AsyncIterator[StartDeployment]:
    """Starts a deployment to break."""
    own: list[Deployment] = []

    async def start(name: str) -> Deployment:
        own.append(await start_deployment(name))
        return own[-1]

    yield start
    for one in own:
        one.remove()
