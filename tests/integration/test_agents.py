"""Loops of real agents over tools, while the engine of their conversation is killed: between two tokens of a stream, or
before the first one, with their router replaced, too.

`make test-clients` installs the agents and runs this.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import pytest_asyncio

from engines.simulator.text.tokens import split_tokens
from tests.support.client_programs import CLIENTS_NODE, ClientRun, ended_client, node_command, python_command
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
TOOLS: Final = {
    "Bash": {"command": "echo step {step}", "description": "Step {step}"},
    "exec_command": {"cmd": "echo step {step}"},
    "add_step": {"number": "{step}"},
}
SCRIPT: Final = {"calls": STEPS, "tools": TOOLS}

FEW_STEPS: Final = 6
TURN: Final = 4
"""Its response breaks off."""
THOUGHT: Final = "First I think of the sea, and of the number of this step."
TEXT: Final = "Now comes number {step}, with the tool."
SAID: Final = TEXT.replace("{step}", str(TURN - 1))
"""In the history of the turn, and of those after it."""
TALKING: Final = {"calls": FEW_STEPS, "tools": TOOLS, "text": TEXT}
THINKING: Final = TALKING | {"thought": THOUGHT}
REFERRED: Final = THINKING | {"calls": STEPS}


class Cut(NamedTuple):
    """The script of a response that breaks off, and after how many tokens it does."""

    script: dict[str, Any]
    tokens: int


CUTS: Final = {
    "thought": Cut(THINKING, 3),
    "text": Cut(TALKING, 3),
    "text after a thought": Cut(THINKING, len(split_tokens(THOUGHT)) + 3),
    "call": Cut(TALKING, len(split_tokens(TEXT)) + 3),
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

    async def fail_in_a_stream(self, tokens: int) -> None:
        """The engine of the conversation exits after so many tokens of the response of `TURN`."""

        async def at_one_engine() -> list[int] | None:
            counts = await self.received()
            return counts if max(counts) >= TURN - 2 else None

        counts = await eventually(at_one_engine)
        await self.engines[counts.index(max(counts))].set_faults({"fault": "exit", "after": tokens, "match": SAID})

    async def continued(self) -> float:
        """The streams that another engine has continued."""
        metrics = [await router.metrics() for router in self.routers]
        return sum(
            count
            for samples in metrics
            for name, count in samples.items()
            if name.startswith("llm_continuations_total") and 'result="continued"' in name
        )

    async def _has_received(self, count: int) -> bool:
        return sum(await self.received()) >= count


@pytest_asyncio.fixture(loop_scope="session")
async def deployment(
    request: pytest.FixtureRequest, redis_server: RedisServer, redis: Any, make_router: MakeRouter, tmp_path: Path
) -> AsyncIterator[Deployment]:
    """Its parameter: the script of the engines."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps(request.param))
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


async def run_agent(agent: str, deployment: Deployment, tmp_path: Path, failing: Awaitable[None]) -> ClientRun:
    """Runs the agent while its engine fails."""
    home = tmp_path / "home"
    home.mkdir()
    command, variables = AGENTS[agent](deployment.url, home)
    variables |= {"URL": deployment.url, "ANTHROPIC_BASE_URL": deployment.url}
    failure = asyncio.ensure_future(failing)
    try:
        run = await ended_client(command, home, **variables)
    finally:
        failure.cancel()
    failure.result()
    return run


@pytest.mark.parametrize(
    ("agent", "deployment"),
    # The AI SDK refers to texts and thoughts by their IDs, which its second router has to find.
    [*[(agent, SCRIPT) for agent in AGENTS], ("AI SDK, responses", REFERRED)],
    indirect=["deployment"],
    ids=[*AGENTS, "AI SDK, references"],
)
async def test_a_loop_of_twenty_steps_outlives_its_engine_and_its_router(
    agent: str, deployment: Deployment, tmp_path: Path
) -> None:
    run = await run_agent(agent, deployment, tmp_path, deployment.fail_at_half())
    assert run.code == 0, run.errors
    assert f"step {STEPS}" in run.output
    assert f"step {STEPS + 1}" not in run.output
    # The conversation has stayed at one of the two that were left.
    assert max(await deployment.received()) >= STEPS // 2


CONTINUED: Final = "another engine goes on"
REPEATED: Final = "the agent repeats its request"
ENDED: Final = "the loop ends with an error"
OUTCOMES: Final[dict[str, tuple[str, str, str, str]]] = {
    "Claude Code": (CONTINUED, REPEATED, ENDED, ENDED),
    "Codex": (CONTINUED, REPEATED, REPEATED, REPEATED),
    "Codex, WebSocket": (CONTINUED, REPEATED, REPEATED, REPEATED),
    "OpenAI Agents, responses": (CONTINUED, ENDED, ENDED, ENDED),
    "OpenAI Agents, chat": (CONTINUED, CONTINUED, ENDED, ENDED),
    "LangGraph": (CONTINUED, CONTINUED, ENDED, ENDED),
    "Pydantic AI, chat": (CONTINUED, CONTINUED, ENDED, ENDED),
    "Pydantic AI, responses": (CONTINUED, ENDED, ENDED, ENDED),
    "AI SDK, chat": (CONTINUED, CONTINUED, ENDED, ENDED),
    "AI SDK, responses": (CONTINUED, ENDED, ENDED, ENDED),
    "AI SDK, messages": (CONTINUED, ENDED, ENDED, ENDED),
}
"""For each of CUTS; docs/clients.md has the table."""


@pytest.mark.parametrize(
    ("cut", "deployment"), [(name, cut.script) for name, cut in CUTS.items()], indirect=["deployment"], ids=CUTS
)
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_response_that_breaks_off_is_continued_repeated_or_ends_the_loop(
    agent: str, cut: str, deployment: Deployment, tmp_path: Path
) -> None:
    run = await run_agent(agent, deployment, tmp_path, deployment.fail_in_a_stream(CUTS[cut].tokens))
    assert [engine.is_running for engine in deployment.engines].count(False) == 1
    continued = await deployment.continued()
    is_whole = run.code == 0 and f"step {FEW_STEPS}" in run.output
    assert f"step {FEW_STEPS + 1}" not in run.output
    outcome = (CONTINUED if continued else REPEATED) if is_whole else ENDED
    assert outcome == dict(zip(CUTS, OUTCOMES[agent], strict=True))[cut], run
    if outcome == ENDED:
        assert run.code != 0
        # The call that was cut off has not been made, and nothing after it.
        assert f"step {TURN}" not in run.output
