"""`roundhouse reload`, and the pid file by which it finds the router."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.pid_file import running_pid
from router.reloading import ReloadOutcome, read_outcome
from tests.support.cli_helpers import CommandResult, run_cli
from tests.support.router_process import RouterProcess, http_client
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def serve(tmp_path: Path, redis: Any) -> Iterator[Any]:
    started: list[RouterProcess] = []

    async def start(text: str, name: str = "serve") -> RouterProcess:
        started.append(RouterProcess(tmp_path, text, name=name))
        started[-1].start()
        await started[-1].wait_until_ready()
        return started[-1]

    yield start
    for served in started:
        served.kill()


def with_state(config: str, folder: Path, router: str = "") -> str:
    return config.replace("[router]", f'[router]\nstate = "{folder}/state"\n{router}')


async def reload(served: RouterProcess, *options: object) -> CommandResult:
    return await run_cli("reload", "-c", served.config, *options)


@pytest.mark.parametrize("workers", [1, 2])
async def test_it_returns_when_the_new_configuration_is_in_effect(
    serve: Any, config: str, tmp_path: Path, workers: int
) -> None:
    text = with_state(config, tmp_path, f"workers = {workers}")
    served = await serve(text)
    served.write_config(text.replace("llama-alias", "sea").replace("[router]", '[router]\nlog_format = "json"'))
    result = await reload(served)
    assert (result.code, result.stdout) == (
        0, f"reloaded: the new configuration is in effect (process {served.process.pid})\n"
    )  # fmt: skip
    assert result.stderr == "roundhouse: router.log_format: a change needs a restart\n"
    again = await reload(served, "--json")
    lines = ["router.log_format: a change needs a restart"]
    assert again.json() == {"reloaded": True, "pid": served.process.pid, "lines": lines}
    for _ in range(6):  # all workers have it already
        async with http_client(served.url) as http:
            assert "sea" in [model["id"] for model in (await http.get("/v1/models")).json()["data"]]


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_router_that_is_still_starting_reloads_once_it_serves(
    config: str, tmp_path: Path, redis: Any, workers: int
) -> None:
    served = RouterProcess(tmp_path, with_state(config, tmp_path, f"workers = {workers}"))
    pid_file = tmp_path / "state" / f"router-{served.port}.pid"
    served.start()
    try:
        await eventually(lambda: running_pid(pid_file) is not None)
        served.process.send_signal(signal.SIGHUP)  # `roundhouse reload` itself takes longer to start
        outcome = await eventually(lambda: read_outcome(pid_file.with_suffix(".reload")))
        assert outcome == ReloadOutcome(1, is_in_effect=True)
        await served.wait_until_ready()
    finally:
        served.kill()


async def test_an_invalid_file_is_refused_before_the_router_hears_of_it(
    serve: Any, config: str, tmp_path: Path
) -> None:
    served = await serve(with_state(config, tmp_path))
    served.write_config("[routr]")
    result = await reload(served)
    assert result.code == 2
    assert "routr: no such setting; did you mean router?" in result.stderr
    as_json = await reload(served, "--json")
    assert (as_json.code, as_json.json()["reloaded"], as_json.json()["pid"]) == (2, False, None)
    assert "routr: no such setting" in as_json.json()["lines"][0]
    assert "stays in effect" not in served.log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
async def test_what_only_the_router_finds_wrong_is_printed(
    serve: Any, config: str, tmp_path: Path, workers: int
) -> None:
    text = with_state(config, tmp_path, f"workers = {workers}")
    served = await serve(text)
    # The command has the variable and the router does not.
    served.write_config(text.replace("[cache]", '[cache]\nstore = "${TEST_STORE:-none}"'))
    result = await run_cli("reload", "--pid-file", tmp_path / "state" / f"router-{served.port}.pid")
    assert (result.code, result.stdout) == (1, "")
    *mistakes, last = result.stderr.splitlines()
    assert [f"{served.config}: cache.store: " in line for line in mistakes] == [True]
    assert last == (
        f"roundhouse: not reloaded: the previous configuration stays in effect (process {served.process.pid})"
    )


async def test_the_file_is_removed_at_the_end_and_a_stale_one_is_recognised(
    serve: Any, config: str, tmp_path: Path
) -> None:
    served = await serve(with_state(config, tmp_path))
    pid_file = tmp_path / "state" / f"router-{served.port}.pid"
    assert running_pid(pid_file) == served.process.pid
    served.kill()
    assert running_pid(pid_file) is None  # the lock is gone, whatever the file says
    stale = await reload(served)
    assert (stale.code, stale.stdout) == (1, "")
    assert stale.stderr.startswith(f"roundhouse: no router runs with {pid_file}")
    served.start()
    await served.wait_until_ready()
    assert running_pid(pid_file) == served.process.pid
    served.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(served.process.wait, 20) == 0
    assert list((tmp_path / "state").iterdir()) == []


async def test_several_routers_share_a_state_directory_and_remove_what_is_stale(
    serve: Any, config: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "router-1.pid").write_text("1\n")
    one = await serve(with_state(config, tmp_path))
    two = await serve(with_state(config, tmp_path), "other")
    assert {path.name for path in state.glob("*.pid")} == {f"router-{served.port}.pid" for served in (one, two)}
    result = await reload(one, "--port", "1")
    assert result.code == 1
    assert f"no router runs with {state}/router-1.pid; these run: " in result.stderr
    assert (await reload(two)).stdout.endswith(f"(process {two.process.pid})\n")
    assert "the new configuration is in effect" not in one.log.read_text()


async def test_a_router_that_can_write_no_pid_file_serves(serve: Any, config: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    served = await serve(config.replace("[router]", f'[router]\npid_file = "{tmp_path}/file/router.pid"'))
    await eventually(lambda: "there is no pid file, so `roundhouse reload`" in served.log.read_text())
