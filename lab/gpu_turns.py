"""Three models on one GPU: how often engines take turns, and how long requests wait, by rule.

    python -m lab.gpu_turns                              a day of conversations
    python -m lab.gpu_turns --trace FILE --stretch 10    a recorded trace (Mooncake's format), ten times slower

A request is served at once while its engine is awake and has a slot. A switch begins when the engine that is awake has
no request in flight, and takes `--switch` seconds. The rules:

- turns: router.core.resilience.gpu_turns, with its defaults.
- patient: the same, but an engine without requests keeps its turn until it was idle for as long as a switch takes.
- first come: requests are served in the order of their arrival, as by a proxy that has one engine at a time. A request
  for another engine waits until those before it have ended, and so does everything behind it.
"""

import argparse
import gzip
import heapq
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from router.core.resilience.gpu_turns import GroupMember, TurnRules, next_turn

MODELS: Final = ("chat", "code", "mistral")
SHARES: Final = (0.6, 0.3, 0.1)
SLOTS: Final = 32
DAY: Final = 86400.0

_TURNS: Final = 5.0  # of a conversation, on average
_THINKING: Final = 40.0  # seconds between an answer and the next question, on average
_ANSWER: Final = (6.0, 0.8)  # seconds: median and sigma of a log-normal distribution
_TOKENS_PER_SECOND: Final = 50.0  # of a recorded answer


class Arrival(NamedTuple):
    """`seconds` that its engine needs for it."""

    at: float
    model: str
    seconds: float


class Outcome(NamedTuple):
    """Waits in seconds, by model. `lost`: the seconds in which no engine was awake."""

    switches: int
    lost: float
    waits: dict[str, list[float]]


def conversations(seconds: float, per_hour: float, random: Random) -> list[Arrival]:
    """Conversations that begin at random, at noon nine times as many as at midnight."""
    arrivals: list[Arrival] = []
    at = 0.0
    while True:
        at += random.expovariate(per_hour / 3600)
        if at >= seconds:
            return sorted(arrivals)
        if random.random() > 0.55 - 0.44 * math.cos(2 * math.pi * at / DAY):
            continue
        (model,) = random.choices(MODELS, SHARES)
        asked = at
        while True:
            took = random.lognormvariate(math.log(_ANSWER[0]), _ANSWER[1])
            arrivals.append(Arrival(asked, model, took))
            if random.random() < 1 / _TURNS:
                break
            asked += took + random.expovariate(1 / _THINKING)


def recorded(path: Path, stretch: float) -> list[Arrival]:
    """Requests with the same first block belong to one model."""
    arrivals = []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            request = json.loads(line)
            first = Random(f"{request['hash_ids'][:2]}")
            (model,) = first.choices(MODELS, SHARES)
            seconds = request["output_length"] / _TOKENS_PER_SECOND
            arrivals.append(Arrival(stretch * request["timestamp"] / 1000, model, seconds))
    return sorted(arrivals)


class Gpu:
    """One engine is awake at a time. Instants in seconds."""

    def __init__(self, switch: float) -> None:
        self.now = 0.0
        self.switch = switch
        self.awake: str | None = MODELS[0]
        self.awake_since = 0.0
        self.closed = False
        self.in_flight = dict.fromkeys(MODELS, 0)
        self.used_at = dict.fromkeys(MODELS, 0.0)
        self.waits: dict[str, list[float]] = {model: [] for model in MODELS}
        self.switches = 0
        self.lost = 0.0
        self._coming: str | None = None
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, instant: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (instant, next(self._numbers), what))

    def events(self) -> Iterator[Callable[[], None]]:
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            yield what

    def can_serve(self, model: str) -> bool:
        return self.awake == model and not self.closed and self.in_flight[model] < SLOTS

    def serve(self, arrival: Arrival) -> None:
        self.waits[arrival.model].append(self.now - arrival.at)
        self.in_flight[arrival.model] += 1
        self.used_at[arrival.model] = self.now

        def end() -> None:
            self.in_flight[arrival.model] -= 1
            self.used_at[arrival.model] = self.now
            self._switch_if_idle()

        self.at(self.now + arrival.seconds, end)

    def turn_to(self, model: str) -> None:
        """The engine that is awake gets no more requests, ends those that it has, and sleeps."""
        self.closed, self._coming = True, model
        self._switch_if_idle()

    def _switch_if_idle(self) -> None:
        if self._coming is None or self.awake is None or self.in_flight[self.awake]:
            return
        coming, self._coming, self.awake = self._coming, None, None
        self.switches += 1
        self.lost += self.switch

        def wake() -> None:
            self.awake, self.awake_since, self.closed = coming, self.now, False
            self.used_at[coming] = self.now

        self.at(self.now + self.switch, wake)


def by_turns(arrivals: Sequence[Arrival], rules: TurnRules, switch: float, patience: float = 0.0) -> Outcome:
    gpu, waiting = Gpu(switch), {model: deque[Arrival]() for model in MODELS}

    def member(model: str) -> GroupMember:
        return GroupMember(
            model, 1.0, gpu.awake_since if gpu.awake == model else None, gpu.in_flight[model],
            used_at=gpu.used_at[model], asked_at=waiting[model][0].at if waiting[model] else None,
        )  # fmt: skip

    def is_patient() -> bool:
        assert gpu.awake is not None
        return gpu.now - gpu.used_at[gpu.awake] < patience and not gpu.in_flight[gpu.awake]

    def look() -> None:
        for model, queue in waiting.items():
            while queue and gpu.can_serve(model):
                gpu.serve(queue.popleft())
        if gpu.awake is not None and not gpu.closed and not is_patient():
            turn = next_turn([member(model) for model in MODELS], rules, gpu.now)
            if turn is not None:
                gpu.turn_to(turn.wakes)

    return _run(gpu, arrivals, lambda arrival: waiting[arrival.model].append(arrival), look)


def by_arrival(arrivals: Sequence[Arrival], switch: float) -> Outcome:
    gpu, waiting = Gpu(switch), deque[Arrival]()

    def look() -> None:
        while waiting and gpu.can_serve(waiting[0].model):
            gpu.serve(waiting.popleft())
        if waiting and gpu.awake not in (None, waiting[0].model) and not gpu.closed:
            gpu.turn_to(waiting[0].model)

    return _run(gpu, arrivals, waiting.append, look)


def _run(gpu: Gpu, arrivals: Sequence[Arrival], arrive: Callable[[Arrival], None], look: Callable[[], None]) -> Outcome:
    left = deque(arrivals)

    def next_arrival() -> None:
        arrive(left.popleft())
        if left:
            gpu.at(left[0].at, next_arrival)

    def tick() -> None:  # as a router does, which looks when something happens, and each second
        if left or any(gpu.in_flight.values()) or sum(map(len, gpu.waits.values())) < len(arrivals):
            gpu.at(gpu.now + 1.0, tick)

    gpu.at(left[0].at, next_arrival)
    gpu.at(0.0, tick)
    for what in gpu.events():
        what()
        look()
    return Outcome(gpu.switches, gpu.lost, gpu.waits)


def _row(name: str, outcome: Outcome, seconds: float) -> dict[str, Any]:
    waits = sorted(wait for each in outcome.waits.values() for wait in each)
    return {
        "rule": name,
        "requests": len(waits),
        "switches": outcome.switches,
        "lost": round(100 * outcome.lost / seconds, 1),
        "mean": round(sum(waits) / len(waits), 2),
        "at_once": round(100 * sum(wait < 0.01 for wait in waits) / len(waits), 1),
        "p95": round(waits[int(0.95 * len(waits))], 1),
        "longest": round(waits[-1], 1),
        "longest_by_model": {model: round(max(each, default=0.0), 1) for model, each in outcome.waits.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, help="JSONL, maybe .gz")
    parser.add_argument("--stretch", type=float, default=10.0, help="how much slower the trace is played")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--per-hour", type=float, default=60.0, help="conversations that begin in an hour at noon")
    parser.add_argument("--switch", type=float, default=3.0, help="seconds of a switch")
    parser.add_argument("--min-awake", type=float, default=30.0)
    parser.add_argument("--max-wait", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    if options.trace is None:
        arrivals = conversations(3600 * options.hours, options.per_hour, Random(options.seed))
    else:
        arrivals = recorded(options.trace, options.stretch)
    seconds = arrivals[-1].at
    switch = options.switch
    turns = TurnRules(1.0, options.min_awake, options.max_wait)
    rows = [
        _row("turns", by_turns(arrivals, turns, switch), seconds),
        _row("patient", by_turns(arrivals, turns, switch, patience=switch), seconds),
        _row("first come", by_arrival(arrivals, switch), seconds),
    ]
    print("| rule | requests | switches | % of time lost | mean wait, s | % at once | p95, s | longest, s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        cells = [row[name] for name in ("rule", "requests", "switches", "lost", "mean", "at_once", "p95", "longest")]
        print("| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
