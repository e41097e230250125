"""Loops of real agents over tools, whose turns reach two routers in turn, while the engine of their conversation dies:
between two tokens of a stream, or before the first one, with a router.

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

from engines.simulator.text.tokens import split_tokens
from tests.support.alternating_front import AlternatingFront
from tests.support.client_programs import CLIENTS_NODE, ClientRun, ended_client, node_command, python_command
from tests.support.paths import ROOT
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(CLIENTS_NODE is None, reason="make test-clients installs the agents"),
]

STEPS: Final = 20
FEW_STEPS: Final = 6
PROGRAMS: Final = ROOT / "tests" / "data" / "agents"
TOOLS: Final = {
    "Bash": {"command": "echo step {step}", "description": "Step {step}"},
    "exec_command": {"cmd": "echo step {step}"},
    "add_step": {"number": "{step}"},
}

TURN: Final = 4
"""Its response breaks off."""
THOUGHT: Final = "First I think of the sea, and of the number of this step."
TEXT: Final = "Now comes number {step}, with the tool."
SAID: Final = TEXT.replace("{step}", str(TURN - 1))
"""In the history of the turn, and of those after it."""
TALKING: Final = {"calls": FEW_STEPS, "tools": TOOLS, "text": TEXT}
THINKING: Final = TALKING | {"thought": THOUGHT}


class Cut(NamedTuple):
    """The script of a response that breaks off, and after how many tokens it does; whether engines parse tokens."""

    script: dict[str, Any]
    tokens: int
    scaled_out: bool = False


AFTER_THOUGHT: Final = Cut(THINKING, len(split_tokens(THOUGHT)) + 3)
IN_CALL: Final = Cut(TALKING, len(split_tokens(TEXT)) + 3)
CUTS: Final = {
    "thought": Cut(THINKING, 3),
    "text": Cut(TALKING, 3),
    "text after a thought": AFTER_THOUGHT,
    "call": IN_CALL,
    "text after a thought, scaled out": AFTER_THOUGHT._replace(scaled_out=True),
    "call, scaled out": IN_CALL._replace(scaled_out=True),
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
    """Two routers at default settings, which `front` uses in turn, and three engines with the same script.

    `tokens`: those after which the first engine dies.
    """

    front: AlternatingFront
    routers: list[RouterServer]
    engines: list[SimulatedEngine]
    tokens: int

    async def received(self) -> dict[SimulatedEngine, int]:
        """The requests that the engines which run have got."""
        return {engine: (await engine.stats())["received"] for engine in self.engines if engine.is_running}

    @property
    def turns(self) -> list[int]:
        """The requests that each router has got."""
        requests = self.front.requests.items()
        return [sum(count for (port, _), count in requests if port == router.port) for router in self.routers]

    async def fail_in_a_stream(self) -> None:
        """Called between turns: the engine of the conversation exits in the middle of the response of `TURN`."""
        counts = await self.received()
        if max(counts.values()) >= TURN - 2 and self.front.before is not None:
            self.front.before = None
            broken = max(counts, key=counts.__getitem__)
            await broken.set_faults({"fault": "exit", "after": self.tokens, "match": SAID})

    async def fail_before_a_token(self) -> float:
        """Some turns after that, a router stops whose request waits for the first token, and then its engine is killed.

        Returns `continued` before this.
        """
        stalled: asyncio.Future[SimulatedEngine] = asyncio.get_running_loop().create_future()

        async def stall_next() -> None:
            counts = await self.received()
            if sum(counts.values()) >= STEPS // 2 and self.front.before is not None:
                self.front.before = None
                engine = max(counts, key=counts.__getitem__)
                await engine.set_faults({"fault": "stall", "after": 0})
                stalled.set_result(engine)

        await eventually(lambda: not all(engine.is_running for engine in self.engines))
        self.front.before = stall_next
        engine = await asyncio.wait_for(stalled, TEST_TIMEOUT)
        await eventually(lambda: _is_busy(engine))
        continued = await self.continued()
        (router,) = [router for router in self.routers if router.port == self.front.latest]
        self.front.ports.remove(router.port)
        await router.stop()
        await engine.kill()
        return continued

    async def continued(self) -> float:
        """The streams that another engine has continued."""
        metrics = [await router.metrics() for router in self.routers]
        return sum(
            count
            for samples in metrics
            for name, count in samples.items()
            if name.startswith("llm_continuations_total") and 'result="continued"' in name
        )


async def _is_busy(engine: SimulatedEngine) -> bool:
    return bool((await engine.stats())["in_flight"])


@pytest_asyncio.fixture(loop_scope="session")
async def deployment(
    request: pytest.FixtureRequest, redis_server: RedisServer, redis: Any, make_router: MakeRouter, tmp_path: Path
) -> AsyncIterator[Deployment]:
    """Its parameter: a Cut."""
    cut = request.param
    script = tmp_path / "script.json"
    script.write_text(json.dumps(cut.script))
    options: dict[str, object] = {"max_model_len": 200_000, "kv_blocks": 40_000}
    options |= {"tool_script": script, "enable_scale_out": cut.scaled_out or None}
    async with AsyncExitStack() as stack:
        engines = [SimulatedEngine(model=LLAMA, **options) for _ in range(3)]
        await asyncio.gather(*map(stack.enter_async_context, engines))
        text = router_config(
            redis_server.url, {f"e{number}": ("llama", "any", engine.url) for number, engine in enumerate(engines)}
        )
        routers = [await make_router(text), await make_router(text)]
        front = await stack.enter_async_context(AlternatingFront([router.port for router in routers]))
        deployment = Deployment(front, routers, engines, cut.tokens)
        front.before = deployment.fail_in_a_stream
        yield deployment


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


async def run_agent(agent: str, deployment: Deployment, tmp_path: Path) -> ClientRun:
    """Runs the agent while its engine fails."""
    home = tmp_path / "home"
    home.mkdir()
    url = deployment.front.url
    command, variables = AGENTS[agent](url, home)
    variables |= {"URL": url, "ANTHROPIC_BASE_URL": url}
    return await ended_client(command, home, **variables)


CONTINUED: Final = "another engine goes on"
REPEATED: Final = "the agent repeats its request"
ENDED: Final = "the loop ends with an error"
OUTCOMES: Final[dict[str, tuple[str, ...]]] = {
    "Claude Code": (CONTINUED, REPEATED, ENDED, ENDED, ENDED, ENDED),
    "Codex": (CONTINUED, REPEATED, REPEATED, REPEATED, REPEATED, REPEATED),
    "Codex, WebSocket": (CONTINUED, REPEATED, REPEATED, REPEATED, REPEATED, REPEATED),
    "OpenAI Agents, responses": (CONTINUED, ENDED, ENDED, ENDED, ENDED, ENDED),
    "OpenAI Agents, chat": (CONTINUED, CONTINUED, ENDED, ENDED, CONTINUED, CONTINUED),
    "LangGraph": (CONTINUED, CONTINUED, ENDED, ENDED, CONTINUED, CONTINUED),
    "Pydantic AI, chat": (CONTINUED, CONTINUED, ENDED, ENDED, CONTINUED, CONTINUED),
    "Pydantic AI, responses": (CONTINUED, ENDED, ENDED, ENDED, ENDED, ENDED),
    "AI SDK, chat": (CONTINUED, CONTINUED, ENDED, ENDED, CONTINUED, CONTINUED),
    "AI SDK, responses": (CONTINUED, ENDED, ENDED, ENDED, ENDED, ENDED),
    "AI SDK, messages": (CONTINUED, ENDED, ENDED, ENDED, ENDED, ENDED),
}
"""For each of CUTS; docs/clients.md has the table."""


def outcomes(agent: str) -> dict[str, str]:
    return dict(zip(CUTS, OUTCOMES[agent], strict=True))


def last_survived(agent: str) -> str:
    """The last of CUTS that does not end the agent's loop."""
    return [cut for cut, outcome in outcomes(agent).items() if outcome != ENDED][-1]


def longer(cut: Cut) -> Cut:
    return cut._replace(script=cut.script | {"calls": STEPS})


@pytest.mark.parametrize(
    ("agent", "deployment"),
    [(agent, longer(CUTS[last_survived(agent)])) for agent in AGENTS],
    indirect=["deployment"],
    ids=AGENTS,
)
async def test_a_loop_of_twenty_steps_outlives_an_engine_in_the_middle_of_a_stream_and_another_with_a_router(
    agent: str, deployment: Deployment, tmp_path: Path
) -> None:
    async with asyncio.TaskGroup() as failing:
        failure = failing.create_task(deployment.fail_before_a_token())
        run = await run_agent(agent, deployment, tmp_path)
    assert run.code == 0, run.errors
    assert f"step {STEPS}" in run.output
    assert f"step {STEPS + 1}" not in run.output
    assert (CONTINUED if failure.result() else REPEATED) == outcomes(agent)[last_survived(agent)]
    if "WebSocket" not in agent:  # which stays at its router
        assert min(deployment.turns) >= STEPS // 4


@pytest.mark.parametrize(("cut", "deployment"), CUTS.items(), indirect=["deployment"], ids=CUTS)
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_response_that_breaks_off_is_continued_repeated_or_ends_the_loop(
    agent: str, cut: str, deployment: Deployment, tmp_path: Path
) -> None:
    run = await run_agent(agent, deployment, tmp_path)
    assert [engine.is_running for engine in deployment.engines].count(False) == 1
    continued = await deployment.continued()
    is_whole = run.code == 0 and f"step {FEW_STEPS}" in run.output
    assert f"step {FEW_STEPS + 1}" not in run.output
    outcome = (CONTINUED if continued else REPEATED) if is_whole else ENDED
    assert outcome == outcomes(agent)[cut], run
    if outcome == ENDED:
        assert run.code != 0
        # The call that was cut off has not been made, and nothing after it.
        assert f"step {TURN}" not in run.output
