"""The playground sends a prompt as a client would."""

import asyncio
import json
import shlex
import subprocess
import sys

import pytest
from playwright.async_api import Browser, Page, expect

from router.api.access.auth import hash_key
from tests.support.browser import ADMIN, Viewer, viewer_of
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

TENANT_KEY = "rh-key-of-acme"
TENANT = f'[[tenant]]\nname = "acme"\nkeys = ["{hash_key(TENANT_KEY.encode())}"]'


async def send(page: Page, prompt: str) -> None:
    await page.get_by_label("Prompt", exact=True).fill(prompt)
    await page.get_by_role("button", name="Send").click()


async def test_asking_again_shows_the_hit_beside_the_miss(viewer: Viewer) -> None:
    page = await viewer.show("#playground")
    await page.locator("#playground-form select").select_option("mistral")
    await page.locator("#playground-form").get_by_label("System prompt").fill("You are terse.")
    await page.get_by_label("Temperature").fill("0")
    await send(page, "What is a turntable?")
    first, second = page.get_by_label("First answer"), page.get_by_label("Second answer")
    await expect(first).to_contain_text("Complete.")
    await expect(first.locator(".badge")).to_have_text("MISS")
    await page.get_by_role("button", name="Ask again").click()
    await expect(second).to_contain_text("Complete.")
    await expect(second.locator(".badge")).to_have_text("HIT")
    await expect(second.locator(".headers")).to_contain_text("x-engine")
    await expect(second.locator(".headers")).to_contain_text("age")
    await expect(second.locator(".comparison")).to_contain_text("First token in")
    assert await first.locator("pre").inner_text() == await second.locator("pre").inner_text() != ""
    # The key in the headers leads to the entry.
    await second.get_by_role("link").click()
    await expect(page.locator("#entry-content pre.answer")).to_have_text(await first.locator("pre").inner_text())


async def test_it_opens_on_auto_with_an_example_that_can_be_sent_at_once(viewer: Viewer) -> None:
    page = await viewer.show("#playground")
    await expect(page.locator("#playground-form select")).to_have_value("auto")
    await expect(page.get_by_label("Prompt", exact=True)).not_to_be_empty()
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_label("First answer")).to_contain_text("Complete.")


async def test_the_request_is_copied_as_a_command_that_works(viewer: Viewer, router: RouterServer) -> None:
    page = await viewer.show("#playground")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=router.url)
    await page.locator("#playground-form select").select_option("mistral")
    await page.get_by_label("Prompt", exact=True).fill("It's a 'quoted' $HOME `prompt`?\nYes.")
    await page.get_by_label("Max. tokens").fill("5")
    await page.get_by_role("button", name="Copy as curl").click()
    await expect(page.locator("#playground-form")).to_contain_text("Copied.")
    command = await page.evaluate("navigator.clipboard.readText()")
    argv = shlex.split(command.replace("\\\n", ""))
    assert argv[:2] == ["curl", f"{router.url}/v1/chat/completions"]
    body = json.loads(argv[argv.index("-d") + 1])
    assert body["messages"] == [{"role": "user", "content": "It's a 'quoted' $HOME `prompt`?\nYes."}]
    assert (body["max_tokens"], body["stream"]) == (5, True)
    await page.get_by_role("button", name="Copy as Python").click()
    await expect(page.get_by_label("The request as code")).to_contain_text("from openai import OpenAI")
    program = await page.evaluate("navigator.clipboard.readText()")
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr


async def test_an_answer_is_shown_as_markdown_and_its_text_stays_readable(viewer: Viewer, engines: EngineSet) -> None:
    text = "# A *title*\n\n- one **bold**\n- two `code`\n\n```python\nprint('<b>')\n```\n"
    await engines.mistral.set_faults({"fault": "say", "text": text})
    page = await viewer.show("#playground")
    await page.locator("#playground-form select").select_option("mistral")
    await send(page, "What is a boiler?")
    answer = page.get_by_label("First answer")
    await expect(answer).to_contain_text("Complete.")
    shown = answer.locator(".markdown")
    await expect(shown.locator("h3 em")).to_have_text("title")
    await expect(shown.locator("li strong")).to_have_text("bold")
    await expect(shown.locator("pre code")).to_have_text("print('<b>')")
    await answer.get_by_role("button", name="Plain text").click()
    await expect(shown).to_be_hidden()
    await expect(answer.locator("pre.answer")).to_have_text(text)


async def test_stop_ends_a_stream_and_keeps_what_came(viewer: Viewer, engines: EngineSet) -> None:
    await engines.mistral.set_faults({"fault": "stall", "after": 3})
    page = await viewer.show("#playground")
    await page.locator("#playground-form select").select_option("mistral")
    await send(page, "What is a coaling tower?")
    answer = page.get_by_label("First answer")
    await expect(answer.locator("pre")).not_to_be_empty()
    await page.get_by_role("button", name="Stop").click()
    await expect(answer).to_contain_text("Stopped.")
    await expect(answer.locator("pre")).not_to_be_empty()
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()


async def test_a_stream_that_breaks_off_says_why(viewer: Viewer, engines: EngineSet) -> None:
    await engines.mistral.set_faults({"fault": "error", "after": 3, "message": "the core died"})
    page = await viewer.show("#playground")
    await page.locator("#playground-form select").select_option("mistral")
    await send(page, "What is a smokebox?")
    await expect(page.get_by_label("First answer").get_by_role("alert").first).to_be_visible()


async def test_the_key_of_a_tenant_stays_in_memory_and_goes_to_the_inference_api_only(
    browser: Browser, redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    rest = f'{ADMIN}\nmode = "keys"\n{TENANT}'
    router: RouterServer = await make_router(router_config(redis_server.url, engines.as_config(), rest=rest))
    async with viewer_of(browser, router) as viewer:
        page = await viewer.show("#playground")
        with_key: list[str] = []
        page.on("request", lambda request: with_key.append(request.url) if TENANT_KEY in str(request.headers) else None)
        await page.get_by_label("API key of a tenant").fill(TENANT_KEY)
        await page.keyboard.press("Tab")
        await page.locator("#playground-form select").select_option("llama")
        await send(page, "What is a tender?")
        await expect(page.get_by_label("First answer")).to_contain_text("Complete.")
        assert {url.removeprefix(router.url) for url in with_key} == {"/v1/models", "/v1/chat/completions"}
        stored = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert TENANT_KEY not in stored
        await page.reload()
        await expect(page.get_by_label("API key of a tenant")).to_be_empty()


async def test_a_wrong_key_of_a_tenant_is_reported_in_words(
    browser: Browser, redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    rest = f'{ADMIN}\nmode = "keys"\n{TENANT}'
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=rest))
    async with viewer_of(browser, router) as viewer:
        viewer.expected = ["401"]
        page = await viewer.show("#playground")
        await page.get_by_label("API key of a tenant").fill("wrong")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("alert")).to_contain_text("The API key is not valid.")
        # It says nothing about the viewer's own session.
        await expect(page.locator("#connection-text")).to_have_text("Live")
