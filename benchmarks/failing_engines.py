"""The outcomes of many concurrent requests while engines fail at random: complete, an explicit error, or lost.

    .venv/bin/python -m benchmarks.failing_engines [--requests 10000] [--at-once 500] [--every 1] [--fallback]

It starts a Redis, four simulated engines of one model, one of another, and two routers that share the Redis, each in
its own process. Half of the requests are streams; each is new to the cache; they alternate between the routers. Every
second (`--every`), a healthy engine gets a fault, which affects all its requests for 0.1 to 1 s, or is killed (SIGKILL)
and restarted two seconds later. With `--fallback`, the other model serves requests that the first cannot.

The measured time is from the first request to the last byte of the last response.

- complete: a JSON response with choices, or a stream that ends with `[DONE]`
- error: a status of at least 400 with OpenAI's error object, or a stream that ends with one error event
- lost: anything else; there must be none
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx
import uvloop

from benchmarks.chat_connection import ChatConnection, Response, request_bytes
from engines.redis_server import find_program, redis_argv

ENGINES = 4
KILL_SHARE = 0.1  # share of the faults that are a SIGKILL
DOWN_FOR = 2.0
TIMEOUT = 120.0  # seconds per request; a request without a response by then is lost
FAULTS: tuple[dict[str, object], ...] = (
    {"fault": "status", "code": 500},
    {"fault": "status", "code": 503},
    {"fault": "status", "code": 429, "retry_after": "1"},
    {"fault": "drop"},
    {"fault": "drop", "after": 0},
    {"fault": "drop", "after": 3},
    {"fault": "error", "after": 0},
    {"fault": "error", "after": 3},
    {"fault": "malformed"},
    {"fault": "stall", "after": 0},
    {"fault": "stall", "after": 3},
)
CONFIGURATION = """
[router]
port = {port}
[cache]
url = "unix://{redis}"
[breaker]
cooldown = "1s"
[timeouts]
connect = "2s"
first_token = "5s"
between_tokens = "5s"
[[model]]
name = "llama"
{fallback}
[[model]]
name = "mistral"
"""
ENGINE = '[[engine]]\nname = "{name}"\nmodel = "{model}"\nurl = "http://127.0.0.1:{port}"\n'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A process that can be killed and started again."""

    def __init__(self, *argv: str) -> None:
        self._argv = argv
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        quiet = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(*self._argv, stdout=quiet, stderr=quiet)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        await self._process.wait()


class Engine(Process):
    def __init__(self, name: str, model: str) -> None:
        self.name, self.model, self.port = name, model, free_port()
        super().__init__(
            sys.executable, "-m", "engines.simulator", "--port", str(self.port), "--model", model, "--ttft-ms", "20",
            "--max-num-seqs", "1024",
        )  # fmt: skip


class Clients:
    """Sends requests and counts their outcomes. Each client has one connection, which it opens again if it breaks."""

    def __init__(self, ports: list[int], requests: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.durations: list[float] = []
        self._ports = ports
        self._numbers = iter(range(requests))

    async def run(self, client: int) -> None:
        port = self._ports[client % len(self._ports)]
        connection: ChatConnection | None = None
        for number in self._numbers:
            started = time.perf_counter()
            try:
                if connection is None or not connection.is_reusable:
                    connection = await self._connect(port)
                self.outcomes[await self._ask(connection, number)] += 1
            except OSError as error:
                self.outcomes[f"lost: {type(error).__name__}"] += 1
            self.durations.append(time.perf_counter() - started)

    async def _connect(self, port: int) -> ChatConnection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT):
            _, connection = await loop.create_connection(ChatConnection, "127.0.0.1", port)
        return connection

    async def _ask(self, connection: ChatConnection, number: int) -> str:
        messages = [{"role": "user", "content": f"Number {number}?"}]
        body = {"model": "llama", "messages": messages, "stream": number % 4 > 1, "max_tokens": 24}
        response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        connection.send(
            request_bytes("localhost", "/v1/chat/completions", json.dumps(body).encode()), response.set_result
        )
        expiry = asyncio.get_running_loop().call_later(TIMEOUT, connection.abort, f"no end in {TIMEOUT:.0f} s")
        result = await response
        expiry.cancel()
        if (error := result.error) is None:
            is_stream = result.first is not None
            return "complete" if is_stream is body["stream"] else "lost: JSON for a stream, or a stream for JSON"
        kind, _, rest = error.partition(" ")
        has_code = kind == "HTTP" and " " in rest  # after the status: that of OpenAI's error object
        return f"error: {error}" if has_code or error.startswith("error event") else f"lost: {error}"


async def inject_faults(engines: list[Engine], every: float, rng: random.Random, faults: "Counter[str]") -> None:
    """Injects faults until it is cancelled."""
    async with httpx.AsyncClient(timeout=5) as http, asyncio.TaskGroup() as group:
        faulty: set[str] = set()

        async def killed(engine: Engine) -> None:
            await engine.end()
            await asyncio.sleep(DOWN_FOR)
            await engine.start()
            faulty.discard(engine.name)

        async def failing(engine: Engine, fault: dict[str, object], seconds: float) -> None:
            page = f"http://127.0.0.1:{engine.port}/_sim/faults"
            with contextlib.suppress(httpx.HTTPError):  # it may still be starting
                await http.post(page, json=[fault])
                await asyncio.sleep(seconds)
                await http.delete(page)
            faulty.discard(engine.name)

        while True:
            await asyncio.sleep(every)
            healthy = [engine for engine in engines if engine.name not in faulty]
            if not healthy:
                continue
            engine = rng.choice(healthy)
            faulty.add(engine.name)
            if rng.random() < KILL_SHARE:
                faults["SIGKILL"] += 1
                group.create_task(killed(engine))
            else:
                fault = rng.choice(FAULTS)
                faults[" ".join(f"{name}={value}" for name, value in fault.items())] += 1
                group.create_task(failing(engine, fault, rng.uniform(0.1, 1.0)))


async def until_ready(url: str) -> None:
    async with httpx.AsyncClient() as http, asyncio.timeout(60):
        while True:
            try:
                if (await http.get(f"{url}/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def run(arguments: argparse.Namespace) -> int:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-")))
        engines = [Engine(f"llama-{number}", "llama") for number in range(1, ENGINES + 1)]
        other = Engine("mistral", "mistral")
        redis = Process(*redis_argv(find_program("redis-server"), socket=folder / "redis.sock", folder=folder))
        for process in (redis, *engines, other):
            await process.start()
            stack.push_async_callback(process.end)
        ports, urls = [], []
        for number in (1, 2):
            port = free_port()
            ports.append(port)
            text = CONFIGURATION.format(
                port=port, redis=folder / "redis.sock", fallback='fallback = "mistral"' if arguments.fallback else ""
            )
            text += "".join(ENGINE.format(name=e.name, model=e.model, port=e.port) for e in (*engines, other))
            (folder / f"{number}.toml").write_text(text)
            router = Process(sys.executable, "-m", "router", "serve", "--config", str(folder / f"{number}.toml"))
            await router.start()
            stack.push_async_callback(router.end, signal.SIGTERM)
            urls.append(f"http://127.0.0.1:{port}")
        await asyncio.gather(*map(until_ready, urls))
        clients, faults = Clients(ports, arguments.requests), Counter[str]()
        started = time.perf_counter()
        injecting = asyncio.create_task(inject_faults(engines, arguments.every, random.Random(arguments.seed), faults))
        await asyncio.gather(*(clients.run(client) for client in range(arguments.at_once)))
        seconds = time.perf_counter() - started
        injecting.cancel()
        await asyncio.wait([injecting])
        report(clients, faults, seconds)
        metrics = [(await httpx.AsyncClient().get(f"{url}/metrics")).text for url in urls]
        total = partial(sum_of, metrics)
        print(f"{total('llm_retries_total')} attempts at engines failed", end="; ")
        print(f"{total('llm_fallbacks_total')} requests to the fallback model", end="; ")
        print(f"""{total("llm_continuations_total", 'result="continued"')} streams continued""")
    return 1 if any(outcome.startswith("lost") for outcome in clients.outcomes) else 0


def sum_of(pages: list[str], name: str, labels: str = "") -> int:
    """Of a metric over the pages of all routers."""
    lines = [line for page in pages for line in page.splitlines()]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and labels in line))


def report(clients: Clients, faults: "Counter[str]", seconds: float) -> None:
    durations, total = sorted(clients.durations), sum(clients.outcomes.values())
    kinds = Counter(outcome.partition(":")[0] for outcome in clients.outcomes.elements())
    rate = total / seconds
    print(f"{total} requests in {seconds:.1f} s, {rate:.0f} a second")
    print(", ".join(f"{kinds[kind]} {kind} ({kinds[kind] / total:.2%})" for kind in ("complete", "error", "lost")))
    median, p99 = durations[total // 2], durations[total * 99 // 100]
    print(f"seconds: median {median:.2f}, 99 % {p99:.2f}, slowest {durations[-1]:.2f}")
    for outcome, count in clients.outcomes.most_common():
        print(f"  {count:6} {outcome}")
    print("meanwhile:", ", ".join(f"{count} x {fault}" for fault, count in sorted(faults.items())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=500)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fallback", action="store_true", help="let another model answer where the first cannot")
    sys.exit(uvloop.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
