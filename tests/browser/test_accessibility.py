"""The dashboard is usable on a phone, in the dark, and with assistive technology."""

import json
from importlib.resources import files
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.support.browser import Viewer, viewer_of
from tests.support.router_server import RouterServer

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

VIEWS = [
    "",
    "#cache",
    "#cache/explain",
    "#cache/purge",
    "#playground",
    "#requests",
    "#request/none",
    "#tenants",
    "#changes",
]
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()


RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


async def violations(page: Page, rules: list[str] | None = None) -> list[str]:
    """What axe-core finds, with the elements."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE)
    # Only what is shown: axe would look at each of the hidden views, too.
    script = "rules => axe.run({exclude: ['.view[hidden]']}, {runOnly: rules}).then(({violations}) => violations)"
    found: list[dict[str, Any]] = await page.evaluate(script, rules or RULES)
    return [f"{each['id']}: {[json.dumps(node['html'])[:160] for node in each['nodes']][:4]}" for each in found]


async def fill_with_data(viewer: Viewer, router: RouterServer) -> None:
    for prompt in ("What is a whistle?", "What is a whistle?", "What is a bell?"):
        await router.chat(prompt)


@pytest.mark.parametrize(("scheme", "rules"), [("light", RULES), ("dark", ["color-contrast"])])
async def test_no_view_violates_the_accessibility_rules(
    browser: Browser, router: RouterServer, scheme: str, rules: list[str]
) -> None:
    async with viewer_of(browser, router, color_scheme=scheme, reduced_motion="reduce") as viewer:
        await fill_with_data(viewer, router)
        await expect((await viewer.show()).locator("#charts .tick").first).to_be_visible()
        for view in VIEWS:
            page = await viewer.show(view)
            await expect(page.locator("main h1:visible")).to_have_count(1)
            assert await violations(page, rules) == [], view
        page = await viewer.show("#cache")
        await page.locator("#entries tbody a").first.click()
        await expect(page.locator("#entry-content pre.answer")).to_be_visible()
        assert await violations(page, rules) == []
        page = await viewer.show("#requests")
        await page.locator("#request-list tbody a").first.click()
        await expect(page.locator("#request-content dl")).to_be_visible()
        assert await violations(page, rules) == []


async def test_the_first_page_violates_no_accessibility_rule(browser: Browser, router: RouterServer) -> None:
    async with viewer_of(browser, router) as viewer:
        await viewer.page.goto(router.url)
        await expect(viewer.page.get_by_role("link", name="Dashboard")).to_be_visible()
        assert await violations(viewer.page) == []


async def test_the_sign_in_page_violates_no_accessibility_rule(browser: Browser, router: RouterServer) -> None:
    async with viewer_of(browser, router) as viewer:
        await viewer.page.context.clear_cookies()
        await viewer.page.goto(f"{router.url}/dashboard/login")
        assert await violations(viewer.page) == []


async def test_the_dialog_violates_no_accessibility_rule(viewer: Viewer) -> None:
    page = await viewer.show()
    await page.locator("#engines").get_by_role("button").first.click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    assert await violations(page) == []


async def test_a_phone_needs_no_horizontal_scrolling(browser: Browser, router: RouterServer) -> None:
    async with viewer_of(browser, router, **PHONE) as viewer:
        await fill_with_data(viewer, router)
        for view in VIEWS:
            page = await viewer.show(view)
            await expect(page.locator("main h1:visible")).to_have_count(1)
            widths = await page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert widths == [360, 360], view
        page = await viewer.show("")
        # A row of a table is a card: its cells are below each other, each with the name of its column.
        state = page.locator("[data-engine=mistral] td").first
        assert await state.evaluate("cell => getComputedStyle(cell, '::before').content") == '"State"'
        assert await violations(page) == []


async def test_the_theme_follows_the_system_until_the_viewer_chooses_one(
    browser: Browser, router: RouterServer
) -> None:
    async with viewer_of(browser, router, color_scheme="dark") as viewer:
        page = await viewer.show()
        background = "getComputedStyle(document.body).backgroundColor"
        assert await page.evaluate(background) == "rgb(14, 17, 22)"
        await page.get_by_role("button", name="Theme: automatic").click()
        assert await page.evaluate(background) == "rgb(245, 246, 248)"
        await page.reload()
        await expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
        assert await page.evaluate(background) == "rgb(245, 246, 248)"
