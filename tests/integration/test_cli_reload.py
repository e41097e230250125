"""`roundhouse reload`, and the pid file by which it finds the router."""

import asyncio
import getpass
import json
import re
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.core.cache.redis_keys import AUDIT_KEY
from router.process.pid_file import running_pid
from router.process.reloading import ReloadOutcome, read_outcome
from tests.support.cli_helpers import CommandResult, run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, router_config
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


def with_state(config: str, folder: Path, router: str = "") -> str:
    return config.replace("[router]", f'[router]\nstate = "{folder}/state"\n{router}')


class Serving:
    """A router that the tests share: `text` is the configuration with which it was started."""

    def __init__(self, config: str, folder: Path, workers: int) -> None:
        self.text = with_state(config, folder, f"workers = {workers}")
        self.process = RouterProcess(folder, self.text, name=f"workers-{workers}")
        self.pid_file = folder / "state" / f"router-{self.process.port}.pid"

    @property
    def pid(self) -> int:
        return self.process.process.pid


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def routers(
    redis_server: RedisServer, running_engines: EngineSet, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[int, Serving]]:
    """One without and one with worker processes, by their number; before them, the directory has a stale file."""
    folder = tmp_path_factory.mktemp("reload")
    (folder / "state").mkdir()
    (folder / "state" / "router-1.pid").write_text("1\n")
    config = router_config(redis_server.url, running_engines.as_config())
    started = {workers: Serving(config, folder, workers) for workers in (1, 2)}
    try:
        for served in started.values():
            served.process.start()
        for served in started.values():
            await served.process.wait_until_ready()
        yield started
    finally:
        for served in started.values():
            served.process.kill()


@pytest.fixture(params=[1, 2])
def served(request: pytest.FixtureRequest, routers: dict[int, Serving]) -> Serving:
    return routers[request.param]


async def reload(served: Serving, *options: object) -> CommandResult:
    return await run_cli("reload", "-c", served.process.config, *options)


async def test_several_routers_share_a_state_directory_and_remove_what_is_stale(routers: dict[int, Serving]) -> None:
    one, two = routers.values()
    state = one.pid_file.parent
    assert set(state.glob("*.pid")) == {one.pid_file, two.pid_file}
    result = await reload(one, "--port", "1")
    assert result.code == 1
    assert f"no router runs with {state}/router-1.pid; these run: " in result.stderr
    assert (await reload(two)).stdout.endswith(f"(process {two.pid})\n")
    assert "the new configuration is in effect" not in one.process.log.read_text()


async def test_it_returns_when_the_new_configuration_is_in_effect(served: Serving) -> None:
    served.process.write_config(
        served.text.replace("llama-alias", "sea").replace("[router]", '[router]\nlog_format = "json"')
    )
    result = await reload(served)
    assert (result.code, result.stdout) == (
        0, f"reloaded: the new configuration is in effect (process {served.pid})\n"
    )  # fmt: skip
    assert result.stderr == "roundhouse: router.log_format: a change needs a restart\n"
    again = await reload(served, "--json")
    lines = ["router.log_format: a change needs a restart"]
    assert again.json() == {"reloaded": True, "pid": served.pid, "lines": lines}
    for _ in range(6):  # all workers have it already
        async with http_client(served.process.url) as http:
            assert "sea" in [model["id"] for model in (await http.get("/v1/models")).json()["data"]]


async def test_the_audit_has_a_reload_once_with_who_asked_for_it_and_what_changed(
    served: Serving, redis_server: RedisServer
) -> None:
    router = f"{socket.gethostname()}:{served.pid}"
    served.process.write_config(served.text.replace("llama-alias", "lake").replace("[cache]", '[cache]\nttl = "7h"'))
    assert (await reload(served)).code == 0

    async def entries(count: int) -> list[dict[str, str]] | None:
        """Without those of other tests, which may be written only now."""
        records = [dict(fields) for _, fields in await redis_server.command("XRANGE", AUDIT_KEY, "-", "+")]
        own = [each for each in records if each["router"] == router and "cache.ttl" in each["details"]]
        return own if len(own) == count else None

    # A thread writes each entry after the reload, so that of the next reload could come first.
    await eventually(lambda: entries(1))
    served.process.write_config(served.text)
    served.process.process.send_signal(signal.SIGHUP)
    first, second = await eventually(lambda: entries(2))
    who = f"command line: {getpass.getuser()}@{socket.gethostname()}"
    assert [each["actor"] for each in (first, second)] == [who, f"SIGHUP@{socket.gethostname()}"]
    assert {each["action"] for each in (first, second)} == {"reload"}
    assert first["router"] == first["subject"] == router
    assert json.loads(first["details"]) == {"changed": ["cache.ttl", "model.llama.aliases"]}
    # The line of an entry is written when Redis has replied, so the entry can be read before its line.
    await eventually(lambda: all(each["hash"] in served.process.log.read_text() for each in (first, second)))
    assert not served.pid_file.with_suffix(".reload-by").exists()


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_router_that_is_still_starting_reloads_once_it_serves(
    config: str, tmp_path: Path, redis: Any, workers: int
) -> None:
    served = Serving(config, tmp_path, workers)
    served.process.start()
    try:
        await eventually(lambda: running_pid(served.pid_file) is not None)
        served.process.process.send_signal(signal.SIGHUP)  # `roundhouse reload` may be slower than the start
        outcome = await eventually(lambda: read_outcome(served.pid_file.with_suffix(".reload")))
        assert outcome == ReloadOutcome(1, is_in_effect=True)
        await served.process.wait_until_ready()
    finally:
        served.process.kill()


async def test_an_invalid_file_is_refused_before_the_router_hears_of_it(routers: dict[int, Serving]) -> None:
    served = routers[1]
    served.process.write_config("[routr]")
    result = await reload(served)
    assert result.code == 2
    assert "routr: no such setting; did you mean router?" in result.stderr
    as_json = await reload(served, "--json")
    assert (as_json.code, as_json.json()["reloaded"], as_json.json()["pid"]) == (2, False, None)
    assert "routr: no such setting" in as_json.json()["lines"][0]
    assert "stays in effect" not in served.process.log.read_text()


async def test_what_only_the_router_finds_wrong_is_printed(served: Serving) -> None:
    # The command does not read the file.
    served.process.write_config(served.text.replace("[cache]", '[cache]\nstore = "none"'))
    result = await run_cli("reload", "--pid-file", served.pid_file)
    assert (result.code, result.stdout) == (1, "")
    *mistakes, last = result.stderr.splitlines()
    assert [bool(re.search(rf"{served.process.config}:\d+: cache.store: ", line)) for line in mistakes] == [True]
    assert last == f"roundhouse: not reloaded: the previous configuration stays in effect (process {served.pid})"


async def test_the_file_is_removed_at_the_end_and_a_stale_one_is_recognised(
    config: str, tmp_path: Path, redis: Any
) -> None:
    served = Serving(config, tmp_path, 1)
    process = served.process
    process.start()
    try:
        await process.wait_until_ready()
        assert running_pid(served.pid_file) == served.pid
        process.kill()
        assert running_pid(served.pid_file) is None  # the lock is gone, whatever the file says
        stale = await reload(served)
        assert (stale.code, stale.stdout) == (1, "")
        assert stale.stderr.startswith(f"roundhouse: no router runs with {served.pid_file}")
        process.start()
        await process.wait_until_ready()
        assert running_pid(served.pid_file) == served.pid
        process.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.process.wait, TEST_TIMEOUT) == 0
        assert list(served.pid_file.parent.iterdir()) == []
    finally:
        process.kill()
