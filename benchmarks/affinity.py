"""The effect of affinity: the share of prompt tokens that the engines find in their prefix caches, with and without it.

    .venv/bin/python -m benchmarks.affinity    # two simulated engines and a router of its own
    .venv/bin/python -m benchmarks.affinity --model llama --served NAME \\
        --router http://127.0.0.1:8080 --engine http://127.0.0.1:8001 --engine http://127.0.0.1:8002

The load: documents of some thousand characters as system prompts, and several questions about each, one after the other
in a shuffled order. *In turn* sends the requests to the engines directly, round robin. *Routed* sends an equal number
of similar requests through the router; none of them is in the router's cache. The shares are the differences of
`vllm:prefix_cache_hits_total` and `vllm:prefix_cache_queries_total`, summed over all engines. They include the prompts
and responses of a few tokens; nothing is timed. No other client may use the engines during the measurement.
"""

import argparse
import asyncio
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

DOCUMENTS = 12
QUESTIONS = 4
WORDS = (
    "river",
    "lamp",
    "seven",
    "harbour",
    "quiet",
    "engine",
    "paper",
    "north",
    "copper",
    "window",
    "grain",
    "signal",
)


@dataclass(frozen=True)
class Shares:
    """The share of the prompt tokens that was found in a prefix cache, 0 to 1."""

    round_robin: float
    routed: float


def load(seed: str) -> list[list[dict[str, str]]]:
    """The messages of all requests; another seed gives other documents of equal size."""
    rng = random.Random(seed)
    documents = [f"{seed} {number}. " + " ".join(rng.choices(WORDS, k=500)) for number in range(DOCUMENTS)]
    conversations = [
        [{"role": "system", "content": text}, {"role": "user", "content": f"Question {number}?"}]
        for text in documents
        for number in range(QUESTIONS)
    ]
    rng.shuffle(conversations)
    return conversations


async def compare(router: str, engines: Sequence[str], *, model: str, served: str) -> Shares:
    """Sends the load in both ways. `served`: the engines' name for the model that the router calls `model`."""
    name = f"{time.time_ns()}"  # new to every cache
    async with httpx.AsyncClient(timeout=120, trust_env=False, verify=False) as http:
        before = await _counters(http, engines)
        await _send(http, cycle(engines), load(f"{name}-a"), served)
        half = await _counters(http, engines)
        await _send(http, cycle([router]), load(f"{name}-b"), model)
        after = await _counters(http, engines)
    return Shares(_share(before, half), _share(half, after))


async def _send(
    http: httpx.AsyncClient, urls: Iterator[str], conversations: list[list[dict[str, str]]], model: str
) -> None:
    for messages in conversations:
        body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}
        (await http.post(f"{next(urls)}/v1/chat/completions", json=body)).raise_for_status()


async def _counters(http: httpx.AsyncClient, engines: Sequence[str]) -> tuple[float, float]:
    """Hits and queries of all engines' prefix caches, in tokens."""
    found = {"vllm:prefix_cache_hits_total": 0.0, "vllm:prefix_cache_queries_total": 0.0}
    for engine in engines:
        page = (await http.get(f"{engine}/metrics")).raise_for_status().text
        for line in page.splitlines():
            name = line.partition("{")[0]
            if name in found:
                found[name] += float(line.rpartition(" ")[2])
    hits, queries = found.values()
    return hits, queries


def _share(before: tuple[float, float], after: tuple[float, float]) -> float:
    return (after[0] - before[0]) / (after[1] - before[1])


@contextmanager
def running_services() -> Iterator[tuple[str, list[str]]]:
    """Two simulated engines and a router without a cache, as processes; yields the router's and the engines' URLs."""
    ports = [_free_port() for _ in range(3)]
    router, *engines = (f"http://127.0.0.1:{port}" for port in ports)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "roundhouse.toml")
        tables = "".join(
            f'[[engine]]\nname = "llama.{number}"\nmodel = "llama"\nurl = "{url}"\n'
            for number, url in enumerate(engines, 1)
        )
        # There is no Redis: requests go past the cache, and engines are chosen as ever.
        tables = f'[cache]\nurl = "unix://{folder}/none.sock"\n[[model]]\nname = "llama"\n{tables}'
        config.write_text(f"[router]\nport = {ports[0]}\n{tables}")
        commands = [["router", "serve", "--config", str(config)]]
        commands += [["engines.simulator", "--model", "llama", "--port", str(port)] for port in ports[1:]]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
            )
            for command in reversed(commands)
        ]
        try:
            _wait_for(router)
            yield router, engines
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(30)


def _wait_for(router: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{router}/readyz", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"{router} did not become ready")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--router", help="address of a running router; without it, one is started with two simulators")
    parser.add_argument("--engine", action="append", default=[], help="address of each of its engines for the model")
    parser.add_argument("--model", default="llama")
    parser.add_argument("--served", help="what the engines call the model; without it, the same")
    options = parser.parse_args()
    served = options.served or options.model
    if options.router is None:
        with running_services() as (router, engines):
            shares = asyncio.run(compare(router, engines, model=options.model, served=served))
    else:
        shares = asyncio.run(compare(options.router, options.engine, model=options.model, served=served))
    print(f"prompt tokens found in a prefix cache, of {DOCUMENTS * QUESTIONS} prompts over {DOCUMENTS} documents")
    print(f"  engines in turn      {shares.round_robin:6.1%}")
    print(f"  routed by affinity   {shares.routed:6.1%}")


if __name__ == "__main__":
    main()
