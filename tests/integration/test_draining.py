"""The command that drains and resumes engines in running routers. The scenarios are in tests/world."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from router.commands.engines import commands as engine_commands
from router.core.cache.redis_keys import DRAINS_KEY
from tests.support.cli_helpers import CommandResult, run_cli
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.scripted_engine import Request, Response, json_response, served
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin-key"}
REST = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'


@pytest.fixture
def text(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config(), rest=REST)


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(text: str, make_router: MakeRouter) -> RouterServer:
    return await make_router(text)


async def drained(router: RouterServer) -> set[str]:
    answer = await router.http.get("/admin/engines", headers=ADMIN)
    return {engine["name"] for engine in answer.json()["engines"] if engine["drained"]}


@pytest.fixture
def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "roundhouse.toml"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_commands, "POLL_INTERVAL", 0.05)


async def command(file: Path, *words: object) -> CommandResult:
    return await run_cli("engines", *words, "--config", file)


async def test_the_command_drains_and_resumes_in_running_routers(guarded: RouterServer, file: Path) -> None:
    result = await command(file, "drain", "llama-chat")
    assert (result.code, result.stdout, result.stderr) == (0, "llama-chat is drained\n", "")
    await eventually(lambda: drained(guarded))
    rows = (await command(file, "list", "--json")).json_lines()
    assert [(row["name"], row["up"], row["drained"]) for row in rows] == [
        ("llama-chat", True, True), ("llama-code", True, False), ("mistral", True, False),
    ]  # fmt: skip
    listing = (await command(file, "list")).stdout.splitlines()
    assert listing[0].split()[:4] == ["engine", "model", "task", "state"]
    assert "up, drained" in listing[1]
    result = await command(file, "resume", "llama-chat", "--json")
    assert result.json() == {"engine": "llama-chat", "drained": False}

    async def resumed() -> bool:
        return not await drained(guarded)

    await eventually(resumed)


async def test_the_command_waits_until_the_engine_is_idle(
    guarded: RouterServer, file: Path, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    body = chat_body("The sea?", stream=True)
    async with guarded.http.stream("POST", "/v1/chat/completions", json=body):
        result = await command(file, "drain", "llama-chat", "--wait", "--timeout", 0, "--json")
        assert (result.code, result.json()["idle"]) == (1, False)
        assert result.stderr.splitlines() == [
            "llama-chat: 1 running or waiting",
            "roundhouse: engine llama-chat did not become idle within 0s; it stays drained",
        ]  # fmt: skip
        waiting = asyncio.ensure_future(command(file, "drain", "llama-chat", "--wait"))
        await eventually(lambda: drained(guarded))
    result = await waiting
    assert (result.code, result.stdout) == (0, "llama-chat is drained and idle\n")


async def test_an_engine_that_stays_busy_leaves_the_others_their_time(
    guarded: RouterServer, file: Path, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    body = chat_body("The sea?", stream=True)
    async with guarded.http.stream("POST", "/v1/chat/completions", json=body):
        result = await command(file, "drain", "llama-chat", "llama-code", "--wait", "--timeout", 3, "--json")
    idle = {row["engine"]: row["idle"] for row in result.json_lines()}
    assert idle == {"llama-chat": False, "llama-code": True}
    assert "engine llama-chat did not become idle within 3s; it stays drained" in result.stderr
    resumed = await command(file, "resume", "llama-chat", "llama-code")
    assert resumed.stdout == "llama-chat is back in service\nllama-code is back in service\n"


async def test_each_engine_is_waited_for_although_another_does_not_report_its_requests(
    guarded: RouterServer, redis_server: RedisServer, engines: EngineSet, tmp_path: Path
) -> None:
    path = tmp_path / "silent.toml"
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    async with served(_answer) as silent:
        named = {"silent": ("llama", "any", silent), "busy": ("llama", "any", engines.chat.url)}
        path.write_text(router_config(redis_server.url, named))
        body = chat_body("The sea?", stream=True)
        async with guarded.http.stream("POST", "/v1/chat/completions", json=body):
            result = await command(path, "drain", "silent", "busy", "--wait", "--timeout", 1, "--json")
    assert {row["engine"]: row["idle"] for row in result.json_lines()} == {"silent": None, "busy": False}
    assert result.stderr.splitlines()[-2:] == [
        "roundhouse: engine silent is up but does not report its running requests",
        "roundhouse: engine busy did not become idle within 1s; it stays drained",
    ]
    assert result.code == 1


async def _answer(request: Request) -> Response:
    """An engine without metrics."""
    return json_response(
        {"data": []} if request.path == "/v1/models" else {}, 404 if request.path == "/metrics" else 200
    )


async def test_an_engine_that_is_down_is_idle(redis_server: RedisServer, redis: Any, tmp_path: Path) -> None:
    path = tmp_path / "down.toml"
    path.write_text(router_config(redis_server.url, {"gone": ("llama", "any", f"http://127.0.0.1:{free_port()}")}))
    result = await command(path, "drain", "gone", "--wait")
    assert (result.code, result.stdout) == (0, "gone is drained and idle\n")
    assert "down, drained" in (await command(path, "list")).stdout


async def test_an_unknown_engine_name_is_a_usage_error(file: Path, redis: Any) -> None:
    result = await command(file, "drain", "llama")
    assert result.code == 2
    assert result.stderr == (f"roundhouse: {file}: no engine 'llama'; engines: llama-chat, llama-code, mistral\n")
    assert not await redis.exists(DRAINS_KEY)


async def test_without_redis_the_command_fails_with_one_clear_line(tmp_path: Path, engines: EngineSet) -> None:
    path = tmp_path / "alone.toml"
    path.write_text(router_config(f"unix://{tmp_path}/none.sock", engines.as_config()))
    for words in (["list"], ["drain", "mistral"], ["resume", "mistral"]):
        result = await command(path, *words)
        assert (result.code, len(result.stderr.splitlines())) == (1, 1)
        assert "Redis does not answer" in result.stderr
