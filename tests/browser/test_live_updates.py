"""The dashboard follows what happens, without being loaded again."""

import pytest
import redis.asyncio as aioredis
from playwright.async_api import Page, expect

from tests.support.browser import ADMIN_KEY, Viewer
from tests.support.router_server import RouterServer

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

ADMIN_HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}


async def mark(page: Page) -> None:
    """A page that was loaded again would lose this mark."""
    await page.evaluate("window.sameDocument = true")


async def is_same_document(page: Page) -> bool:
    return bool(await page.evaluate("window.sameDocument === true"))


async def test_requests_appear_with_the_reason_of_their_miss_and_link_to_their_entry(
    viewer: Viewer, router: RouterServer, redis: "aioredis.Redis"
) -> None:
    page = await viewer.show()
    await mark(page)
    await viewer.wait_until_requests_are_published(redis)
    for _ in range(2):
        await router.chat("What is a roundhouse?")
    rows = page.locator("#requests tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.nth(0)).to_contain_text("HIT")
    await expect(rows.nth(1)).to_contain_text("No similar request is known.")
    assert await is_same_document(page)
    await rows.nth(0).get_by_role("link", name="Entry").click()
    await expect(page.locator("#entry-content pre.answer")).not_to_be_empty()


async def test_a_drain_over_http_shows_at_the_engine_and_in_the_summary(viewer: Viewer, router: RouterServer) -> None:
    page = await viewer.show()
    await mark(page)
    row = page.locator("[data-engine=mistral]")
    await expect(row.locator(".state")).to_have_text("Up")
    await router.http.post("/admin/engines/mistral/drain", headers=ADMIN_HEADERS)
    await expect(row.locator(".state")).to_have_text("Up, drained")
    await expect(page.locator("#problems")).to_contain_text("every engine of mistral is drained: only hits are served")
    await expect(page.locator("#announcer")).to_contain_text("Engine mistral: Up, drained")
    await router.http.post("/admin/engines/mistral/resume", headers=ADMIN_HEADERS)
    await expect(row.locator(".state")).to_have_text("Up")
    assert await is_same_document(page)


async def test_a_lost_connection_shows_and_is_opened_again(viewer: Viewer) -> None:
    viewer.expected = ["ERR_FAILED", "ERR_INTERNET_DISCONNECTED"]
    page = viewer.page
    await page.route("**/dashboard/events", lambda route: route.abort())
    await page.goto(f"{viewer.url}/dashboard")
    await expect(page.locator("#connection-text")).to_have_text("Reconnecting…")
    await page.unroute("**/dashboard/events")
    await expect(page.locator("#connection-text")).to_have_text("Live")


async def test_a_connection_that_is_cut_after_its_first_event_is_not_opened_again_at_once(
    viewer: Viewer, router: RouterServer
) -> None:
    page = viewer.page
    status = (await router.http.get("/admin/status", headers=ADMIN_HEADERS)).text
    cut = f"event: status\ndata: {status}\n\n"
    await page.route("**/dashboard/events", lambda route: route.fulfill(body=cut, content_type="text/event-stream"))
    await page.goto(f"{viewer.url}/dashboard")
    await expect(page.locator("#connection-text")).to_have_text("Reconnecting…")
    await page.unroute("**/dashboard/events")
    await expect(page.locator("#connection-text")).to_have_text("Live")


async def test_a_hidden_page_has_no_connection_until_it_is_shown_again(viewer: Viewer) -> None:
    page = await viewer.show()
    hide = """hidden => {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    async with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
        await page.evaluate(hide, True)
    await expect(page.locator("#connection-text")).to_have_text("Paused")
    await page.evaluate(hide, False)
    await expect(page.locator("#connection-text")).to_have_text("Live")


async def test_the_last_hour_is_drawn_and_can_be_read_with_the_keyboard(viewer: Viewer, router: RouterServer) -> None:
    page = await viewer.show()
    chart = page.locator("#figure-requests")
    await expect(chart.locator("svg .tick").first).to_be_visible()
    slider = chart.get_by_role("slider")
    await slider.focus()
    await page.keyboard.press("Home")
    first = await slider.get_attribute("aria-valuetext")
    await page.keyboard.press("ArrowRight")
    await expect(slider).to_have_attribute("aria-valuenow", "1")
    assert first is not None
    assert first.endswith("Hits 0, Coalesced 0, Stale 0, Misses 0, Bypassed 0")
    await chart.get_by_text("As a table").click()
    await expect(chart.locator("tbody tr")).to_have_count(60)
