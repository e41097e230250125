"""`roundhouse engines adapters`: without a router, and seen by a router that runs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.upstream.adapters import adapter_name
from tests.support.cli_helpers import CommandResult, run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine(LLAMA, enable_lora=True, allow_runtime_lora_updating=True) as engine:
        yield engine


@pytest.fixture
def text(redis_server: RedisServer, redis: Any, engine: SimulatedEngine, engines: EngineSet) -> str:
    tables = {"one": ("llama", "any", engine.url), "mistral": ("mistral", "any", engines.mistral.url)}
    return router_config(redis_server.url, tables)


@pytest.fixture
def config(text: str, tmp_path: Path) -> Path:
    path = tmp_path / "roundhouse.toml"
    path.write_text(text)
    return path


async def adapters(config: Path, *arguments: str) -> CommandResult:
    return await run_cli("engines", "adapters", *arguments, "--config", config)


async def test_an_adapter_is_loaded_listed_and_unloaded_and_routers_learn_of_it(
    text: str, config: Path, make_router: MakeRouter
) -> None:
    router = await make_router(text)
    loaded = await adapters(config, "load", "sql", "/adapters/sql", "--model", "llama-alias")
    assert (loaded.code, loaded.stdout) == (0, "one: loaded\n"), loaded.stderr

    async def is_served() -> bool:
        return (await router.chat("The sea?", model="sql")).status_code == 200

    await eventually(is_served, timeout=8)
    hit = await router.chat("The sea?", model="sql")
    assert hit.headers["x-cache"] == "HIT", "so Redis has the entry, which a replacement purges"
    (row,) = (await adapters(config, "list", "--json")).json_lines()
    assert row == {
        "adapter": "sql", "model": "llama", "engine": "one", "name": adapter_name("llama", "sql"),
        "path": "/adapters/sql",
    }  # fmt: skip
    assert (await adapters(config, "list")).stdout.splitlines()[1].split() == list(row.values())
    again = await adapters(config, "load", "sql", "/adapters/sql", "-m", "llama", "--json")
    assert again.json()["engines"] == [{"engine": "one", "state": "already_loaded", "status": None, "message": None}]
    replaced = await adapters(config, "load", "sql", "/adapters/sql", "-m", "llama", "--in-place", "--json")
    assert (replaced.json()["engines"][0]["state"], replaced.json()["purged"]) == ("loaded", 1)
    assert (await adapters(config, "unload", "sql", "-m", "llama")).stdout == "one: unloaded\n"


async def test_what_cannot_be_done_ends_with_a_message(config: Path) -> None:
    without_model = await adapters(config, "load", "sql", "/adapters/sql")
    assert without_model.code == 2
    assert "--model must be the adapter's base model, one of llama, mistral" in without_model.stderr
    missing = await adapters(config, "load", "sql", "/missing/sql", "-m", "llama")
    assert missing.code == 1
    assert "No adapter found for /missing/sql" in missing.stderr
    unknown = await adapters(config, "unload", "nothing", "-m", "llama")
    assert (unknown.code, unknown.stderr) == (1, "roundhouse: No engine of the model has the adapter 'nothing'.\n")
    unprintable = await adapters(config, "load", "a\nb", "/adapters/sql", "-m", "llama")
    assert unprintable.code == 2
