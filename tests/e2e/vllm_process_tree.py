"""The complete process tree as a user starts it, seen from the outside."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.waiting import eventually

CONFIGURATION = ROOT / "engines" / "tiny" / "roundhouse.toml"
LOG = "up.log"
START_TIMEOUT = 900  # seconds; five engines on two cores take minutes


class Events(NamedTuple):
    """The ports of an engine's KV events and of their replay."""

    events: int
    replay: int


class VllmProcessTree:
    """A running `roundhouse up`. `kills`: how often each engine was killed."""

    def __init__(self, url: str, config: Path, redis_socket: Path, ports: dict[str, int]) -> None:
        self.kills = Counter[str]()
        self.url = url
        self.config = config
        self.redis_socket = redis_socket
        self.ports = ports

    def redis(self, *command: str) -> list[str]:
        """What redis-cli prints, line by line."""
        from engines.redis_server import find_program

        argv = [find_program("redis-cli"), "-s", str(self.redis_socket), *command]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()

    def metric(self, engine: str, name: str) -> float:
        """A metric of an engine's own page, summed over its labels; fails if the engine has none of that name."""
        page = httpx.get(f"http://127.0.0.1:{self.ports[engine]}/metrics", timeout=30).text
        samples = [s for f in text_string_to_metric_families(page) for s in f.samples if s.name == name]
        assert samples, f"{engine} has no {name}"
        return sum(sample.value for sample in samples)

    def up(self, *engines: str) -> "VllmProcessTree":
        """The same tree with these engines only, once the router sends to all of them: a test may have killed one."""
        part = VllmProcessTree(self.url, self.config, self.redis_socket, {name: self.ports[name] for name in engines})
        part.kills = self.kills
        asyncio.run(part._wait_until_up())
        return part

    async def _wait_until_up(self) -> None:
        log = self.config.with_name(LOG)
        async with httpx.AsyncClient(timeout=120) as http:

            async def is_up() -> bool:
                text = log.read_text()
                if any(text.count(f"{name} is ready again") < self.kills[name] for name in self.ports):
                    return False  # whatever the router knows yet
                known = (await http.get(f"{self.url}/healthz")).json()["engines"]
                states = [known[name] for name in self.ports]
                if not all(state["up"] for state in states):
                    return False
                for state in states:
                    if state["breaker"] == "half-open":  # the next request closes it
                        body = {"model": state["model"], "prompt": "Hello", "max_tokens": 1}
                        headers = {"cache-control": "no-store"}
                        await http.post(f"{self.url}/v1/completions", json=body, headers=headers)
                return all(state["breaker"] == "closed" for state in states)

            await eventually(is_up, timeout=START_TIMEOUT)

    def kill(self, engine: str) -> None:
        """Ends an engine and its engine core as a crash of the machine would: SIGKILL for its whole process group."""
        self.kills[engine] += 1
        os.killpg(os.getpgid(self.pid(engine)), signal.SIGKILL)

    def pid(self, engine: str) -> int:
        """Of the engine's API server."""
        wanted = f"\0--port\0{self.ports[engine]}\0".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    cmdline = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if wanted in cmdline and b"vllm" in cmdline:
                    return int(entry.name)
        pytest.fail(f"no process of engine {engine} was found")


def _with_patient_lookups(text: str) -> str:
    """By default, a lookup that takes 50 ms is a bypass: it may, beside engines that compute on the same cores."""
    options = '[cache]\ntimeout = "2500ms"\nretry = "20ms"\n'
    return text.replace("[cache]\n", options) if "[cache]\n" in text else f"{options}\n{text}"


@contextmanager
def running_tree(folder: Path, text: str, ports: dict[str, int]) -> Iterator[VllmProcessTree]:
    """`roundhouse up` with real engines on a configuration, without a [router] table, until the end of the context."""
    router = free_port()
    config = folder / "roundhouse.toml"
    # Tests expect the best engine, so exploration is off.
    text = _with_patient_lookups(text)
    config.write_text(f'[router]\nport = {router}\nexplore = 0\nstate = "{folder}/state"\n\n{text}')
    argv = [sys.executable, "-m", "router", "up", "--config", str(config), "--engines", "vllm"]
    argv += ["--vllm-python", os.environ["ROUNDHOUSE_VLLM_PYTHON"]]
    log = folder / LOG
    with log.open("wb") as output:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield wait_until_ready(process, log, router, ports, folder)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def wait_until_ready(
    process: "subprocess.Popen[bytes]", log: Path, router: int, ports: dict[str, int], folder: Path
) -> VllmProcessTree:
    """The tree, once its banner is out."""
    url = f"http://127.0.0.1:{router}"
    for _ in range(START_TIMEOUT):
        text = log.read_text()
        if "stop: Ctrl-C" in text:
            socket_path = re.search(r"redis-cli -s (\S+)", text)
            assert socket_path is not None
            return VllmProcessTree(url, folder / "roundhouse.toml", Path(socket_path[1]), ports)
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            continue
        break
    pytest.fail(f"`roundhouse up` did not come up:\n{log.read_text()}\n{read_logs(folder)}")


def read_logs(folder: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in folder.glob("state/logs/*.log"))
