"""A headless Chromium, and a viewer of the dashboard in it."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import redis.asyncio as aioredis
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright, expect

from router.api.access.auth import hash_key
from tests.support.router_server import RouterServer
from tests.support.waiting import TEST_TIMEOUT, eventually

ADMIN_KEY = "sk-admin-of-the-dashboard"
ADMIN = f'[auth]\nadmin_keys = ["{hash_key(ADMIN_KEY.encode())}"]'
"""The configuration of a router whose dashboard opens with ADMIN_KEY."""

WITHOUT_CHROMIUM = "there is no Chromium; on Debian: apt-get install chromium"


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@asynccontextmanager
async def headless_chromium() -> AsyncIterator[Browser]:
    expect.set_options(timeout=TEST_TIMEOUT * 1000)
    async with async_playwright() as playwright:
        # As root, as in containers, Chromium needs --no-sandbox.
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


class Viewer:
    """Somebody who looks at the dashboard of a router.

    `problems` collects what must not happen: console errors (with violations of the Content-Security-Policy), uncaught
    exceptions, and requests to anywhere else than the router.
    """

    page: Page

    def __init__(self, context: BrowserContext, url: str) -> None:
        self._context = context
        self.url = url
        self.problems: list[str] = []
        self.expected: list[str] = []

    async def open(self) -> Self:
        self.page = await self._context.new_page()
        self.page.set_default_timeout(TEST_TIMEOUT * 1000)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        self.page.on("request", self._on_request)
        return self

    async def sign_in(self) -> None:
        """As the login form does, without showing it."""
        await self._context.request.post(f"{self.url}/dashboard/login", form={"key": ADMIN_KEY})

    async def show(self, view: str = "") -> Page:
        """Opens a view, such as `#cache`, and waits until its data are live."""
        await self.page.goto(f"{self.url}/dashboard{view}")
        await self.page.locator("#connection[data-state=live]").wait_for()
        return self.page

    async def wait_until_requests_are_published(self, redis: "aioredis.Redis") -> None:
        """Routers publish requests from the time on at which they know of a viewer; then there is their snapshot."""
        await eventually(lambda: redis.keys("rh:1:router:*"))

    def unexpected_problems(self) -> list[str]:
        return [found for found in self.problems if not any(text in found for text in self.expected)]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.problems.append(f"{message.type}: {message.text} {message.location.get('url', '')}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(self.url):
            self.problems.append(f"request to {request.url}")


@asynccontextmanager
async def viewer_of(browser: Browser, router: RouterServer, **options: Any) -> AsyncIterator[Viewer]:
    """A viewer who is signed in; fails at the end if there were problems. `options`: those of Playwright's contexts."""
    context = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        viewer = await Viewer(context, router.url).open()
        await viewer.sign_in()
        yield viewer
        assert viewer.unexpected_problems() == []
    finally:
        await context.close()
