"""Fixtures that give a test every way in which people run Redis; all are started at once, when the first is wanted."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis_deployments import DEPLOYMENTS, Deployment, StartDeployment, cannot_run
from redis_process import CannotStartError


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def started() -> AsyncIterator[dict[str, Deployment | str]]:
    """Each deployment by its name, or why there is none."""
    found: dict[str, Deployment | str] = {name: cannot_run(name) or make() for name, make in DEPLOYMENTS.items()}
    running = {name: one for name, one in found.items() if isinstance(one, Deployment)}
    try:
        errors = await asyncio.gather(*map(_start, running.values()))
        found |= {name: error for name, error in zip(running, errors, strict=True) if error is not None}
        yield found
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
        own.append(DEPLOYMENTS[name]())
        await own[-1].start()
        return own[-1]

    yield start
    for one in own:
        one.remove()


async def _start(deployment: Deployment) -> str | None:
    try:
        await deployment.start()
    except CannotStartError:
        return "this machine's Redis was built without TLS"
    return None
