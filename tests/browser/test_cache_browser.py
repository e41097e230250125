"""The cache browser: search, an entry, deletion, purge, explanation."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio as aioredis
from playwright.async_api import expect

from tests.support.browser import Viewer
from tests.support.router_server import RouterServer, chat_body
from tests.support.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

Store = Callable[..., Awaitable[str]]


@pytest_asyncio.fixture(loop_scope="session")
async def store(router: RouterServer, redis: "aioredis.Redis") -> Store:
    """Sends a chat. Returns the text of its response, once the page can find the entry: it is written meanwhile."""

    async def send(prompt: str, **fields: Any) -> str:
        response = await router.chat(prompt, **fields)
        await eventually(lambda: redis.exists(response.headers["x-cache-key"]))
        text: str = response.json()["choices"][0]["message"]["content"]
        return text

    return send


async def test_an_entry_is_found_by_its_model_read_and_deleted(
    viewer: Viewer, router: RouterServer, store: Store
) -> None:
    answer = await store("What is a boiler?", model="mistral")
    await store("What is a boiler?")
    page = await viewer.show("#cache")
    rows = page.locator("#entries tbody tr")
    await expect(rows).to_have_count(2)
    await page.locator("#search").get_by_label("Model", exact=True).fill("mistral")
    await page.get_by_role("button", name="Search").click()
    await expect(rows).to_have_count(1)
    await expect(page).to_have_url(f"{router.url}/dashboard#cache?model=mistral")
    await rows.get_by_role("link").click()
    await expect(page.locator("#entry-content pre.answer")).to_have_text(answer)
    await expect(page.locator("#entry-content")).to_contain_text("Prompts are not stored")
    await page.get_by_role("button", name="Delete this entry").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    # Back at the search, which finds it no longer.
    await expect(page.locator("#entries-status")).to_contain_text("No entry with model mistral.")
    assert (await router.chat("What is a boiler?", model="mistral")).headers["x-cache"] == "MISS"


async def test_a_bad_answer_is_found_by_its_words_and_purged(
    viewer: Viewer, router: RouterServer, store: Store
) -> None:
    answer = await store("What is a boiler?")
    await store("What is a valve?", model="mistral")
    page = await viewer.show("#cache")
    rows = page.locator("#entries tbody tr")
    await expect(rows).to_have_count(2)
    words = answer.split(".")[0].upper()
    await page.get_by_label("Words of the answer").fill(words)
    await page.get_by_role("button", name="Search").click()
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_contain_text(answer[:20])
    await expect(page.locator("#entries-status")).to_have_text("1 of 2 entries have these words.")
    await page.get_by_role("button", name="Purge these…").click()
    await page.get_by_role("dialog").get_by_role("textbox").fill("purge")
    await page.keyboard.press("Enter")
    await expect(page.locator("#entries-status")).to_have_text("0 of 1 entry have these words.")
    assert (await router.chat("What is a boiler?")).headers["x-cache"] == "MISS"
    assert (await router.chat("What is a valve?", model="mistral")).headers["x-cache"] == "HIT"


async def test_entries_can_be_put_in_order(viewer: Viewer, router: RouterServer, store: Store) -> None:
    await store("What is a boiler?", max_tokens=3)
    await store("What is a boiler?", max_tokens=30)
    page = await viewer.show("#cache")
    await page.get_by_label("Order").select_option("Most tokens")
    await page.get_by_role("button", name="Search").click()
    await expect(page).to_have_url(f"{router.url}/dashboard#cache?sort=tokens")
    await expect(page.locator("#entries tbody tr").first.locator("[data-label=Tokens]")).to_have_text("30")


async def test_pages_of_entries_follow_each_other(viewer: Viewer, store: Store) -> None:
    for number in range(27):
        await store(f"Question {number}", max_tokens=1)
    page = await viewer.show("#cache")
    rows, following = page.locator("#entries tbody tr"), page.get_by_role("button", name="Next page")
    await expect(rows).to_have_count(25)
    first = await rows.first.inner_text()
    await following.click()
    await expect(rows).to_have_count(2)
    await expect(following).to_be_disabled()
    await page.get_by_role("button", name="Previous page").click()
    await expect(rows).to_have_count(25)
    assert (await rows.first.inner_text()).split()[0] == first.split()[0]


async def test_a_purge_shows_how_many_entries_match_and_needs_a_typed_word(
    viewer: Viewer, router: RouterServer, store: Store
) -> None:
    await store("What is a piston?", model="mistral")
    await store("What is a piston?")
    page = await viewer.show("#cache/purge")
    form, dialog = page.locator("#purge-form"), page.get_by_role("dialog")
    await form.get_by_label("Model", exact=True).fill("mistral")
    await form.get_by_role("button", name="Preview").click()
    await expect(page.locator("#purge-preview")).to_contain_text("Stored with model mistral: 1 entry.")
    await page.get_by_role("button", name="Purge…").click()
    confirm = dialog.get_by_role("button", name="Purge")
    await expect(confirm).to_be_disabled()
    await dialog.get_by_role("textbox").fill("purge")
    await page.keyboard.press("Enter")
    await expect(page.locator("#purge-preview")).to_have_text("Purged 1 entry and 0 generations in progress.")
    assert (await router.chat("What is a piston?", model="mistral")).headers["x-cache"] == "MISS"
    assert (await router.chat("What is a piston?")).headers["x-cache"] == "HIT"


async def test_a_purge_without_a_filter_is_not_offered(viewer: Viewer) -> None:
    page = await viewer.show("#cache/purge")
    await page.get_by_role("button", name="Preview").click()
    await expect(page.get_by_role("alert")).to_contain_text("Fill in at least one field")


async def test_explain_says_in_which_part_a_request_differs_and_links_the_nearest_entry(
    viewer: Viewer, store: Store
) -> None:
    await store("What is a valve?", temperature=0)
    page = await viewer.show("#cache/explain")
    body, result = page.get_by_label("Body (JSON)"), page.locator("#explain-result")
    await body.fill(json.dumps(chat_body("What is a valve?", temperature=0)))
    await page.get_by_role("button", name="Explain").click()
    await expect(result.locator(".badge")).to_have_text("HIT")
    await body.fill(json.dumps(chat_body("What is a valve?", temperature=1)))
    await page.get_by_role("button", name="Explain").click()
    await expect(result.locator(".badge")).to_have_text("MISS")
    await expect(result.locator(".verdict")).to_contain_text("params")
    await result.locator(".nearest").get_by_role("link").click()
    await expect(page.locator("#entry-content pre.answer")).not_to_be_empty()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("{", "The body is not JSON"),
        (json.dumps(chat_body("Hello", model="nope")), "The model `nope` does not exist"),
    ],
)
async def test_explain_reports_a_wrong_body_in_words(viewer: Viewer, body: str, problem: str) -> None:
    viewer.expected = ["404"]
    page = await viewer.show("#cache/explain")
    await page.get_by_label("Body (JSON)").fill(body)
    await page.get_by_role("button", name="Explain").click()
    await expect(page.locator("#explain-result")).to_contain_text(problem)


async def test_an_entry_that_is_gone_says_what_may_have_happened(viewer: Viewer) -> None:
    viewer.expected = ["404"]
    key = f"rh:1:default:llama:{'0' * 16}:{'0' * 16}:{'0' * 32}"
    page = await viewer.show(f"#cache/entry/{key}")
    await expect(page.get_by_role("alert")).to_contain_text("No entry is stored at this key")
