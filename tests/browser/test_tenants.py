"""The page of tenants and their API keys."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from router.core.api_keys import hash_key, key_id
from tests.support.browser import ADMIN, ADMIN_KEY, Viewer, viewer_of
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

KEY = "sk-acme-1"
KEY_ID = key_id(hash_key(KEY.encode()))
TENANTS = f"""
mode = "keys"

[[tenant]]
name = "acme"
keys = ["{hash_key(KEY.encode())}"]
requests_per_minute = 1
tokens_per_day = 5000

[[tenant]]
name = "beta"
keys = []
"""


@pytest_asyncio.fixture(loop_scope="session")
async def keyed(redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter) -> RouterServer:
    return await make_router(router_config(redis_server.url, engines.as_config(), rest=ADMIN + TENANTS))


@pytest_asyncio.fixture(loop_scope="session")
async def keyed_viewer(browser: Browser, keyed: RouterServer) -> AsyncIterator[Viewer]:
    async with viewer_of(browser, keyed) as signed_in:
        yield signed_in


async def test_a_tenant_shows_its_requests_refusals_budget_and_keys_and_links_to_their_requests(
    keyed_viewer: Viewer, keyed: RouterServer
) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    statuses = [(await keyed.chat("What is a semaphore?", headers=headers)).status_code for _ in range(3)]
    assert statuses == [200, 429, 429]

    async def are_counted() -> bool:
        found = await keyed.http.get("/admin/tenants?days=1", headers={"authorization": f"Bearer {ADMIN_KEY}"})
        return bool(found.json()["tenants"][0]["refused"] == 2)

    await eventually(are_counted)  # all of them: the sums may be added to Redis between two requests
    page = await keyed_viewer.show("#tenants?days=1")
    acme = page.locator("[data-tenant=acme]")
    await expect(acme).to_contain_text("2 requests_limit")
    await expect(acme).to_contain_text("of 5,000 tokens a day")
    await expect(page.locator("#tenants-days")).to_have_value("1")
    key = page.locator(f"[data-key='{KEY_ID}']")
    await expect(key).to_be_hidden()
    await acme.get_by_role("button", name="1 key of acme").focus()
    await page.keyboard.press("Enter")
    await expect(key).to_be_visible()
    await expect(acme.get_by_role("button")).to_have_attribute("aria-expanded", "true")
    await expect(page.locator("#tenants-empty")).to_contain_text("roundhouse keys new --tenant beta --name NAME")
    await key.get_by_role("link").click()
    await expect(page.locator("#request-list tbody tr")).to_have_count(3)
    assert page.url.endswith(f"#requests?tenant=acme&key={KEY_ID}")


async def test_without_requests_the_page_says_what_to_do(viewer: Viewer) -> None:
    page = await viewer.show("#tenants")
    await expect(page.locator("[data-tenant=default]")).to_contain_text("not in this period")
    await expect(page.locator("#tenants").get_by_role("button")).to_have_count(0)
    await expect(page.locator("#tenants-empty")).to_contain_text("Send one from the playground")
    await page.get_by_label("Period").select_option("7 days")
    await expect(page).to_have_url(f"{viewer.url}/dashboard#tenants?days=7")
