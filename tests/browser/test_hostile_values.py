"""Names, reasons and responses are hostile input: the page shows them as text."""

import json
import time
from typing import Any

import pytest
import redis.asyncio as aioredis
from playwright.async_api import Page, expect

from tests.support.browser import Viewer
from tests.support.router_server import EngineSet, RouterServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOSTILE = '<img src=x onerror="window.attacked=true"><script>window.attacked=true</script>\'"&amp;'


async def assert_harmless(page: Page, where: str) -> None:
    assert await page.evaluate("window.attacked") is None
    assert await page.locator(f"{where} img, {where} script").count() == 0


def hostile_events() -> str:
    """The events of a router in which every text is hostile."""
    now = time.time()
    router = {
        "id": HOSTILE, "host": HOSTILE, "pid": 1, "version": HOSTILE, "compiled": False, "started_at": now,
        "in_flight": 0, "queued": 0, "seen": 0, "draining": False,
    }  # fmt: skip
    engine = {
        "name": HOSTILE, "model": HOSTILE, "task": HOSTILE, "url": HOSTILE, "draft": HOSTILE, "state": HOSTILE,
        "drained": False, "breaker": HOSTILE, "in_flight": 0, "max_in_flight": None, "running": None, "waiting": None,
        "kv_cache_usage": None, "prefix_cache_hit_rate": None, "spec_acceptance_rate": None,
        "spec_tokens_per_step": None, "restarts": None, "temperature_celsius": None, "power_watts": None,
        "announced": True,
    }  # fmt: skip
    request = {
        "at": now, "request_id": HOSTILE, "router": HOSTILE, "tenant": HOSTILE, "model": HOSTILE, "task": HOSTILE,
        "cache": HOSTILE, "reason": HOSTILE, "engine": HOSTILE, "status": 200, "outcome": HOSTILE, "ms": 1.0,
        "ttft_ms": None, "completion_tokens": 1, "key": HOSTILE,
    }  # fmt: skip
    redis = {"up": True, "url": HOSTILE, "version": HOSTILE, "used_memory": 1, "maxmemory": None, "keys": 1}
    documents: dict[str, Any] = {
        "status": {
            "now": now, "router_now": now, "routers": [router], "engines": [engine], "redis": redis, "last_hour": None,
            "models": [{"name": HOSTILE, "engines": [HOSTILE], "fallback": HOSTILE}],
            "problems": [
                {"severity": HOSTILE, "kind": kind, "subject": HOSTILE, "words": f"{kind} {HOSTILE}", "since": now}
                for kind in ("engine", "tenant", HOSTILE)
            ],
        },
        "requests": {"requests": [request]},
    }  # fmt: skip
    return "".join(f"event: {kind}\ndata: {json.dumps(document)}\n\n" for kind, document in documents.items())


async def test_hostile_names_in_the_status_are_text(viewer: Viewer) -> None:
    page = viewer.page
    events = hostile_events()
    await page.route(
        "**/dashboard/events", lambda route: route.fulfill(body=events, headers={"content-type": "text/event-stream"})
    )
    await page.goto(f"{viewer.url}/dashboard")
    await expect(page.locator("#engines .name")).to_have_text(HOSTILE)
    await expect(page.locator("#problems li")).to_have_count(3)
    await expect(page.locator("#requests tbody tr")).to_contain_text(HOSTILE)
    await expect(page.locator("#routers tbody tr")).to_contain_text(HOSTILE)
    await page.locator("#engines").get_by_role("button").click()
    await expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text(f"Drain {HOSTILE}?")
    await page.keyboard.press("Escape")
    await assert_harmless(page, "main")


async def test_hostile_words_about_a_request_are_text(viewer: Viewer) -> None:
    page = viewer.page
    row = {
        "at": 1.0, "request_id": HOSTILE, "router": HOSTILE, "tenant": HOSTILE, "model": HOSTILE, "cache": HOSTILE,
        "key": HOSTILE, "status": 200, "words": [{"name": HOSTILE, "text": HOSTILE}, {"name": "next", "text": HOSTILE}],
    }  # fmt: skip
    await page.route("**/admin/requests?*", lambda route: route.fulfill(json={"requests": [row]}))
    await viewer.show("#requests")
    await page.locator("#request-list tbody tr").click()
    await expect(page.locator("#request-content dd").first).to_have_text(HOSTILE)
    await assert_harmless(page, "main")
    await page.get_by_role("link", name="Requests of tenant").click()
    await expect(page.locator("#request-filter [name=tenant]")).to_have_value(HOSTILE)
    await assert_harmless(page, "main")


async def test_hostile_names_of_tenants_keys_and_reasons_are_text(viewer: Viewer) -> None:
    sums = {
        "requests": 2, "hits": 1, "coalesced": 0, "prompt_tokens": 1, "completion_tokens": 1, "estimated_tokens": 0,
        "saved_tokens": 1, "gpu_seconds": 1.0, "refused": 1, "refused_by": {HOSTILE: 1}, "last_used": None,
        "last_day": HOSTILE,
    }  # fmt: skip
    budget = {"budget": f"tokens_per_{HOSTILE}", "limit": 2, "used": 1, "remaining": 1, "resets_at": HOSTILE}
    key = sums | {"key": HOSTILE, "name": HOSTILE, "source": HOSTILE, "status": HOSTILE}
    tenant = sums | {
        "tenant": HOSTILE, "configured": False, "gpu_seconds_saved": 1.0, "budgets": [budget], "keys": [key],
    }  # fmt: skip
    document = {"from": HOSTILE, "to": HOSTILE, "tenants": [tenant]}
    await viewer.page.route("**/admin/tenants?*", lambda route: route.fulfill(json=document))
    page = await viewer.show("#tenants")
    await page.locator("#tenants").get_by_role("button").click()
    await expect(page.locator("#tenants .of-key")).to_contain_text(HOSTILE)
    await assert_harmless(page, "main")
    await page.locator("#tenants .of-key").get_by_role("link").click()
    await expect(page.locator("#request-filter [name=key]")).to_have_value(HOSTILE)
    await assert_harmless(page, "main")


async def test_hostile_words_of_the_audit_are_text(viewer: Viewer) -> None:
    entry = {
        "id": HOSTILE, "number": 1, "at": time.time(), "actor": HOSTILE, "action": HOSTILE, "subject": HOSTILE,
        "details": {HOSTILE: [HOSTILE]}, "router": HOSTILE, "previous": HOSTILE, "hash": HOSTILE,
    }  # fmt: skip
    page_of_audit = {"entries": [entry], "before": None}
    broken = {"id": HOSTILE, "number": None, "problem": HOSTILE}
    report = {"entries": 0, "trimmed": 0, "newest": None, "broken": broken}
    await viewer.page.route("**/admin/audit?*", lambda route: route.fulfill(json=page_of_audit))
    await viewer.page.route("**/admin/audit/verify", lambda route: route.fulfill(json=report))
    page = await viewer.show("#changes")
    await expect(page.locator("#changes tbody")).to_contain_text(HOSTILE)
    await page.get_by_role("button", name="Check the chain").click()
    await expect(page.locator("#changes-chain")).to_contain_text(HOSTILE)
    await assert_harmless(page, "main")


async def test_a_hostile_response_is_text_in_the_playground_and_in_its_entry(
    viewer: Viewer, engines: EngineSet, redis: "aioredis.Redis"
) -> None:
    await engines.mistral.set_faults({"fault": "say", "text": HOSTILE})
    page = await viewer.show("#playground")
    await page.locator("#playground-form select").select_option("mistral")
    await page.get_by_label("Prompt", exact=True).fill("What is a chimney?")
    await page.get_by_role("button", name="Send").click()
    answer = page.get_by_label("First answer")
    await expect(answer.locator("pre")).to_have_text(HOSTILE)
    await eventually(lambda: redis.keys("rh:1:default:mistral:*"))  # the entry is written meanwhile
    await answer.get_by_role("link").click()
    await expect(page.locator("#entry-content pre.answer")).to_have_text(HOSTILE)
    await assert_harmless(page, "main")


HOSTILE_MARKDOWN = f"""{HOSTILE}
[link](javascript:window.attacked=true) [tab](java\tscript:window.attacked=true) [data](data:text/html,{HOSTILE[:20]})
![image](http://evil.test/x.png) ![image](x" onerror="window.attacked=true) <http://evil.test>
# {HOSTILE}
- {HOSTILE}
> **{HOSTILE}** [{HOSTILE}](http://evil.test/"onmouseover="window.attacked=true)

| {HOSTILE} | b |
| --- | --- |
| {HOSTILE} | `{HOSTILE}` |

```"onload="window.attacked=true
{HOSTILE}
```
"""


async def test_hostile_markdown_runs_nothing_loads_nothing_and_leads_nowhere(
    viewer: Viewer, engines: EngineSet
) -> None:
    await engines.mistral.set_faults({"fault": "say", "text": HOSTILE_MARKDOWN})
    page = await viewer.show("#playground")
    await page.locator("#playground-form select").select_option("mistral")
    await page.get_by_label("Prompt", exact=True).fill("What is a firebox?")
    await page.get_by_role("button", name="Send").click()
    answer = page.get_by_label("First answer")
    await expect(answer).to_contain_text("Complete.")
    shown = answer.locator(".markdown")
    await expect(shown.locator("h3")).to_have_text(HOSTILE)
    await expect(shown.locator("td").first).to_have_text(HOSTILE)
    await expect(shown.locator("pre code")).to_have_text(HOSTILE)
    names = await shown.evaluate(
        "node => [...new Set([...node.querySelectorAll('*')].map(({tagName}) => tagName))].sort()"
    )
    allowed = {
        "A",
        "BLOCKQUOTE",
        "BR",
        "CODE",
        "H3",
        "LI",
        "P",
        "PRE",
        "STRONG",
        "TABLE",
        "TBODY",
        "TD",
        "TH",
        "THEAD",
        "TR",
        "UL",
    }
    assert set(names) <= allowed
    attributes = await shown.evaluate(
        "node => [...node.querySelectorAll('*')].flatMap((each) => [...each.attributes].map(({name}) => name))"
    )
    assert set(attributes) <= {"class", "href", "target", "rel", "tabindex", "scope"}
    for link in await shown.locator("a").all():
        assert (await link.get_attribute("href") or "").startswith("http://evil.test/")
        assert await link.get_attribute("rel") == "noopener noreferrer"
    # The viewer fails at its end if anything was loaded from elsewhere.
    await assert_harmless(page, "main")


async def test_a_hostile_address_is_text(viewer: Viewer, router: RouterServer) -> None:
    viewer.expected = ["400", "404"]
    page = await viewer.show(f"#cache/entry/{HOSTILE}")
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.goto(f"{router.url}/dashboard#cache?document={HOSTILE}")
    await expect(page.locator("#entries-status")).to_contain_text("No entry with one document")
    await assert_harmless(page, "main")
