"""The page of what administrators changed."""

from typing import Any

import pytest
from playwright.async_api import expect

from router.core.cache.redis_keys import AUDIT_KEY
from tests.support.browser import Viewer

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_a_change_is_listed_with_the_session_that_made_it_and_the_chain_is_checked(
    viewer: Viewer, redis: Any
) -> None:
    await redis.delete(AUDIT_KEY)
    page = await viewer.show("#changes")
    await expect(page.locator("#changes-status")).to_have_text("No change is recorded.")
    headers = {"x-roundhouse-csrf": "1", "origin": viewer.url}
    for _ in range(52):
        answer = await page.request.post(f"{viewer.url}/admin/engines/mistral/resume", headers=headers)
        assert answer.status == 200
    await page.get_by_role("button", name="Refresh").click()
    rows = page.locator("#changes tbody tr")
    await expect(rows).to_have_count(50)
    await expect(rows.first).to_contain_text("session of key ")
    await expect(rows.first).to_contain_text("everywhere yes")
    await page.get_by_role("button", name="Show older").click()
    await expect(rows).to_have_count(52)
    await page.get_by_role("button", name="Check the chain").click()
    await expect(page.locator("#changes-chain")).to_contain_text("52 entries, each follows from the one before it.")
    await page.locator("#changes-action").select_option("purge")
    await expect(page).to_have_url(f"{viewer.url}/dashboard#changes?action=purge")
    await expect(page.locator("#changes-status")).to_have_text("No change is recorded.")
    await redis.delete(AUDIT_KEY)
