"""Signing in to the dashboard and out."""

import pytest
from playwright.async_api import Browser, expect

from tests.support.browser import ADMIN_KEY, Viewer, viewer_of
from tests.support.router_server import MakeRouter, RouterServer

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_a_wrong_key_is_refused_in_words_and_the_right_one_opens_the_dashboard(
    browser: Browser, router: RouterServer
) -> None:
    async with viewer_of(browser, router) as viewer:
        viewer.expected = ["401"]  # Chromium logs the status of the refusal
        page = viewer.page
        await page.context.clear_cookies()
        await page.goto(f"{router.url}/dashboard")
        await page.get_by_label("Admin key").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("not an admin key")
        await page.get_by_label("Admin key").fill(ADMIN_KEY)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("#connection-text")).to_have_text("Live")
        assert ADMIN_KEY not in page.url
        assert ADMIN_KEY not in await page.content()


async def test_after_signing_out_the_dashboard_asks_for_a_key_again(viewer: Viewer, router: RouterServer) -> None:
    page = await viewer.show()
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url("**/dashboard/login")
    await page.goto(f"{router.url}/dashboard")
    await expect(page.get_by_label("Admin key")).to_be_focused()


async def test_a_session_that_ends_while_the_page_is_open_is_reported_with_a_way_to_sign_in(viewer: Viewer) -> None:
    viewer.expected = ["401"]
    page = await viewer.show()
    await page.context.clear_cookies()
    await page.locator("#engines").get_by_role("button", name="Drain mistral").click()
    await page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    await expect(page.locator("#connection-text")).to_have_text("Signed out")
    await expect(page.get_by_role("link", name="Sign in again")).to_be_visible()


async def test_a_router_without_admin_keys_says_how_to_open_its_dashboard(
    browser: Browser, config: str, make_router: MakeRouter
) -> None:
    router = await make_router(config)
    async with viewer_of(browser, router) as viewer:
        viewer.expected = ["403"]
        await viewer.page.goto(f"{router.url}/dashboard")
        await expect(viewer.page.get_by_role("heading", level=1)).to_have_text("The dashboard is closed")
        await expect(viewer.page.locator("main")).to_contain_text("roundhouse keys new")


async def test_a_link_opens_the_dashboard_once_and_leaves_no_trace_in_the_address(
    browser: Browser, router: RouterServer
) -> None:
    async with viewer_of(browser, router) as viewer:
        viewer.expected = ["401"]
        page = viewer.page
        await page.context.clear_cookies()
        bearer = {"authorization": f"Bearer {ADMIN_KEY}"}
        made = await page.context.request.post(f"{router.url}/admin/sign-in-links", headers=bearer)
        path = (await made.json())["path"]
        token = path.partition("#token=")[2]
        seen: list[str] = []
        page.on("request", lambda request: seen.append(f"{request.url} {request.headers}"))
        page.on("framenavigated", lambda frame: seen.append(frame.url))
        await page.goto(f"{router.url}{path}")
        await expect(page.locator("#connection-text")).to_have_text("Live")
        assert page.url == f"{router.url}/dashboard"
        assert not [each for each in seen if token in each and not each.endswith(path)]
        await page.go_back()
        assert token not in page.url
        await page.goto(f"{router.url}{path}")
        await expect(page.get_by_role("status")).to_contain_text("was used already")
        assert page.url == f"{router.url}/dashboard/sign-in"
