"""The decisions of the page's scripts: formats, scales, the parser of streams, addresses, the verdict on the system."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route

from router.dashboard.pages import STATIC_FILES, dashboard_page

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

UNKNOWN = "\N{EN DASH}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """The dashboard without a router: its modules can be imported, and nothing happens by itself."""
    page = await browser.new_page()
    await page.route("**/*", serve)
    await page.goto("http://dashboard.test/dashboard")
    yield page
    await page.close()


async def serve(route: Route) -> None:
    name = route.request.url.rpartition("/")[2]
    if name in STATIC_FILES:
        content_type, content = STATIC_FILES[name]
        await route.fulfill(body=content, content_type=content_type)
    elif name == "dashboard":
        await route.fulfill(body=dashboard_page(), content_type="text/html")
    else:
        await route.abort()


async def call(page: Page, module: str, function: str, *arguments: Any) -> Any:
    return await page.evaluate(
        "async ([path, name, values]) => (await import(path))[name](...values)",
        [f"/dashboard/static/{module}.js", function, arguments],
    )


async def test_values_are_formatted_for_people(page: Page) -> None:
    expected: list[tuple[str, Any, str]] = [
        ("count", None, UNKNOWN), ("count", 0, "0"), ("count", 1234, "1,234"), ("count", 12_345, "12.3k"),
        ("count", 4_560_000, "4.56M"), ("count", 0.25, "0.3"),
        ("percent", None, UNKNOWN), ("percent", 0, "0%"), ("percent", 0.046, "4.6%"), ("percent", 1, "100%"),
        ("milliseconds", None, UNKNOWN), ("milliseconds", 0.84, "0.8 ms"), ("milliseconds", 999, "999 ms"),
        ("milliseconds", 1250, "1.25 s"), ("milliseconds", 125_000, "2m 5s"),
        ("duration", 0, "0s"), ("duration", 59.4, "59s"), ("duration", 200, "3m 20s"), ("duration", 93_600, "1d 2h"),
        ("age", -3, "0s"), ("bytes", 2300, "2.2 KiB"), ("bytes", 268_435_456, "256 MiB"),
    ]  # fmt: skip
    for function, value, text in expected:
        assert await call(page, "format", function, value) == text, (function, value)


async def test_ticks_cover_the_values_in_round_steps(page: Page) -> None:
    assert await call(page, "chart_scale", "linearTicks", 7, {"counts": True}) == [0, 2, 4, 6, 8]
    assert await call(page, "chart_scale", "linearTicks", 1, {"counts": True}) == [0, 1]
    assert await call(page, "chart_scale", "linearTicks", 0.9) == [0, 0.25, 0.5, 0.75, 1]
    for largest in range(1, 3000, 7):
        ticks = await call(page, "chart_scale", "linearTicks", largest, {"counts": True})
        assert ticks[-1] >= largest
        assert len(ticks) <= 6
    assert await call(page, "chart_scale", "logTicks", 3, 450) == [1, 10, 100, 1000]


async def test_a_stream_is_parsed_the_same_wherever_it_is_cut(page: Page) -> None:
    stream = 'data: {"a": "ü"}\r\n\r\n: comment\n\ndata: one\ndata: two\n\nevent: x\ndata:[DONE]\n\n'
    script = """async stream => {
        const {EventParser} = await import("/dashboard/static/sse.js");
        const results = new Set();
        for (let cut = 0; cut <= stream.length; cut += 1) {
            const parser = new EventParser();
            const events = [...parser.feed(stream.slice(0, cut)), ...parser.feed(stream.slice(cut))];
            results.add(JSON.stringify(events));
        }
        return [...results];
    }"""
    assert await page.evaluate(script, stream) == ['["{\\"a\\": \\"ü\\"}","one\\ntwo","[DONE]"]']


async def test_addresses_name_a_view_and_what_it_shows(page: Page) -> None:
    for address, view, tab, detail in (
        ("", "overview", "entries", None),
        ("#nonsense", "overview", "entries", None),
        ("#cache?tenant=acme", "cache", "entries", None),
        ("#cache/entry/rh%3A1%3Aa", "cache", "entry", "rh:1:a"),
        ("#cache/entry/%", "cache", "entry", "%"),
        ("#playground", "playground", "entries", None),
        ("#requests?tenant=acme", "requests", "entries", None),
        ("#tenants?days=7", "tenants", "entries", None),
        ("#changes?action=purge", "changes", "entries", None),
        ("#request/a%2Fb", "request", "entries", "a/b"),
    ):
        route = await call(page, "routes", "parseRoute", address)
        assert (route["view"], route["tab"], route["detail"]) == (view, tab, detail)


@pytest.mark.parametrize(
    ("engines", "severities", "state", "text"),
    [
        ([{"state": "up"}], [], "good", "The engine is up."),
        ([{"state": "up"}, {"state": "up"}], ["info"], "warn", "All 2 engines are up."),
        ([{"state": "up"}], ["critical", "warning", "info"], "bad", "2 problems"),
        ([{"state": "up"}], ["warning"], "warn", "1 problem"),
        ([{"state": "unknown"}], [], "warn", "0 of 1 engine up, 1 not checked yet."),
        ([{"state": "up"}, {"state": "down", "asleep": True}], [], "good", "1 of 2 engines up, 1 asleep."),
        ([], [], "good", "No engine is known."),
    ],
)
async def test_the_summary_counts_what_is_wrong(
    page: Page, engines: list[Any], severities: list[str], state: str, text: str
) -> None:
    problems = [{"severity": severity} for severity in severities]
    verdict = await call(page, "overview", "judge", {"engines": engines, "problems": problems})
    assert (verdict["state"], verdict["text"]) == (state, text)


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"status": "in_progress"}, "Running", ""),
        ({"status": "in_progress", "waiting_for": "No room."}, "Waiting", "No room."),
        ({"status": "in_progress", "waiting_for": "No room.", "paused": True}, "Paused", ""),
        ({"status": "finalizing", "paused": True}, "Writing the results", ""),
        ({"status": "expired"}, "Expired", ""),
        ({"status": "of a later version"}, "of a later version", ""),
    ],
)
async def test_the_state_of_a_batch_is_in_words(page: Page, fields: dict[str, Any], text: str, reason: str) -> None:
    state = await call(page, "batches", "batchState", {"paused": False, "waiting_for": None} | fields)
    assert (state["text"], state["reason"]) == (text, reason)


async def test_the_progress_of_a_batch_is_unknown_until_its_lines_are_counted(page: Page) -> None:
    counts = {"total": 2000, "completed": 900, "failed": 100, "cached": 450}
    progress = await call(page, "batches", "batchProgress", counts)
    assert progress == {"share": 0.5, "text": "1,000 of 2,000 lines", "cached": 0.5}
    progress = await call(page, "batches", "batchProgress", dict.fromkeys(counts, 0))
    assert progress == {"share": None, "text": UNKNOWN, "cached": None}
    for rate, text in ((None, UNKNOWN), (0, "0/s"), (12.34, "12/s"), (0.05, "3/min")):
        assert await call(page, "batches", "rateText", rate) == text
    for end, text in ((None, UNKNOWN), (100, "over"), (3800.2, "in 1h 1m"), (160, "in 1m")):
        assert await call(page, "batches", "windowText", {"expires_at": end}, 100) == text


async def test_rejected_requests_are_drawn_by_reason_and_tenant(page: Page) -> None:
    script = """async (minutes) => {
        const {rejectedSeries} = await import("/dashboard/static/hour.js");
        return rejectedSeries(minutes).map(({label, value}) => [label, ...minutes.map(value)]);
    }"""

    def refused(number: int, count: int) -> dict[str, Any]:
        return {"reason": "requests_limit", "tenant": f"t{number}", "count": count}

    minutes = [
        {"rejected": 21, "refused": [refused(number, number) for number in range(1, 7)]},
        {"rejected": 90, "refused": [refused(1, 80), {"reason": "invalid_api_key", "tenant": "none", "count": 10}]},
    ]
    assert await page.evaluate(script, minutes) == [
        ["requests_limit, t1", 1, 80], ["invalid_api_key, no tenant", 0, 10], ["requests_limit, t6", 6, 0],
        ["requests_limit, t5", 5, 0], ["Others", 9, 0],
    ]  # fmt: skip
    assert await page.evaluate(script, [{"rejected": 3}]) == [["Rejected", 3]]


@pytest.mark.parametrize(
    ("request_row", "words"),
    [
        ({"cache": "MISS", "reason": "new", "status": 200}, "No similar request is known."),
        ({"cache": "HIT", "reason": None, "status": 200}, "Served from the cache."),
        ({"cache": None, "reason": "queue_full", "status": 503}, "Ended with status 503 (queue_full)."),
        ({"cache": "MISS", "reason": "new", "status": 200, "outcome": "left"},
         "The client disconnected. No similar request is known."),
    ],
)  # fmt: skip
async def test_a_reason_is_put_into_words(page: Page, request_row: dict[str, Any], words: str) -> None:
    assert await call(page, "reasons", "reasonInWords", request_row) == words


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        (False, None, "Asking the routers"),
        (False, {"redis": {"up": True}, "last_hour": {"requests": 3}}, "Asking the routers"),
        (True, {"redis": {"up": False}, "last_hour": None}, "Redis is down"),
        (True, {"redis": {"up": True}, "last_hour": {"requests": 3}}, "3 requests ended in the last hour"),
        (True, {"redis": {"up": True}, "last_hour": {"requests": 0}}, "No request has ended in the last hour"),
    ],
)
async def test_that_there_was_no_request_is_said_only_where_it_is_known(
    page: Page, asked: bool, status: Any, words: str
) -> None:
    assert (await call(page, "requests", "whyNone", asked, status))[0].startswith(words)


@pytest.mark.parametrize(
    ("filters", "query", "text"),
    [
        ({}, "limit=200", "request"),
        ({"show": "misses"}, "limit=200&hits=0", "request that is no hit"),
        ({"tenant": "a&b", "show": "slow"}, "limit=200&tenant=a%26b&slow=1", "request of tenant a&b that was slow"),
        ({"key": "k1"}, "limit=200&key=k1", "request with key k1"),
        ({"model": "m", "show": "failed"}, "limit=200&model=m&failed=1&refused=0", "request at model m that failed"),
        ({"show": "refused"}, "limit=200&refused=1", "request that was refused"),
    ],
)
async def test_the_routers_filter_the_requests(page: Page, filters: dict[str, str], query: str, text: str) -> None:
    assert await call(page, "request_list", "requestQuery", filters) == query
    assert await call(page, "request_list", "filterAsText", filters) == text


@pytest.mark.parametrize(
    ("budget", "limit", "remaining", "text"),
    [
        ("tokens_per_day", 5000, 1200, "1,200 of 5,000 tokens a day"),
        ("tokens_per_month", 5000, 0, "none of 5,000 tokens a month"),
        ("gpu_seconds_per_month", 7200, 90.5, "1m 31s of 2h GPU time a month"),
    ],
)
async def test_what_is_left_of_a_budget_is_in_words(
    page: Page, budget: str, limit: int, remaining: float, text: str
) -> None:
    values = {"budget": budget, "limit": limit, "remaining": remaining}
    assert await call(page, "tenants", "budgetText", values) == text


@pytest.mark.parametrize(
    ("auth_mode", "rows", "words"),
    [
        ("open", [("default", True, 0, [])], ["No request was counted", "all requests are of one tenant"]),
        ("keys", [("acme", True, 0, [])], ["No request was counted", "roundhouse keys new --tenant acme"]),
        ("keys", [("acme", True, 3, ["active"]), ("old", False, 1, [])], []),
        ("keys", [], ["No request was counted", "No tenant is configured"]),
        ("header", [("acme", True, 3, [])], []),
    ],
)
async def test_the_tenants_page_says_what_is_missing_and_how_to_get_it(
    page: Page, auth_mode: str, rows: list[tuple[str, bool, int, list[str]]], words: list[str]
) -> None:
    tenants = [
        {"tenant": tenant, "configured": configured, "requests": requests, "refused": 0,
         "keys": [{"status": status} for status in keys]}
        for tenant, configured, requests, keys in rows
    ]  # fmt: skip
    advice = await call(page, "tenants", "whatToDo", tenants, auth_mode)
    assert len(advice) == len(words)
    assert all(word in text for word, text in zip(words, advice, strict=True)), advice


async def test_a_page_that_is_open_for_weeks_does_not_grow(page: Page) -> None:
    script = """async () => {
        const {mountRequests} = await import("/dashboard/static/requests.js");
        const {update} = mountRequests();
        const nodes = [];
        for (let round = 0; round < 40; round += 1) {
            const requests = Array.from({length: 200}, (_, index) => ({
                at: round * 200 - index, request_id: `r${round * 200 - index}`, router: "r", tenant: "t", model: "m",
                cache: "HIT", reason: null, engine: "e", status: 200, outcome: "complete", ms: 1, ttft_ms: 1,
                completion_tokens: 1, key: "rh:1:a:b:c:d:e",
            }));
            update({requests});
            nodes.push(document.getElementsByTagName("*").length);
        }
        return [document.querySelectorAll("#requests tbody tr").length, new Set(nodes).size];
    }"""
    assert await page.evaluate(script) == [12, 1]


async def markdown(page: Page, text: str) -> str:
    script = """async text => {
        const {renderMarkdown} = await import("/dashboard/static/markdown.js");
        const node = document.createElement("div");
        node.append(...renderMarkdown(text));
        return node.innerHTML;
    }"""
    return str(await page.evaluate(script, text))


async def test_markdown_becomes_what_it_means_and_html_in_it_text(page: Page) -> None:
    link = 'href="https://a.test/?b" target="_blank" rel="noopener noreferrer"'
    for text, html in (
        ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
        ("## A `b`", '<h3 class="level-2">A <code>b</code></h3>'),
        ("#no heading", "<p>#no heading</p>"),
        ("a **b** *c* ~~d~~ `*e*`", "<p>a <strong>b</strong> <em>c</em> <s>d</s> <code>*e*</code></p>"),
        ("2 * 3 * 4 and snake_case_name", "<p>2 * 3 * 4 and snake_case_name</p>"),
        ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("> a\n> b", "<blockquote><p>a<br>b</p></blockquote>"),
        ("```js\na < b\n\n- c\n```\nd", '<pre class="code" tabindex="0"><code>a &lt; b\n\n- c</code></pre><p>d</p>'),
        ("```\nopen", '<pre class="code" tabindex="0"><code>open</code></pre>'),
        ("---", "<hr>"),
        ("[a](https://a.test/?b)", f"<p><a {link}>a</a></p>"),
        ("![a](https://a.test/?b)", f"<p><a {link}>image: a</a></p>"),
        ("[a](/admin) [b](javascript:x)", "<p>[a](/admin) [b](javascript:x)</p>"),
        ("<b>a</b>", "<p>&lt;b&gt;a&lt;/b&gt;</p>"),
    ):
        assert await markdown(page, text) == html, text
    table = await markdown(page, "| a | b |\n|---|:-:|\n| 1 | **2** | 3 |")
    assert table.endswith("<tbody><tr><td>1</td><td><strong>2</strong></td></tr></tbody></table>")


async def test_no_text_makes_markdown_slow(page: Page) -> None:
    script = """async texts => {
        const {renderMarkdown} = await import("/dashboard/static/markdown.js");
        return texts.map(([piece, times]) => {
            const started = performance.now();
            renderMarkdown(piece.repeat(times));
            return [piece, performance.now() - started];
        });
    }"""
    pieces = [
        "*",
        "**a",
        "`",
        "[",
        "[a](",
        "~~",
        "> ",
        "- ",
        "  - a\n",
        "|-",
        "|a\n|-\n",
        "# ",
        "```\n",
        "1. a\n\n",
        "_ ",
    ]
    for piece, taken in await page.evaluate(script, [[piece, 100_000 // len(piece)] for piece in pieces]):
        assert taken < 10_000, piece  # half a second on a free machine


async def test_an_answer_of_very_many_lines_is_shown_and_a_huge_one_is_cut(page: Page) -> None:
    """In one call, a browser takes some ten thousand arguments."""
    script = """async (text) => {
        const { Answer } = await import("/dashboard/static/playground_answer.js");
        const answer = new Answer("First answer");
        answer.text(text, 1);
        answer.end("complete");
        const rendered = answer.node.querySelector(".markdown");
        const shown = answer.node.querySelector("pre.answer").textContent;
        return [rendered.querySelectorAll("em").length, rendered.childElementCount, shown.length, shown.at(-1)];
    }"""
    assert await page.evaluate(script, "*a*\n" * 40_000) == [40_000, 1, 160_000, "\n"]
    assert await page.evaluate(script, "*a*\n\n" * 40_000) == [40_000, 40_000, 200_000, "\n"]
    assert await page.evaluate(script, "x" * 300_000) == [0, 1, 200_001, "…"]
