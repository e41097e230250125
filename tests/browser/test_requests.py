"""The requests that the routers remember: their list, its filters, and what happened to one of them."""

import pytest
from playwright.async_api import expect

from tests.support.browser import Viewer
from tests.support.router_server import EngineSet, RouterServer

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def answered(router: RouterServer, prompt: str, model: str = "llama") -> str:
    return (await router.chat(prompt, model=model)).headers["x-request-id"]


async def test_a_click_on_a_request_opens_what_why_says_at_an_address_that_can_be_shared(
    viewer: Viewer, router: RouterServer
) -> None:
    page = await viewer.show()
    request_id = await answered(router, "What is a turntable?")
    await page.locator("#requests tbody tr").first.locator("td").first.click()
    content = page.locator("#request-content")
    await expect(content).to_contain_text("MISS, new: no similar request was known")
    await expect(content).to_contain_text("for the lookup in Redis")
    await expect(content).to_contain_text(f"roundhouse why {request_id}")
    assert page.url.endswith(f"#request/{request_id}")
    shared = await viewer.show(f"#request/{request_id}")
    await expect(shared.locator("#request-content")).to_contain_text("llama-chat: ok")
    await shared.get_by_role("link", name="Requests of tenant").click()
    await expect(shared.locator("#request-list tbody tr")).to_have_count(1)


async def test_hits_can_be_hidden_and_failures_found_by_model(
    viewer: Viewer, router: RouterServer, engines: EngineSet
) -> None:
    missed = await answered(router, "What is a tender?")
    await answered(router, "What is a tender?")
    await engines.mistral.set_faults({"fault": "status", "code": 500})
    failed = await answered(router, "What is a tender?", "mistral")
    page = await viewer.show("#requests")
    listed = page.locator("#request-list tbody tr")
    await expect(listed).to_have_count(3)
    await page.locator("#request-filter [name=show]").select_option("Without hits")
    await expect(listed).to_have_count(2)
    await expect(listed.nth(1)).to_have_attribute("data-request", missed)
    await page.locator("#request-filter [name=show]").select_option("Failed")
    await expect(listed).to_have_count(1)
    await expect(listed).to_have_attribute("data-request", failed)
    await listed.get_by_role("link").first.click()
    await expect(page.locator("#request-content")).to_contain_text("mistral: status-500 after")
    await expect(page.locator("#request-content")).to_contain_text("Server errors high")
    await page.go_back()
    assert page.url.endswith("#requests?show=failed")
    await page.locator("#request-filter").get_by_label("Model").fill("llama")
    await page.locator("#request-filter").get_by_role("button", name="Show").click()
    status = page.locator("#request-list-status")
    await expect(status).to_contain_text("No router remembers a request at model llama that failed.")
    await status.get_by_role("link", name="show all").click()
    await expect(listed).to_have_count(3)


async def test_a_paused_list_stays_until_it_is_resumed(viewer: Viewer, router: RouterServer) -> None:
    await answered(router, "What is a bogie?")
    page = await viewer.show("#requests")
    listed = page.locator("#request-list tbody tr")
    await expect(listed).to_have_count(1)
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("#request-list-status")).to_contain_text("Paused at")
    await answered(router, "What is a coupler?")
    await viewer.page.locator("#requests tbody tr").nth(1).wait_for(state="attached")  # the overview is live
    await expect(listed).to_have_count(1)
    await page.get_by_role("button", name="Resume").click()
    await expect(listed).to_have_count(2)


async def test_a_request_is_found_by_its_id_and_an_unknown_one_is_told(viewer: Viewer, router: RouterServer) -> None:
    request_id = await answered(router, "What is a boiler?")
    page = await viewer.show("#requests")
    await page.get_by_label("Request id").fill(request_id)
    await page.keyboard.press("Enter")
    await expect(page.locator("#request-content dl")).to_contain_text("MISS")
    await page.goto(f"{viewer.url}/dashboard#request/nobody's")
    await expect(page.get_by_role("alert")).to_contain_text("No router remembers this request.")
