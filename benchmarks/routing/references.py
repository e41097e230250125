"""Choices that are computed in the simulation itself, to compare a router with."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.routing.model import Replica
from benchmarks.routing.model import Sequence as ReplicaSequence
from benchmarks.routing.simulation import Request


class Reference:
    """Sees the replicas themselves, at once, and takes no time."""

    name: str

    def __init__(self) -> None:
        self._arrivals: list[tuple[Request, int | None]] = []

    def choose(self, request: Request, present: list[int]) -> int:
        """`present`: the indexes of the replicas that can be chosen."""
        raise NotImplementedError

    async def start(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas

    async def stop(self) -> None:
        pass

    async def wait_until(self, now: float) -> None:
        pass

    async def send(self, request: Request) -> None:
        present = [index for index, replica in enumerate(self.replicas) if replica.is_present]
        self._arrivals.append((request, self.choose(request, present)))

    def arrivals(self) -> list[tuple[Request, int | None]]:
        arrived, self._arrivals = self._arrivals, []
        return arrived

    async def first_token(self, request: Request) -> None:
        pass

    async def finished(self, request: Request) -> None:
        pass

    async def replicas_changed(self) -> None:
        pass


class Random(Reference):
    name = "random"

    def __init__(self) -> None:
        super().__init__()
        self._rng = random.Random(1)

    def choose(self, request: Request, present: list[int]) -> int:
        return self._rng.choice(present)


class RoundRobin(Reference):
    name = "round robin"

    def choose(self, request: Request, present: list[int]) -> int:
        return present[request.number % len(present)]


class LeastInFlight(Reference):
    name = "least in flight"

    def choose(self, request: Request, present: list[int]) -> int:
        least = min(self.replicas[index].in_flight for index in present)
        equal = [index for index in present if self.replicas[index].in_flight == least]
        return equal[request.number % len(equal)]


class BestDraft(Reference):
    """Takes the draft that yields the most for a request, and of its replicas the one with the least in flight."""

    name = "best draft"

    def choose(self, request: Request, present: list[int]) -> int:
        return min(present, key=lambda index: (
            -request.sequence.yields.get(self.replicas[index].draft, 1.0), self.replicas[index].in_flight,
        ))  # fmt: skip


class Oracle(Reference):
    """Knows the blocks, the queue and the draft of every replica, and takes the least cost.

    The cost is the time to the first token, and in addition, in tokens that are computed:

    - `SPREAD` times the new tokens of the request, times how far the replica's inflow is above the mean (0.5: by half).
      Replicas with equal inflow keep blocks equally long, so that their pools together evict as one pool would.
    - `SEAT` for each request in flight, each of which makes the steps of all others longer.

    Where drafts differ, also the time of the answer, and that for which the prompt delays the others there.
    """

    name = "oracle"
    SPREAD: Final = 2.0
    SEAT: Final = 4.0

    async def start(self, replicas: Sequence[Replica]) -> None:
        await super().start(replicas)
        self._inflow = [Inflow() for _ in replicas]

    def choose(self, request: Request, present: list[int]) -> int:
        now, prompt = request.sent, request.sequence.prompt
        uncached = {i: prompt - self.replicas[i].expected_hits(request.sequence.hashes, prompt) for i in present}
        inflow = {index: self._inflow[index].at(now) for index in present}
        mean = sum(inflow.values()) / len(present)
        differ = len({self.replicas[index].draft for index in present}) > 1

        def cost(index: int) -> float:
            replica = self.replicas[index]
            excess = inflow[index] / mean - 1 if mean else 0.0
            tokens = self.SPREAD * uncached[index] * excess + self.SEAT * replica.in_flight
            seconds = replica.seconds_to_first_token(uncached[index], now) + tokens * replica.speeds.prefill
            if not differ:
                return seconds
            delay = uncached[index] * replica.speeds.prefill * replica.in_flight
            return seconds + _answer_seconds(request.sequence, replica) + delay

        chosen = min(present, key=cost)
        self._inflow[chosen].add(uncached[chosen], now)
        return chosen

    async def finished(self, request: Request) -> None:
        assert request.replica is not None
        assert request.done is not None
        self._inflow[request.replica].add(request.sequence.answer, request.done)


def _answer_seconds(sequence: ReplicaSequence, replica: Replica) -> float:
    steps = sequence.answer / sequence.yields.get(replica.draft, 1.0)
    return steps * (replica.speeds.base + replica.speeds.decode * replica.in_flight)


class Inflow:
    """New tokens that a replica has had to store, which fade over `FADING` seconds."""

    FADING: Final = 30.0

    def __init__(self) -> None:
        self._tokens, self._at = 0.0, 0.0

    def at(self, now: float) -> float:
        return self._tokens * math.exp((self._at - now) / self.FADING)

    def add(self, tokens: float, now: float) -> None:
        self._tokens, self._at = self.at(now) + tokens, now


REFERENCES: Final[dict[str, Callable[[], Reference]]] = {
    "random": Random,
    "round-robin": RoundRobin,
    "least-in-flight": LeastInFlight,
    "best-draft": BestDraft,
    "oracle": Oracle,
}
