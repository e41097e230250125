"""Fixtures for every Redis deployment; all of them start together, when the first one is needed."""

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
    """Each deployment by its name, or the reason why it is unavailable."""
    reasons = {name: unavailable_reason(name) for name in DEPLOYMENTS}
    names = [name for name, reason in reasons.items() if reason is None]
    running = dict(zip(names, await asyncio.gather(*map(start_deployment, names)), strict=True))
    try:
        yield {**{name: reason for name, reason in reasons.items() if reason is not None}, **running}
    finally:
        for started_deployment in running.values():
            started_deployment.remove()


@pytest.fixture(params=DEPLOYMENTS)
def deployment(request: pytest.FixtureRequest, started: dict[str, Deployment | str]) -> Deployment:
    """Each deployment in turn; it keeps its data from test to test."""
    running = started[request.param]
    if isinstance(running, str):
        pytest.skip(running)
    return running


@pytest_asyncio.fixture(loop_scope="session")
async def start_own() -> AsyncIterator[StartDeployment]:
    """Starts a deployment that the test may break; a replica takes over once the test has enabled that."""
    own: list[Deployment] = []

    async def start(name: str) -> Deployment:
        own.append(await start_deployment(name))
        return own[-1]

    yield start
    for own_deployment in own:
        own_deployment.remove()
