"""Fixtures for tests of the dashboard in a real browser, against a real router with simulated engines."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.support.browser import ADMIN, WITHOUT_CHROMIUM, Viewer, find_chromium, headless_chromium, viewer_of
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if find_chromium() is None:
        pytest.skip(WITHOUT_CHROMIUM)
    async with headless_chromium() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def router(redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter) -> RouterServer:
    """A router whose dashboard is open to an administrator."""
    return await make_router(router_config(redis_server.url, engines.as_config(), rest=ADMIN))


@pytest_asyncio.fixture(loop_scope="session")
async def viewer(browser: Browser, router: RouterServer) -> AsyncIterator[Viewer]:
    async with viewer_of(browser, router) as signed_in:
        yield signed_in
