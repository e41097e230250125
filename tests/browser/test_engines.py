"""Engines are drained and resumed on the page, with the pointer and with the keyboard."""

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import Viewer
from tests.support.router_server import RouterServer

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def is_drained(router: RouterServer, engine: str) -> bool:
    return bool((await router.http.get("/healthz")).json()["engines"][engine]["drained"])


async def focused_name(page: Page) -> str:
    return str(await page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent.trim()"))


async def test_drain_and_resume_ask_before_they_act(viewer: Viewer, router: RouterServer) -> None:
    page = await viewer.show()
    row, dialog = page.locator("[data-engine=llama-code]"), page.get_by_role("dialog")
    await row.get_by_role("button", name="Drain").click()
    await expect(dialog).to_contain_text("Drain llama-code?")
    await dialog.get_by_role("button", name="Cancel").click()
    assert not await is_drained(router, "llama-code")
    await row.get_by_role("button", name="Drain").click()
    await dialog.get_by_role("button", name="Drain").click()
    await expect(row.locator(".state")).to_have_text("Up, drained")
    assert await is_drained(router, "llama-code")
    await row.get_by_role("button", name="Resume").click()
    await dialog.get_by_role("button", name="Resume").click()
    await expect(row.locator(".state")).to_have_text("Up")
    assert not await is_drained(router, "llama-code")


async def test_draining_the_only_engine_of_a_model_warns_of_what_follows(viewer: Viewer) -> None:
    page = await viewer.show()
    await page.locator("[data-engine=mistral]").get_by_role("button").click()
    await expect(page.get_by_role("dialog")).to_contain_text("the only engine of mistral")


async def test_an_engine_is_drained_and_resumed_with_the_keyboard_alone(viewer: Viewer, router: RouterServer) -> None:
    page = await viewer.show()
    await page.keyboard.press("Tab")
    assert await focused_name(page) == "Skip to content"
    await page.keyboard.press("Enter")
    while await focused_name(page) != "Drain llama-chat":
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    assert await focused_name(page) == "Drain"
    await page.keyboard.press("Escape")
    # The focus is back at the button, and stays there while the page updates itself.
    assert await focused_name(page) == "Drain llama-chat"
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    await expect(page.locator("[data-engine=llama-chat] .state")).to_have_text("Up, drained")
    assert await is_drained(router, "llama-chat")
    assert await focused_name(page) == "Resume llama-chat"
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    await expect(page.locator("[data-engine=llama-chat] .state")).to_have_text("Up")


async def test_a_question_asked_right_after_another_was_closed_is_answered(
    viewer: Viewer, router: RouterServer
) -> None:
    page = await viewer.show()
    # In one task, so that the second question is shown before the event that the first one was closed.
    await page.evaluate("""() => {
        const button = document.querySelector("[data-engine=llama-chat] button");
        button.click();
        document.getElementById("dialog").close();
        button.click();
    }""")
    await page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    await expect(page.locator("[data-engine=llama-chat] .state")).to_have_text("Up, drained")
    await page.get_by_role("button", name="Resume llama-chat").click()
    await page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    await expect(page.locator("[data-engine=llama-chat] .state")).to_have_text("Up")
    assert not await is_drained(router, "llama-chat")


async def test_a_refused_drain_is_reported_in_words(viewer: Viewer) -> None:
    viewer.expected = ["503"]
    page = await viewer.show()
    error = '{"error": {"message": "Redis does not answer.", "type": "x", "param": null, "code": "redis_down"}}'
    await page.route("**/drain", lambda route: route.fulfill(status=503, body=error, content_type="application/json"))
    await page.locator("[data-engine=llama-code]").get_by_role("button").click()
    await page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    await expect(page.get_by_role("alert")).to_contain_text("llama-code was not changed. Redis does not answer.")
