"""The wheels in an environment of their own: what a user gets from `pip install roundhouse-router`."""

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.built_distributions import Distributions, Environment
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import LLAMA, router_config
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

on_the_session_loop = pytest.mark.asyncio(loop_scope="session")

HELLO = {"model": "llama", "messages": [{"role": "user", "content": "The sea?"}]}
LAUNCHED = """
[router]
state = "state"
drain = "0s"
[[model]]
name = "llama"
[[engine]]
name = "one"
model = "llama"
task = "any"
url = "http://127.0.0.1:{port}"
served_model = "target"
[engine.launch]
target = "target"
"""


@pytest.fixture(scope="session")
def environment(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the wheel of the router alone."""
    installed = Environment(tmp_path_factory.mktemp("environment"))
    installed.install(distributions.router)
    return installed


@pytest.fixture(scope="session")
def both_environment(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With both wheels; the last test of this file changes it."""
    installed = Environment(tmp_path_factory.mktemp("both"))
    installed.install(distributions.router, distributions.simulator)
    return installed


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine(LLAMA) as running:
        yield running


@pytest.fixture
def installed_router(redis_server: RedisServer, engine: SimulatedEngine, tmp_path: Path) -> Iterator[RouterProcess]:
    process = RouterProcess(tmp_path, router_config(redis_server.url, {"one": ("llama", "any", engine.url)}))
    yield process
    if hasattr(process, "process"):
        process.kill()


def test_the_command_says_its_version(environment: Environment) -> None:
    done = environment.run(environment.roundhouse, "--version")
    assert (done.returncode, done.stdout) == (0, "roundhouse 0.1.0\n"), done.stderr


def test_the_packages_are_those_of_the_wheel(environment: Environment) -> None:
    done = environment.run(environment.python, "-c", "import router, engines; print(router.__file__, engines.__file__)")
    assert done.stdout.split() == [
        str(environment.site_packages / name / "__init__.py") for name in ("router", "engines")
    ]


@on_the_session_loop
async def test_check_accepts_an_engine_and_serve_answers_from_it_and_then_from_the_cache(
    environment: Environment, installed_router: RouterProcess
) -> None:
    checked = environment.run(environment.roundhouse, "check", "--config", installed_router.config)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    installed_router.start(argv=environment.command(environment.roundhouse, "serve", "-c", installed_router.config))
    await installed_router.wait_until_ready()
    misses: list[bytes] = []
    async with http_client(installed_router.url) as http:

        async def hit() -> bytes | None:
            reply = await http.post("/v1/chat/completions", json=HELLO)
            assert reply.status_code == 200, reply.text
            if reply.headers["x-cache"] == "HIT":
                return reply.content
            misses.append(reply.content)
            return None

        # The router may have just started, or Redis may be busy: then the first response is not stored yet.
        assert await eventually(hit) in misses
        dashboard = await http.get("/dashboard")
    # Without an administrator's key; the page is made from a template, which is a file of the wheel.
    assert (dashboard.status_code, dashboard.headers["content-type"]) == (403, "text/html; charset=utf-8")
    installed_router.send_signal(signal.SIGTERM)
    assert installed_router.process.wait(30) == 0, installed_router.log.read_text()


def test_up_says_what_to_install_for_simulated_engines(environment: Environment, tmp_path: Path) -> None:
    config = tmp_path / "roundhouse.toml"
    config.write_text(LAUNCHED.format(port=free_port()))
    done = environment.run(environment.roundhouse, "up", "-c", config, "--engines", "simulator")
    assert done.returncode == 1
    assert done.stdout + done.stderr == (
        "roundhouse: the simulator is not installed here; `pip install 'roundhouse-router[simulator]'`\n"
    )


@on_the_session_loop
async def test_up_runs_simulated_engines_where_the_simulator_is_installed(
    both_environment: Environment, tmp_path: Path
) -> None:
    router = RouterProcess(tmp_path, LAUNCHED.format(port=free_port()))
    command = (both_environment.roundhouse, "up", "-c", router.config, "--engines", "simulator")
    router.start(argv=both_environment.command(*command))
    try:
        await router.wait_until_ready()
        async with http_client(router.url) as http:
            assert (await http.post("/v1/chat/completions", json=HELLO)).status_code == 200
        router.process.send_signal(signal.SIGINT)
        assert router.process.wait(30) == 0, router.log.read_text()
    finally:
        router.kill()


def test_each_distribution_can_be_removed_and_replaced_without_the_other(
    both_environment: Environment, distributions: Distributions
) -> None:
    both = ("-c", "import router.errors, engines.plan, engines.simulator.text.tokens, engines.tiny.plan")
    assert both_environment.run(both_environment.python, *both).returncode == 0
    both_environment.install(distributions.router)
    assert both_environment.run(both_environment.python, *both).returncode == 0
    both_environment.uninstall("roundhouse-simulator")
    assert not (both_environment.site_packages / "engines" / "simulator").exists()
    done = both_environment.run(both_environment.python, "-c", "import router.errors, engines.plan")
    assert done.returncode == 0, done.stderr
