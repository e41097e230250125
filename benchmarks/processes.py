"""The processes of a benchmark on this machine: routers, with a Redis and an engine of their own."""

import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.bare_engine import EVENTS
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_process import ROUNDHOUSE, RouterProcess
from tests.support.waiting import eventually

START_TIMEOUT = 180.0
"""Seconds; with valgrind, a router needs most of a minute to start."""

CONFIGURATION = """
[router]
[cache]
url = "{redis}"
timeout = "30s"
local = "{local}"
[[model]]
name = "bare"
[[engine]]
name = "bare"
model = "bare"
url = "http://127.0.0.1:{engine}"
"""


class RunningRedis(Protocol):
    """Anything with the URL of a running Redis: one server, or a deployment of several."""

    url: str


@contextlib.asynccontextmanager
async def bare_engine(interval: float, events: int = EVENTS, *, vllm: bool = False) -> AsyncIterator[int]:
    """The port of an engine; `interval`: milliseconds between events; `events`: their number per stream.

    `vllm`: it looks like vLLM.
    """
    options = ["--interval", str(interval), "--events", str(events), *(["--vllm"] if vllm else [])]
    async with started_script("bare_engine.py", *options) as (port, _):
        yield port


@contextlib.asynccontextmanager
async def bare_router(interval: float) -> AsyncIterator[tuple[int, int]]:
    """The port and the process id of a bare router, with a bare engine and a Redis of its own."""
    redis = RedisServer()
    try:
        await redis.start()
        async with (
            bare_engine(interval) as engine,
            started_script("bare_router.py", "--engine", str(engine), "--redis", str(redis.socket)) as started,
        ):
            yield started
    finally:
        redis.remove()


@contextlib.asynccontextmanager
async def started_script(script: str, *options: str) -> AsyncIterator[tuple[int, int]]:
    """Port and process id of a running script of this folder."""
    port = free_port()
    process = subprocess.Popen(  # noqa: ASYNC220 - it does not block
        [sys.executable, str(Path(__file__).parent / script), str(port), *options]
    )
    try:
        await eventually(lambda: is_open(port))
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def running_routers(
    *, routers: int = 1, interval: float = 0.0, events: int = EVENTS, local: str = "64MiB",
    command_prefix: Sequence[str] = (), redis: RunningRedis | None = None, rest: str = "", vllm: bool = False,
) -> AsyncIterator[list[RouterProcess]]:  # fmt: skip
    """Routers that are ready.

    `interval`: milliseconds between events; `events`: their number per stream; `local`: the size of the local cache;
    `command_prefix`: a command that runs each router, such as valgrind; `redis`: a running one to use;
    `rest`: further tables of the configuration; `vllm`: the engine looks like vLLM.
    """
    with tempfile.TemporaryDirectory() as folder:
        async with _redis(redis) as url, bare_engine(interval, events, vllm=vllm) as port:
            text = CONFIGURATION.format(redis=url, engine=port, local=local) + rest
            started = [RouterProcess(Path(folder), text, name=f"router-{number}") for number in range(routers)]
            try:
                for router in started:
                    router.start(argv=[*command_prefix, *ROUNDHOUSE, "serve", "-c", str(router.config)])
                for router in started:
                    await eventually(partial(is_listening, router), timeout=START_TIMEOUT)
                    await router.wait_until_ready()
                yield started
            finally:
                for router in started:
                    router.kill()


@contextlib.asynccontextmanager
async def _redis(running: RunningRedis | None) -> AsyncIterator[str]:
    """The URL of the running Redis, or of a temporary one."""
    if running is not None:
        yield running.url
        return
    redis = RedisServer()
    try:
        await redis.start()
        yield redis.url
    finally:
        redis.remove()


def is_open(port: int) -> bool:
    """Whether a process listens on this port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_listening(router: RouterProcess) -> bool:
    """Whether a started router listens; raises RuntimeError if it has exited."""
    if not router.is_running:
        raise RuntimeError(router.log.read_text())
    return is_open(router.port)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process, user and system."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def memory_kb(pid: int) -> int:
    """The resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
