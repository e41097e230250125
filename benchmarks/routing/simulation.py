"""A load on modelled replicas in virtual time, as a sequence of discrete events."""

import heapq
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from benchmarks.routing.model import Replica
from benchmarks.routing.model import Sequence as ReplicaSequence
from benchmarks.routing.text import TOKEN_BYTES, render, token_blocks
from benchmarks.routing.workloads import Ask, Change, Fork, Script, Think, Workload

SAMPLE_INTERVAL: Final = 0.25
PAUSE_AFTER_FAILURE: Final = 1.0


@dataclass(slots=True, eq=False)
class Request:
    """Times are virtual seconds. `replica`: its index, once it has arrived there."""

    number: int
    ask: Ask
    sequence: ReplicaSequence
    sent: float
    replica: int | None = None
    first: float | None = None
    done: float | None = None
    failed: bool = False

    @classmethod
    def of(cls, ask: Ask, number: int, sent: float) -> "Request":
        prompt = render(ask.messages)
        answer = ask.answer.encode()
        hashes = token_blocks(prompt + answer)
        sequence = ReplicaSequence(
            hashes, len(prompt) // TOKEN_BYTES, len(answer) // TOKEN_BYTES, yields=ask.tokens_per_step
        )
        return cls(number, ask, sequence, sent)


class Policy(Protocol):
    """Chooses a replica for each request.

    - `arrivals` are the requests that have reached a replica since the last call, with its index; None: it failed.
    - `first_token` and `finished` return when the client has what the replica generated.
    - `wait_until` may delay the simulation until it is that time.
    """

    name: str

    async def start(self, replicas: Sequence[Replica]) -> None: ...
    async def stop(self) -> None: ...
    async def wait_until(self, now: float) -> None: ...
    async def send(self, request: Request) -> None: ...
    def arrivals(self) -> list[tuple[Request, int | None]]: ...
    async def first_token(self, request: Request) -> None: ...
    async def finished(self, request: Request) -> None: ...
    async def replicas_changed(self) -> None: ...


@dataclass(frozen=True)
class Sample:
    """Requests in flight at each replica that is present."""

    at: float
    in_flight: list[int]


@dataclass(slots=True, eq=False)
class _Thread:
    """A script that is executed; its parent continues when all `open_branches` have ended."""

    script: Script
    parent: "_Thread | None" = None
    open_branches: int = 0


@dataclass
class Run:
    """What happened."""

    policy: str
    workload: str
    changes: Sequence[Change]
    requests: list[Request] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    preemptions: int = 0


class Simulation:
    def __init__(self, workload: Workload, policy: Policy, slow: dict[int, float] | None = None) -> None:
        """`slow`: by index, how many times as long the steps of a replica take."""
        factors = slow or {}
        drafts = workload.drafts or [""] * workload.replicas
        self.replicas = [
            Replica(workload.speeds.slower(factors.get(index, 1.0)), draft) for index, draft in enumerate(drafts)
        ]
        for index in workload.absent:
            self.replicas[index].is_present = False
        self._workload, self._policy = workload, policy
        self._run = Run(policy.name, workload.name, workload.changes)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], Awaitable[None]]]] = []
        self._order = itertools.count()  # of events at the same time
        self._threads: dict[Request, _Thread] = {}
        self._by_sequence: dict[ReplicaSequence, Request] = {}

    async def run(self) -> Run:
        for change in self._workload.changes:
            self._at(change.at, partial(self._change, change))
        for client in self._workload.clients:
            self._at(client.start, partial(self._continue, _Thread(client.script)))
        self._at(0.0, self._sample)
        try:
            await self._policy.start(self.replicas)
            while self._events:
                self._now, _, action = heapq.heappop(self._events)
                await self._policy.wait_until(self._now)
                await action()
                for request, index in self._policy.arrivals():
                    self._arrived(request, index)
        finally:
            await self._policy.stop()
        self._run.preemptions = sum(replica.preemptions for replica in self.replicas)
        return self._run

    def _at(self, time: float, action: Callable[[], Awaitable[None]]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    async def _sample(self) -> None:
        present = [replica.in_flight for replica in self.replicas if replica.is_present]
        self._run.samples.append(Sample(self._now, present))
        # Requests that the router holds back have no event of their own.
        if self._events or self._threads:
            self._at(self._now + SAMPLE_INTERVAL, self._sample)

    async def _change(self, change: Change) -> None:
        replica = self.replicas[change.replica]
        replica.is_present = change.is_added
        if change.is_added:
            replica.restart()
        await self._policy.replicas_changed()

    # -- clients ------------------------------------------------------------------------------------------------------

    async def _continue(self, thread: _Thread) -> None:
        match next(thread.script, None):
            case Ask() as ask:
                request = Request.of(ask, len(self._run.requests) + 1, self._now)
                self._run.requests.append(request)
                self._threads[request] = thread
                await self._policy.send(request)
            case Think(seconds):
                self._at(self._now + seconds, partial(self._continue, thread))
            case Fork(branches):
                thread.open_branches = len(branches)
                for script in branches:
                    self._at(self._now, partial(self._continue, _Thread(script, thread)))
            case None if thread.parent is not None:
                thread.parent.open_branches -= 1
                if not thread.parent.open_branches:
                    await self._continue(thread.parent)

    def _arrived(self, request: Request, index: int | None) -> None:
        if index is None:
            request.failed = True
            self._at(self._now + PAUSE_AFTER_FAILURE, partial(self._continue, self._threads.pop(request)))
            return
        request.replica = index
        self._by_sequence[request.sequence] = request
        replica = self.replicas[index]
        replica.submit(request.sequence)
        if replica.step_end is None:
            self._start_step(replica)

    # -- replicas -----------------------------------------------------------------------------------------------------

    def _start_step(self, replica: Replica) -> None:
        if replica.start_step(self._now):
            assert replica.step_end is not None
            self._at(replica.step_end, partial(self._end_step, replica))

    async def _end_step(self, replica: Replica) -> None:
        result = replica.end_step()
        self._start_step(replica)
        for sequence in result.first:
            request = self._by_sequence[sequence]
            request.first = self._now
            await self._policy.first_token(request)
        for sequence in result.done:
            request = self._by_sequence.pop(sequence)
            request.done = self._now
            await self._policy.finished(request)
            self._at(self._now, partial(self._continue, self._threads.pop(request)))
