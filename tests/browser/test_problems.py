"""The page says first what is wrong: in a banner, in the rows, and in the figures."""

import re

import pytest
from playwright.async_api import Browser, expect

from tests.support.browser import ADMIN, ADMIN_KEY, Viewer, viewer_of
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_an_engine_that_is_down_is_told_first_with_its_cause_and_cannot_be_drained(
    viewer: Viewer, router: RouterServer, engines: EngineSet
) -> None:
    page = await viewer.show()
    names = page.locator("#engines .name")
    await expect(names).to_have_text(["llama-chat", "llama-code", "mistral"])
    await expect(page.locator("#problems")).to_be_hidden()
    await engines.code.set_faults({"fault": "health", "code": 503})
    problem = page.locator("#problems li")
    await expect(problem).to_have_text(
        # For a screen reader and without colours, too.
        re.compile(r"^Critical engine llama-code is down since [0-9:]{8} UTC: status 503 \(for \d+s\)$")
    )
    await expect(names).to_have_text(["llama-code", "llama-chat", "mistral"])
    row = page.locator("[data-engine=llama-code]")
    await expect(row.locator(".cause")).to_contain_text(re.compile(r"^Down for \d+s: status 503$"))
    await expect(row.get_by_role("button", name="Drain")).to_have_count(0)
    await expect(page.locator("#health")).to_have_text("1 problem")
    await expect(page).to_have_title("(1) Roundhouse")
    await problem.get_by_role("link").click()
    await expect(row).to_be_focused()
    await engines.code.clear_faults()
    await expect(page.locator("#problems")).to_be_hidden()
    await expect(names).to_have_text(["llama-chat", "llama-code", "mistral"])
    await expect(row.get_by_role("button", name="Drain")).to_be_visible()


async def test_a_tenant_that_is_limited_is_named_in_the_banner_and_in_the_chart(
    browser: Browser, make_router: MakeRouter, own_redis: RedisServer, engines: EngineSet
) -> None:
    await own_redis.start()
    limited = f'{ADMIN}\n[[tenant]]\nname = "default"\nrequests_per_minute = 1\n'
    router = await make_router(router_config(own_redis.url, engines.as_config(), rest=limited))
    async with viewer_of(browser, router) as viewer:
        page = await viewer.show()
        for _ in range(40):
            await router.chat("The sea?")
        link = page.locator("#problems li[data-severity=warning] a")
        await expect(link).to_contain_text("tenant default is being limited: 39 refused in 5 minutes")
        await expect(page.locator("#figure-rejected .legend")).to_contain_text("requests_limit, default 39")
        figures = page.locator("#figures > div")
        await expect(figures.filter(has_text="Rejected")).to_contain_text("39")
        await expect(figures.filter(has_text="last hour")).to_have_count(7)
        await link.click()
        await expect(page).to_have_url(f"{router.url}/dashboard#requests?tenant=default&show=refused")


async def test_the_focus_stays_at_a_button_whose_row_moves(
    viewer: Viewer, router: RouterServer, engines: EngineSet
) -> None:
    page = await viewer.show()
    await page.get_by_role("button", name="Drain mistral").focus()
    await router.http.post("/admin/engines/mistral/drain", headers={"authorization": f"Bearer {ADMIN_KEY}"})
    await expect(page.get_by_role("button", name="Resume mistral")).to_be_focused()
    await engines.mistral.set_faults({"fault": "health", "code": 503})
    await expect(page.locator("#engines .name").first).to_have_text("mistral")
    await expect(page.get_by_role("button", name="Resume mistral")).to_be_focused()
