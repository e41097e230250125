"""Batches on the overview: how far they are, what came from the cache, and how long the rest takes."""

from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser.test_accessibility import PHONE, violations
from tests.support.batch_lines import HELD, begin_batch, held_lines
from tests.support.browser import ADMIN, Viewer, viewer_of
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

UNKNOWN = "\N{EN DASH}"


@pytest_asyncio.fixture(loop_scope="session")
async def router(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter, tmp_path: Path
) -> RouterServer:
    for engine in (engines.chat, engines.code):
        await engine.set_faults(HELD)
    batch = f'\n[batch]\nfolder = "{tmp_path}"\nmax_in_flight = 4\n'
    return await make_router(router_config(redis_server.url, engines.as_config(), rest=ADMIN + batch))


async def test_a_batch_is_followed_from_its_begin_to_its_end(viewer: Viewer, router: RouterServer) -> None:
    page = await viewer.show()
    await expect(page.locator("#batches-section")).to_contain_text("No batch is open.")
    id_ = await begin_batch(router, held_lines())
    row = page.locator(f"#batches [data-batch={id_}]")
    progress = row.get_by_role("progressbar", name=f"Progress of {id_}")
    await expect(progress).to_have_attribute("aria-valuenow", "50")
    await expect(progress).to_have_attribute("aria-valuetext", "50 of 100 lines")
    await expect(row).to_contain_text("default")
    await expect(row.locator("[data-label='From the cache']")).to_have_text("48%")
    await expect(row.locator("[data-label='Rate']")).to_contain_text("/")
    await expect(row.locator("[data-label='Time left']")).not_to_have_text(UNKNOWN)
    await expect(row.locator("[data-label='Window ends']")).to_contain_text("in 23h 59m")
    await expect(page.locator("#batches-ended-section")).to_be_hidden()
    await router.http.post(f"/v1/batches/{id_}/pause")
    await expect(row.locator(".state")).to_have_text("Paused")
    await expect(row.locator("[data-label='Time left']")).to_have_text(UNKNOWN)
    await expect(page.locator("#announcer")).to_have_text(f"Batch {id_} of default: Paused.")
    await router.http.post(f"/v1/batches/{id_}/cancel")
    await page.get_by_text("The last batch that ended").click()
    ended = page.locator(f"#batches-ended [data-batch={id_}]")
    await expect(ended.locator(".state")).to_have_text("Cancelled")
    await expect(ended).to_contain_text("50 of 100 lines")
    await expect(row).to_have_count(0)


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, PHONE])
async def test_batches_are_accessible_and_fit_any_window(
    browser: Browser, router: RouterServer, options: dict[str, Any]
) -> None:
    async with viewer_of(browser, router, reduced_motion="reduce", **options) as viewer:
        ended = await begin_batch(router, held_lines())
        await router.http.post(f"/v1/batches/{ended}/cancel")
        await begin_batch(router, held_lines())
        page = await viewer.show()
        await page.locator("#batches-ended-summary").click()
        await expect(page.locator("#batches-ended tbody tr")).to_have_count(1)
        await expect(page.locator("#batches").get_by_role("progressbar")).to_be_visible()
        await expect(page.locator("#batches").get_by_role("progressbar")).to_have_attribute("aria-valuenow", "50")
        assert await violations(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


async def test_without_batches_there_is_no_section_of_them(
    browser: Browser, make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=ADMIN))
    async with viewer_of(browser, router) as viewer:
        page = await viewer.show()
        await expect(page.locator("#engines [data-engine=mistral]")).to_be_visible()
        await expect(page.locator("#batches-section")).to_be_hidden()
