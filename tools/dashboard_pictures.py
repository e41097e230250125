"""Takes the pictures of the dashboard in docs/images, of a real router with two workers and simulated engines.

    PYTHONPATH=. python tools/dashboard_pictures.py [--out docs/images]

The traffic of the last hour is written into Redis, as routers would have added it minute by minute; the rest is live.
"""

import argparse
import asyncio
import math
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.async_api import Browser, Page

from router.shared.status import traffic
from tests.support.browser import ADMIN, ADMIN_KEY, headless_chromium
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import LLAMA, MISTRAL, EngineSet, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

TENANTS: Final = ("acme", "globex", "initech")
CONFIG: Final = ADMIN + '\nmode = "header"\n' + "".join(f'\n[[tenant]]\nname = "{name}"\n' for name in TENANTS)
CONFIG_OF_FLOOD: Final = '\n[[tenant]]\nname = "umbrella"\nrequests_per_minute = 60\n'
DESKTOP: Final = {"viewport": {"width": 1280, "height": 1000}, "reduced_motion": "reduce"}
PHONE: Final = {"viewport": {"width": 375, "height": 812}, "device_scale_factor": 2, "is_mobile": True}
TASKS: Final = (
    "Explain turntable {} to a new colleague.",
    "Write a Python function for signal {}.",
    "Summarize report {}.",
)
SYSTEM: Final = "You work at a roundhouse. " + "Answer in short sentences, and name the part and its place. " * 6
QUESTIONS: Final = 900
DRAFTS: Final = {"llama-chat": "Qwen/Qwen2.5-0.5B-Instruct", "llama-code": "Qwen/Qwen2.5-Coder-0.5B-Instruct"}
CLIENTS: Final = 13
FIRST_TOKEN: Final = {"HIT": ("0.001", "0.0025"), "MISS": ("0.1", "0.25")}
SLOW_FIRST_TOKEN: Final = {"HIT": ("0.0025", "0.005"), "MISS": ("0.5", "1.0")}


def minute_counts(ago: int, chance: random.Random) -> dict[str, int]:
    """The traffic of a minute; a quarter of an hour ago, an engine was slow for some minutes."""
    slow = 14 < ago < 20
    requests = int(220 * (1 + 0.4 * math.sin(ago / 8) + 0.15 * chance.random()))
    hits = int(requests * (0.56 - 0.003 * ago + 0.06 * chance.random()))
    coalesced, stale, bypass = int(0.05 * requests), 4 if slow else 0, int(0.03 * requests)
    misses = requests - hits - coalesced - stale - bypass
    limited = chance.randint(2, 6) if slow else 0
    counts = {
        "requests": requests, "hits": hits, "misses": misses, "coalesced": coalesced, "stale": stale, "bypass": bypass,
        "rejected": limited, traffic.rejected_name("requests_limit", "globex"): limited,
        "errors": chance.randint(1, 4) if slow else 0,
        "prompt_tokens": 310 * requests, "completion_tokens": 55 * misses, "saved_tokens": 55 * (hits + coalesced),
        "gpu_seconds_spent": 900 * misses, "gpu_seconds_saved": 870 * (hits + coalesced),
    }  # fmt: skip
    bounds = SLOW_FIRST_TOKEN if slow else FIRST_TOKEN
    for result, amount in (("HIT", hits), ("MISS", misses)):
        lower, upper = bounds[result]
        counts[traffic.first_token_name(result, lower, upper)] = amount - amount // 20
        counts[traffic.first_token_name(result, upper, str(4 * float(upper)))] = amount // 20
    return counts


async def write_last_hour(redis: RedisServer) -> None:
    chance, now = random.Random(19), traffic.minute_of(time.time())
    for ago in range(1, 61):
        for command in traffic.add_commands(now - ago, minute_counts(ago, chance)):
            await redis.command(*command)


def requests(chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Tenants and bodies: few questions are asked often, most of them rarely."""
    while True:
        number = min(int(chance.expovariate(0.07)), QUESTIONS)
        question = TASKS[number % len(TASKS)].format(number)
        body: dict[str, Any] = {
            "model": chance.choice(["llama", "llama", "mistral"]), "stream": True,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        }  # fmt: skip
        if chance.random() < 0.25:
            body["temperature"] = round(chance.random(), 2)
        yield chance.choice(TENANTS), body


async def send_for_ever(http: httpx.AsyncClient, source: Iterator[tuple[str, dict[str, Any]]]) -> None:
    for tenant, body in source:
        try:
            await http.post("/v1/chat/completions", json=body, headers={"x-tenant-id": tenant}, timeout=60)
        except httpx.TransportError:
            await asyncio.sleep(0.1)


async def send_flood(url: str) -> None:
    async with http_client(url) as http:
        _, body = next(requests(random.Random(3)))
        for _ in range(400):
            await http.post("/v1/chat/completions", json=body, headers={"x-tenant-id": "umbrella"}, timeout=60)


@asynccontextmanager
async def load(url: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        source = requests(random.Random(7))
        # A connection each, so that both workers get some.
        https = [await stack.enter_async_context(http_client(url)) for _ in range(CLIENTS)]
        clients = [asyncio.create_task(send_for_ever(http, source)) for http in https]
        try:
            yield
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


def configuration(redis_url: str, engines: EngineSet) -> str:
    text = router_config(redis_url, engines.as_config(), router="workers = 2", rest=CONFIG + CONFIG_OF_FLOOD)
    for name, draft in DRAFTS.items():
        launch = f'[engine.launch]\ntarget = "{LLAMA}"\ndraft = "{draft}"\nnum_speculative_tokens = 4\n'
        before, heading, after = text.partition(f'[[engine]]\nname = "{name}"')
        engine, _, rest = after.partition("\n\n")
        text = f"{before}{heading}{engine}\n\n{launch}\n{rest}"
    return text.replace("[[engine]]\n", "[[engine]]\nmax_in_flight = 8\n")


@asynccontextmanager
async def running_router(folder: Path) -> AsyncIterator[tuple[RouterProcess, RedisServer, EngineSet]]:
    speed: dict[str, Any] = {
        "ttft_ms": 140,
        "tokens_per_second": 22,
        "jitter": 0.3,
        "kv_blocks": 100,
        "max_num_seqs": 8,
    }
    engines = EngineSet(
        chat=SimulatedEngine(LLAMA, max_model_len=1024, draft="Qwen2.5-0.5B", acceptance=0.71, **speed),
        code=SimulatedEngine(LLAMA, max_model_len=1024, draft="Qwen2.5-Coder-0.5B", acceptance=0.78, **speed),
        mistral=SimulatedEngine(MISTRAL, max_model_len=1024, **speed),
    )
    redis = RedisServer("--maxmemory", "256mb")
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        await redis.start()
        stack.callback(redis.remove)
        text = configuration(redis.url, engines)
        router = RouterProcess(folder, text)
        router.start()
        stack.callback(router.kill)
        await router.wait_until_ready()
        yield router, redis, engines


@asynccontextmanager
async def dashboard(browser: Browser, url: str, **options: Any) -> AsyncIterator[Page]:
    context = await browser.new_context(**options)
    await context.request.post(f"{url}/dashboard/login", form={"key": ADMIN_KEY})
    page = await context.new_page()
    await page.goto(f"{url}/dashboard")
    await page.locator("#charts .tick").first.wait_for()
    await page.locator("#routers tbody tr").nth(1).wait_for()
    yield page
    await context.close()


async def take_pictures(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with headless_chromium() as browser, running_router(Path(folder)) as (router, redis, engines):
            async with dashboard(browser, router.url, color_scheme="light", **DESKTOP) as page:
                await page.screenshot(path=out / "dashboard-empty.png")
            await write_last_hour(redis)
            async with load(router.url), dashboard(browser, router.url, color_scheme="light", **DESKTOP) as page:
                rows = page.locator("#requests tbody tr")
                await eventually(lambda: is_busy(page, rows), timeout=60)
                await page.screenshot(path=out / "dashboard-load.png")
                async with dashboard(browser, router.url, color_scheme="dark", **DESKTOP) as dark:
                    await dark.locator("#requests tbody tr").nth(8).wait_for()
                    await dark.locator("#charts").scroll_into_view_if_needed()
                    await dark.locator("#routers").scroll_into_view_if_needed()
                    await dark.screenshot(path=out / "dashboard-dark.png")
                async with dashboard(browser, router.url, color_scheme="light", **PHONE) as phone:
                    await phone.screenshot(path=out / "dashboard-phone.png")
                await take_views(page, f"{router.url}/dashboard", out)
                await engines.mistral.kill()
                await page.locator("[data-engine=mistral] [data-tone=bad]").first.wait_for()
                await page.screenshot(path=out / "dashboard-engine-down.png")
                await send_flood(router.url)
                await page.locator("#problems").get_by_text("tenant umbrella is being limited").wait_for()
                await page.screenshot(path=out / "dashboard-flood.png")
                await redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
                await redis.command("CONFIG", "SET", "maxmemory", "1")
                await page.locator("#problems").get_by_text("Redis is full").wait_for()
                await page.screenshot(path=out / "dashboard-redis-full.png")


async def take_views(page: Page, url: str, out: Path) -> None:
    """A request and the tenants; the page is on its overview again at the end."""
    await page.goto(f"{url}#requests?show=misses")
    await page.locator("#request-list tbody a").first.click()
    await page.locator("#request-content dl").wait_for()
    await page.screenshot(path=out / "dashboard-request.png")
    await page.goto(f"{url}#tenants")
    await page.locator("#tenants tbody tr").first.wait_for()
    await page.screenshot(path=out / "dashboard-tenants.png")
    await page.goto(f"{url}#overview")


async def is_busy(page: Page, rows: Any) -> bool:
    values = await page.locator("#engines .share-fill").evaluate_all(
        "bars => bars.map(bar => Number(getComputedStyle(bar).getPropertyValue('--share')))"
    )
    hits = await rows.filter(has_text="HIT").count()
    return await rows.count() >= 12 and hits >= 4 and sum(value > 0.05 for value in values) >= 3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    asyncio.run(take_pictures(parser.parse_args().out))
