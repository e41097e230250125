"""The GPUs on the overview: which engine is awake, who sleeps since when, and how often that changed."""

import re
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser.test_accessibility import PHONE, violations
from tests.support.browser import ADMIN, Viewer, viewer_of
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

_GPU = '[[gpu]]\nname = "gpu0"\nengines = ["llama-chat", "mistral"]\n'


@pytest_asyncio.fixture(loop_scope="session")
async def router(redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter) -> Any:
    """The engine of Mistral sleeps."""
    models = {"llama-chat": engines.chat.model, "mistral": engines.mistral.model}
    async with (
        SimulatedEngine(models["llama-chat"], server_dev_mode=True) as chat,
        SimulatedEngine(models["mistral"], server_dev_mode=True) as mistral,
    ):
        tables = {"llama-chat": ("llama", "chat", chat.url), "mistral": ("mistral", "any", mistral.url)}
        text = router_config(redis_server.url, tables, rest=f"{ADMIN}\n{_GPU}")
        yield await make_router(text.replace("served_model", 'sleep = "vllm"\nserved_model'))


async def test_a_gpu_is_followed_through_a_switch(viewer: Viewer, router: RouterServer) -> None:
    page = await viewer.show()
    row = page.locator("#gpus [data-gpu=gpu0]")
    await expect(row.locator("[data-label='Awake']")).to_have_text(re.compile(r"llama-chat for \d+s"))
    await expect(row.locator("[data-label='Asleep']")).to_have_text(re.compile(r"mistral since \d\d:\d\d"))
    assert (await router.chat("The sea?", model="mistral")).status_code == 200
    await expect(row.locator("[data-label='Awake']")).to_have_text(re.compile(r"mistral for \d+s"))
    await expect(row.locator("[data-label^='Switches']")).to_have_text("1")
    await expect(page.locator("#engines [data-engine=llama-chat] .state")).to_have_text("Asleep")
    await expect(page.locator("#health")).to_have_text("1 of 2 engines up, 1 asleep.")


@pytest.mark.parametrize("options", [{}, PHONE])
async def test_the_gpus_are_accessible_and_fit_any_window(
    browser: Browser, router: RouterServer, options: dict[str, Any]
) -> None:
    async with viewer_of(browser, router, reduced_motion="reduce", **options) as viewer:
        page = await viewer.show()
        await expect(page.locator("#gpus [data-gpu=gpu0]")).to_be_visible()
        assert await violations(page) == []
