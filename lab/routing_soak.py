"""A day of conversations in minutes: does what the routers remember of prefix caches grow?

    .venv/bin/python -m lab.routing_soak [--hours 24] [--rate 3]

Two router processes remember what four replicas hold, choose by it, and send each other what they send (Prefills and
PromptRecords, without sockets; one message in fifty is lost). Time is virtual. Every 20 minutes a replica restarts with
an empty cache, every two hours one is replaced by another at a new address, and every hour one of the processes is
replaced; its prompts in flight are lost. After each hour, a row says what is remembered.
"""

import argparse
import asyncio
import heapq
import random
import resource
import sys
import time
from collections.abc import Callable
from itertools import count as numbers
from typing import Any, Final
from unittest.mock import patch

from benchmarks.options import positive
from router.core.routing.prefill import AWAY_TOKENS, EngineLoad, Prefills, SentPrompt
from router.core.routing.prefix_cache.prompt_chain import PIECE, PromptChain
from router.shared.prompts.prompt_records import HELLO_INTERVAL, PromptRecords

REPLICAS: Final = 4
POOL_TOKENS: Final = 131_072
RESTART_EVERY, REPLACE_EVERY, PROCESS_EVERY = 1200.0, 7200.0, 3600.0
LOST: Final = 0.02
MAX_TURNS: Final = 12


class Timers:
    """Stands in for the event loop: the current time, and what is to be called later."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = numbers()
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._due, (self.now + delay, next(self._order), callback, args))

    def run_until(self, end: float) -> None:
        while self._due and self._due[0][0] <= end:
            self.now, _, callback, args = heapq.heappop(self._due)
            callback(*args)
        self.now = end


class Process:
    """One router process, which is also the link of the others to it."""

    up: Final = True

    def __init__(self, soak: "Soak", name: str) -> None:
        self.soak, self.is_dead = soak, False
        self.prefills = Prefills()
        self.records = PromptRecords(self.prefills, name, clock=lambda: soak.timers.now)
        self.records.link = self
        self.keep()

    def keep(self) -> None:
        self.prefills.keep(self.soak.urls)
        for url in self.soak.urls:
            self.prefills.of(url).set_capacity_tokens(POOL_TOKENS)

    def publish(self, message: bytes) -> None:
        for other in self.soak.processes:
            if other is not self and self.soak.rng.random() >= LOST:
                self.soak.timers.call_later(0.001, other.records.on_message, message)


class Soak:
    def __init__(self, rate: float) -> None:
        self.rng = random.Random(1)
        self.timers = Timers()
        self.requests = 0
        self._names = numbers(1)
        self._hashes = numbers(1)
        self.urls = [self._new_url() for _ in range(REPLICAS)]
        self.in_flight = dict.fromkeys(self.urls, 0)
        self.processes: list[Process] = []
        self.processes = [self._new_process() for _ in range(2)]
        self._rate = rate
        self._start_chat()
        for interval, action in (
            (HELLO_INTERVAL, self._say_hello), (RESTART_EVERY, self._restart), (REPLACE_EVERY, self._replace_replica),
            (PROCESS_EVERY, self._replace_process),
        ):  # fmt: skip
            self._repeat(interval, action)

    def _new_url(self) -> str:
        return f"http://replica-{next(self._names)}:8000"

    def _new_process(self) -> Process:
        return Process(self, f"process-{next(self._names)}")

    def _repeat(self, interval: float, action: Callable[[], None]) -> None:
        def run() -> None:
            action()
            self.timers.call_later(interval, run)

        self.timers.call_later(interval, run)

    # -- what happens -------------------------------------------------------------------------------------------------

    def _say_hello(self) -> None:
        for process in self.processes:
            process.records.say_hello()

    def _restart(self) -> None:
        url = self.rng.choice(self.urls)
        for process in self.processes:
            process.prefills.of(url).forget()

    def _replace_replica(self) -> None:
        self.urls = [*self.urls[1:], self._new_url()]
        self.in_flight = {url: self.in_flight.get(url, 0) for url in self.urls}
        for process in self.processes:
            process.keep()

    def _replace_process(self) -> None:
        self.processes[0].is_dead = True
        self.processes = [*self.processes[1:], self._new_process()]

    def _start_chat(self) -> None:
        self.timers.call_later(self.rng.expovariate(self._rate / MAX_TURNS * 2), self._start_chat)
        self._ask([], self.rng.randint(1, MAX_TURNS))

    def _ask(self, hashes: list[int], turns: int) -> None:
        hashes = [*hashes, *(self._new_hash() for _ in range(self.rng.randint(1, 6)))]
        process, chain = self.rng.choice(self.processes), _chain(hashes)
        loads = [EngineLoad(url, self.in_flight[url]) for url in self.urls]
        away = process.records.away_tokens(AWAY_TOKENS)
        found = process.prefills.estimates(chain, loads, self.timers.now, home=hashes[0], away_tokens=away)
        url = min(found, key=lambda each: found[each].cost)
        engine = process.prefills.of(url)
        sent = engine.on_sent(chain, found[url].seconds_per_token, self.timers.now)
        number = process.records.on_sent(url, chain)
        self.requests += 1
        self.in_flight[url] += 1
        self.timers.call_later(found[url].ttft, self._first_token, process, url, sent, number)
        self.timers.call_later(found[url].ttft + 4, self._answer, process, url, sent, number, hashes, turns)

    def _first_token(self, process: Process, url: str, sent: SentPrompt, number: int) -> None:
        if not process.is_dead:
            process.prefills.of(url).on_first_token(sent, self.timers.now)
            process.records.on_computed(number)

    def _answer(self, process: Process, url: str, sent: SentPrompt, number: int, hashes: list[int], turns: int) -> None:
        if url in self.in_flight:
            self.in_flight[url] -= 1
        hashes = [*hashes, self._new_hash()]
        if not process.is_dead and url in self.urls:
            engine, answered = process.prefills.of(url), _chain(hashes)
            engine.on_answered(
                sent, answered, self.timers.now, prompt_tokens=sent.prompt_tokens, completion_tokens=200,
                cached_tokens=sent.cached_tokens,
            )  # fmt: skip
            process.records.on_answered(number, sent.chain, answered, 200)
        if turns > 1:
            self.timers.call_later(self.rng.expovariate(1 / 20), self._ask, hashes, turns - 1)

    def _new_hash(self) -> int:
        return hash(("piece", next(self._hashes))) & (1 << 63) - 1

    # -- what is remembered -------------------------------------------------------------------------------------------

    def row(self) -> list[str]:
        engines = [process.prefills.of(url) for process in self.processes for url in self.urls]
        fullest = max(engine.index.size / engine.index.capacity for engine in engines)
        return [
            f"{self.timers.now / 3600:.0f}", f"{self.requests:,}", f"{sum(len(engine.index) for engine in engines):,}",
            f"{fullest:.2f}", f"{max(engine.pending for engine in engines)}",
            f"{sum(engine.remote for engine in engines)}",
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}",
        ]  # fmt: skip


COLUMNS: Final = ("hour", "requests", "entries", "fullest index", "most pending", "of other processes", "MiB at most")


def _chain(hashes: list[int]) -> PromptChain:
    return PromptChain(hashes, [PIECE * (number + 1) for number in range(len(hashes))], hashes[0])


def run(hours: float, rate: float) -> None:
    started, soak = time.monotonic(), Soak(rate)
    with patch.object(asyncio, "get_running_loop", lambda: soak.timers):
        print("| " + " | ".join(COLUMNS) + " |\n| " + " | ".join(["---"] * len(COLUMNS)) + " |")
        for hour in range(1, max(1, round(hours)) + 1):
            soak.timers.run_until(3600.0 * min(hour, hours))
            print("| " + " | ".join(soak.row()) + " |", flush=True)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="lab.routing_soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=positive, default=24.0)
    parser.add_argument("--rate", type=positive, default=3.0, help="requests a second, about")
    options = parser.parse_args()
    run(options.hours, options.rate)


if __name__ == "__main__":
    main()
