"""`roundhouse engines explain` against a real router."""

import json
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from tests.support.cli_helpers import run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body, router_config

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY: Final = "admin-key-of-a-test"
PROMPT: Final = "The sea was calm, and the lamp of the harbour was lit. " * 60


@pytest_asyncio.fixture(loop_scope="session")
async def router(make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet) -> RouterServer:
    admin = f'[auth]\nadmin_keys = ["{hash_key(KEY.encode())}"]\n'
    return await make_router(router_config(redis_server.url, engines.as_config(), rest=admin))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    return file


async def test_the_table_has_the_engines_in_their_order_and_as_json_all_numbers(
    router: RouterServer, key: Path, tmp_path: Path
) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(chat_body(PROMPT)))
    access = "--url", router.url, "--key-file", key
    in_json = await run_cli("engines", "explain", body, *access, "--session", "s1", "--json")
    (explanation,) = in_json.json_lines()
    ranked = [row["engine"] for row in explanation["engines"]]
    assert sorted(ranked) == ["llama-chat", "llama-code"]
    table = await run_cli("engines", "explain", body, *access, "--session", "s1")
    head, titles, first, second = table.stdout.splitlines()
    assert head == (f"llama, chat, {explanation['prompt_tokens']:,} prompt tokens; as {explanation['router']} sees it")
    assert titles.split()[:3] == ["engine", "model", "behind"]
    assert [first.split()[0], second.split()[0]] == ranked
    assert (await router.chat(PROMPT, headers={"x-session-id": "s1"})).headers["x-engine"] == ranked[0]


async def test_a_refusal_of_the_router_is_shown(router: RouterServer, key: Path, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(chat_body("The sea?", model="gpt-9")))
    access = "--url", router.url, "--key-file", key
    refused = await run_cli("engines", "explain", body, *access)
    assert (refused.code, refused.stdout) == (1, "")
    assert "The model `gpt-9` does not exist" in refused.stderr
    body.write_text("{")
    refused = await run_cli("engines", "explain", body, *access)
    assert (refused.code, "is not JSON" in refused.stderr) == (1, True)
    key.write_text("another-key\n")
    body.write_text("{}")
    refused = await run_cli("engines", "explain", body, *access)
    assert (refused.code, "Set ROUNDHOUSE_ADMIN_KEY or --key-file." in refused.stderr) == (1, True)
