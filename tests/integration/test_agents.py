"""Loops of real agents over tools, while the engine of their conversation is killed and their router is replaced.

`make test-clients` installs the agents and runs this.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import pytest_asyncio

from tests.support.client_programs import CLIENTS_NODE, node_command, python_command, run_client
from tests.support.paths import ROOT
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(CLIENTS_NODE is None, reason="make test-clients installs the agents"),
]

STEPS: Final = 20
PROGRAMS: Final = ROOT / "tests" / "data" / "agents"
SCRIPT: Final = {
    "calls": STEPS,
    "tools": {
        "Bash": {"command": "echo step {step}", "description": "Step {step}"},
        "exec_command": {"cmd": "echo step {step}"},
        "add_step": {"number": "{step}"},
    },
}
CODEX: Final = """
model = "llama"
model_provider = "roundhouse"
web_search = "disabled"
[model_providers.roundhouse]
name = "Roundhouse"
base_url = "{url}/v1"
env_key = "KEY"
wire_api = "responses"
supports_websockets = {websocket}
"""
QUESTION: Final = "Count the steps, with the tool."


class Deployment(NamedTuple):
    """Two routers, of which `front` leads to the first one, and three engines with the same script."""

    front: TcpProxy
    routers: list[RouterServer]
    engines: list[SimulatedEngine]

    @property
    def url(self) -> str:
        return self.front.url.replace("redis://", "http://")

    async def received(self) -> list[int]:
        """The requests that the engines which run have got."""
        return [(await engine.stats())["received"] for engine in self.engines if engine.is_running]

    async def fail_at_half(self) -> None:
        """Kills the engine of the conversation while a request waits for its first token, and stops its router."""
        await eventually(lambda: self._has_received(STEPS // 2))
        counts = await self.received()
        await self.engines.pop(counts.index(max(counts))).kill()
        self.front.target = self.routers[1].port
        await self.routers[0].stop()

    async def _has_received(self, count: int) -> bool:
        return sum(await self.received()) >= count


@pytest_asyncio.fixture(loop_scope="session")
async def deployment(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter, tmp_path: Path
) -> AsyncIterator[Deployment]:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT))
    options: dict[str, object] = {"ttft_ms": 400, "max_model_len": 200_000, "kv_blocks": 40_000}
    async with AsyncExitStack() as stack:
        started = [SimulatedEngine(model=LLAMA, tool_script=script, **options) for _ in range(3)]
        engines = [await stack.enter_async_context(engine) for engine in started]
        text = router_config(
            redis_server.url, {f"e{number}": ("llama", "any", engine.url) for number, engine in enumerate(engines)}
        )
        routers = [await make_router(text), await make_router(text)]
        front = await stack.enter_async_context(TcpProxy(routers[0].port))
        yield Deployment(front, routers, engines)


def claude_code(_: str, __: Path) -> tuple[list[str], dict[str, str]]:
    command = [node_command("claude"), "-p", QUESTION, "--dangerously-skip-permissions", "--verbose"]
    variables = {
        "ANTHROPIC_AUTH_TOKEN": "sk-acme", "ANTHROPIC_MODEL": "llama", "ANTHROPIC_SMALL_FAST_MODEL": "llama",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1",
    }  # fmt: skip
    return [*command, "--output-format", "stream-json"], variables


def codex(url: str, home: Path, websocket: str) -> tuple[list[str], dict[str, str]]:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(CODEX.format(url=url, websocket=websocket))
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    return [node_command("codex"), "exec", *options, QUESTION], {"KEY": "sk-acme"}


def python_agent(name: str, dialect: str) -> tuple[list[str], dict[str, str]]:
    return [*python_command((PROGRAMS / f"{name}.py").read_text()), dialect], {}


def node_agent(name: str, dialect: str) -> tuple[list[str], dict[str, str]]:
    return ["node", "--input-type=module", "-e", (PROGRAMS / f"{name}.mjs").read_text(), dialect], {}


AGENTS: Final[dict[str, Callable[[str, Path], tuple[list[str], dict[str, str]]]]] = {
    "Claude Code": claude_code,
    "Codex": lambda url, home: codex(url, home, "false"),
    "Codex, WebSocket": lambda url, home: codex(url, home, "true"),
    "OpenAI Agents, responses": lambda *_: python_agent("openai_agents", "responses"),
    "OpenAI Agents, chat": lambda *_: python_agent("openai_agents", "chat"),
    "LangGraph": lambda *_: python_agent("langgraph_agent", "chat"),
    "Pydantic AI, chat": lambda *_: python_agent("pydantic_agent", "chat"),
    "Pydantic AI, responses": lambda *_: python_agent("pydantic_agent", "responses"),
    "AI SDK, chat": lambda *_: node_agent("ai_sdk", "chat"),
    "AI SDK, responses": lambda *_: node_agent("ai_sdk", "responses"),
    "AI SDK, messages": lambda *_: node_agent("ai_sdk", "messages"),
}


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_loop_of_twenty_steps_outlives_its_engine_and_its_router(
    agent: str, deployment: Deployment, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    command, variables = AGENTS[agent](deployment.url, home)
    variables |= {"URL": deployment.url, "ANTHROPIC_BASE_URL": deployment.url}
    failing = asyncio.ensure_future(deployment.fail_at_half())
    try:
        output = await run_client(command, home, **variables)
    finally:
        failing.cancel()
    assert failing.done()
    assert f"step {STEPS}" in output
    assert f"step {STEPS + 1}" not in output
    # The conversation has stayed at one of the two that were left.
    assert max(await deployment.received()) >= STEPS // 2
