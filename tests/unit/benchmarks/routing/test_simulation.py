"""Simulations of benchmarks/routing with the references: which replica they choose, and the figures of a run."""

from random import Random

import pytest

from benchmarks.routing.model import Replica, Speeds
from benchmarks.routing.references import REFERENCES, Inflow, Oracle, RoundRobin
from benchmarks.routing.report import Figures, change_table, figures, imbalance, table
from benchmarks.routing.simulation import Request, Run, Sample, Simulation
from benchmarks.routing.text import words
from benchmarks.routing.workloads import Ask, Change, Client, Fork, Script, Think, Workload, chats, single

SMALL = Speeds(blocks=1024)


def ask(prompt: int, *, seed: int = 1, answer: int = 8) -> Ask:
    return Ask([{"role": "user", "content": words(Random(seed), prompt)}], words(Random(seed), answer))


def workload(*clients: Client, changes: tuple[Change, ...] = (), absent: frozenset[int] = frozenset()) -> Workload:
    return Workload("small", list(clients), replicas=2, changes=changes, absent=absent, speeds=SMALL)


async def test_the_oracle_takes_the_replica_that_holds_the_prefix() -> None:
    clients = [Client(float(n), single(ask(400, seed=n % 3).messages, "yes ")) for n in range(9)]
    run = await Simulation(workload(*clients), Oracle()).run()
    for number in range(3):
        assert len({request.replica for request in run.requests[number::3]}) == 1
    assert all(request.sequence.cached for request in run.requests[3:])


async def test_the_oracle_leaves_a_prefix_whose_replica_has_a_longer_queue_than_it_saves() -> None:
    oracle, replicas = Oracle(), [Replica(SMALL), Replica(SMALL)]
    await oracle.start(replicas)
    replicas[0].submit(Request.of(ask(400), 1, 0.0).sequence)
    replicas[0].submit(Request.of(ask(6000, seed=2), 2, 0.0).sequence)
    assert oracle.choose(Request.of(ask(400), 3, 0.0), [0, 1]) == 1


async def test_the_oracle_spreads_what_is_new() -> None:
    clients = [Client(float(n), single(ask(400, seed=n).messages, "yes ")) for n in range(10)]
    run = await Simulation(workload(*clients), Oracle()).run()
    assert sum(request.replica == 0 for request in run.requests) == 5


def test_an_inflow_fades() -> None:
    inflow = Inflow()
    inflow.add(100, 0.0)
    inflow.add(100, 30.0)
    assert inflow.at(30.0) == pytest.approx(136.8, abs=0.1)
    assert inflow.at(300.0) < 1


@pytest.mark.parametrize("name", REFERENCES)
async def test_a_run_can_be_repeated(name: str) -> None:
    async def run() -> Figures:
        load = Workload("few", chats(1, 3, conversations=4, turns=3), speeds=SMALL)
        return figures(await Simulation(load, REFERENCES[name]()).run(), 1)

    assert await run() == await run()


async def test_an_agent_waits_for_all_its_sub_agents() -> None:
    def script() -> Script:
        yield Fork([single(ask(10, answer=5).messages, "yes "), single(ask(10).messages, words(Random(1), 50))])
        yield ask(20)

    run = await Simulation(workload(Client(0.0, script())), RoundRobin()).run()
    first, second, last = run.requests
    assert first.done is not None
    assert second.done is not None
    assert last.sent == max(first.done, second.done)


async def test_a_replica_that_is_away_gets_no_requests() -> None:
    def script() -> Script:
        for _ in range(12):
            yield ask(10)
            yield Think(1.0)

    changes = (Change(3.5, 1, is_added=True), Change(6.5, 0, is_added=False))
    run = await Simulation(workload(Client(0.0, script()), changes=changes, absent=frozenset({1})), RoundRobin()).run()
    assert {request.replica for request in run.requests if request.sent < 3.5} == {0}
    assert {request.replica for request in run.requests if request.sent > 6.5} == {1}


async def test_a_replica_that_comes_back_is_empty() -> None:
    clients = [Client(float(at), single(ask(400).messages, "yes ")) for at in (0, 1, 4, 5, 7, 8)]
    leaves = (Change(3, 1, is_added=True), Change(3, 0, is_added=False))
    comes_back = (Change(6, 0, is_added=True), Change(6, 1, is_added=False))
    load = workload(*clients, changes=(*leaves, *comes_back), absent=frozenset({1}))
    run = await Simulation(load, RoundRobin()).run()
    assert [request.replica for request in run.requests] == [0, 0, 1, 1, 0, 0]
    assert [bool(request.sequence.cached) for request in run.requests] == [False, True] * 3


class Refusing(RoundRobin):
    def arrivals(self) -> list[tuple[Request, int | None]]:
        return [(request, None) for request, _ in super().arrivals()]


async def test_a_client_whose_request_fails_continues() -> None:
    def script() -> Script:
        yield ask(10)
        yield ask(20)

    result = figures(await Simulation(workload(Client(0.0, script())), Refusing()).run(), 1)
    assert (result.requests, result.failed, result.hit_share) == (2, 2, 0.0)


class HoldingBack(RoundRobin):
    """Each request arrives two seconds after it was sent."""

    async def wait_until(self, now: float) -> None:
        self.now = now

    def arrivals(self) -> list[tuple[Request, int | None]]:
        due = [each for each in self._arrivals if each[0].sent + 2.0 <= self.now]
        self._arrivals = [each for each in self._arrivals if each not in due]
        return due


async def test_time_passes_while_the_router_holds_a_request_back() -> None:
    run = await Simulation(workload(Client(1.0, single(ask(10).messages, "yes "))), HoldingBack()).run()
    (request,) = run.requests
    assert request.first is not None
    assert request.first - request.sent == pytest.approx(2.0, abs=0.3)


def test_the_imbalance_is_the_largest_share_of_a_loaded_system() -> None:
    assert imbalance([Sample(0.0, [0, 1]), Sample(1.0, [2, 6]), Sample(2.0, [4, 4])]) == pytest.approx(1.25)


def result_of(seed: int, first: float, cached: int, *, policy: str = "router") -> Figures:
    request = Request.of(ask(93), seed, 0.0)  # 100 tokens with those of the template
    request.first, request.done, request.sequence.cached = first, 2.0, cached
    return figures(Run(policy, "small", (Change(1.0, 0, is_added=False),), [request]), seed)


def test_the_table_has_medians_over_the_seeds() -> None:
    lines = table(
        [result_of(1, 0.1, 25), result_of(2, 0.3, 50), result_of(3, 0.2, 75), result_of(1, 9.0, 0, policy="b")]
    )
    assert lines.splitlines()[2] == "| small | router | 50.0 | 200 | 200 | 200 | 200 | 2000 | 4 | 1.00 | 0 | 0 |"
    assert len(lines.splitlines()) == 4


def test_the_second_table_has_the_hits_around_each_change() -> None:
    assert change_table([result_of(1, 0.1, 50)]).splitlines()[2] == (
        "| small | router | remove replica 1 at 1 s | 50.0 | 0.0 | 0.0 |"
    )
