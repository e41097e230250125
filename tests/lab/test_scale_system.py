"""The simulated system: where requests go, what it counts, and that a part of it answers for the whole."""

import json
from random import Random
from typing import Any

import pytest

from lab.scale.caches import ExplicitCache
from lab.scale.costs import MEASURED, Costs, load_costs
from lab.scale.event_loop import EventLoop
from lab.scale.fan_out import Deployment, fan_out
from lab.scale.outcomes import Outcome
from lab.scale.popularity import Popularity, Prompt
from lab.scale.scenario import Answer, Assumptions, answer, most_users, size_for
from lab.scale.speeds import simulated_engine
from lab.scale.system import Size, System
from lab.scale.trace import Asked, draw_trace, simulate

FREE = Costs(*([0.0] * len(Costs._fields)))
TTL = 8.0


def small(**changes: Any) -> Size:
    size = Size(
        processes=2, engines=1, shards=1, speed=simulated_engine(0.1, 10), max_in_flight=1, max_num_seqs=8,
        queue_timeout=3.0,
    )  # fmt: skip
    return size._replace(**changes)


class Clients:
    """A system whose outcomes are kept by the number of the request."""

    def __init__(self, size: Size, costs: Costs = FREE) -> None:
        self.loop = EventLoop()
        cache = ExplicitCache(size.processes, ttl=TTL, local_entries=10)
        self.system = System(self.loop, Random(1), size, costs, cache)
        self.outcomes: dict[int, Outcome] = {}

    def ask(self, number: int, at: float, rank: int, process: int = 0) -> None:
        def on_outcome(outcome: Outcome, _: int) -> None:
            self.outcomes[number] = outcome

        def send() -> None:
            self.system.request("default", Prompt(rank, 0), 10, on_outcome, process)

        self.loop.after(at, send)


def test_a_prompt_is_generated_followed_fetched_and_then_a_local_hit() -> None:
    clients = Clients(small())
    for number, at in enumerate((0.0, 0.5, 2.0, 3.0, 20.0)):
        clients.ask(number, at, rank=1)
    clients.loop.run(30)
    assert [clients.outcomes[number].kind for number in range(5)] == ["miss", "follower", "hit", "hit", "miss"]
    assert [clients.outcomes[number].local for number in range(5)] == [False, False, False, True, False]
    assert clients.outcomes[0].first == pytest.approx(0.1, abs=0.01)
    assert clients.outcomes[0].total == pytest.approx(1.0, abs=0.01)
    assert clients.outcomes[1].total == pytest.approx(0.5, abs=0.01)


def test_a_request_waits_for_a_slot_and_is_refused_after_the_timeout() -> None:
    clients = Clients(small(queue_timeout=1.5))
    for number in range(3):
        clients.ask(number, 0.01 * number, rank=number + 1)
    clients.loop.run(30)
    assert [clients.outcomes[number].kind for number in range(3)] == ["miss", "miss", "queue_timeout"]
    assert clients.outcomes[1].first == pytest.approx(1.1, abs=0.02)
    assert clients.outcomes[2].total == pytest.approx(1.5, abs=0.02)


def test_a_follower_at_another_process_takes_over_when_its_leader_is_refused() -> None:
    clients = Clients(small(queue_timeout=0.9))
    clients.ask(0, 0.0, rank=1)
    clients.ask(1, 0.05, rank=2)  # waits behind it, and is refused at 0.95
    clients.ask(2, 0.1, rank=2, process=1)
    clients.loop.run(30)
    assert [clients.outcomes[number].kind for number in range(3)] == ["miss", "queue_timeout", "miss"]


def test_a_follower_whose_leader_is_refused_has_waited_already() -> None:
    clients = Clients(small(queue_timeout=1.5))
    for number, process in enumerate((0, 0, 1, 1)):
        clients.ask(number, 0.0, rank=number, process=process)
    clients.ask(4, 0.05, rank=4)  # is refused at 1.55
    clients.ask(5, 0.1, rank=4, process=1)
    clients.loop.run(30)
    assert [clients.outcomes[number].kind for number in (4, 5)] == ["queue_timeout", "queue_timeout"]
    assert clients.outcomes[5].total == pytest.approx(1.55, abs=0.02)


def test_requests_beyond_the_length_of_the_queue_are_refused_at_once() -> None:
    clients = Clients(small())
    for number in range(1 + 16 + 1):
        clients.ask(number, 0.0, rank=number + 1)
    clients.loop.run(0.05)
    assert clients.outcomes[17].kind == "queue_full"


def test_cpu_time_is_counted_at_the_router_and_at_redis() -> None:
    costs = FREE._replace(stream=0.02, event=0.001, redis_lookup=0.002, redis_claim=0.003, redis_store=0.005)
    clients = Clients(small(), costs)
    clients.ask(0, 0.0, rank=1)
    clients.loop.run(10)
    load = clients.system.load(10)
    assert load.process_max == pytest.approx((0.02 + 10 * 0.001) / 10)
    assert load.shard_max == pytest.approx(0.01 / 10)
    assert load.tokens_per_s == pytest.approx(1.0)


def test_each_process_pays_for_the_entries_of_all() -> None:
    costs = FREE._replace(invalidation=0.01, redis_invalidation=0.001, idle=0.002, idle_engine=0.001)
    clients = Clients(small(processes=5), costs)
    clients.ask(0, 0.0, rank=1)
    clients.loop.run(1.5)  # it was stored after a second, and counts from the second one on
    clients.loop.run(2.5)
    load = clients.system.load(2.5)
    assert load.process_background == pytest.approx(0.002 + 0.001 + 0.01)
    assert load.shard_background == pytest.approx(5 * 0.001)


def test_a_seed_determines_a_run() -> None:
    asked = Asked(20.0, 20.0, Popularity(50, 1.0, 1e9), repeatable=0.7, low=5, high=20)
    runs = [
        simulate(draw_trace(asked, 2, seed), small(), FREE, seconds=20, ttl=TTL, local_entries=10, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_idle_routers_cost_what_the_formulas_say() -> None:
    result = fan_out(Deployment(processes=100, engines=40, launchers=5, shards=3), writes=1000)
    assert result.probes_per_engine == 100
    assert result.probes == 4000
    assert result.pings == pytest.approx(1000)
    assert result.notified_reads == 100
    assert result.announcement_bytes == pytest.approx(50 * 40 * 400 + 100 * 80)
    assert result.redis_connections == 600
    assert result.pushes == 100_000


def quick(reduction: int) -> Answer:
    assumptions = Assumptions(users=20_000)
    size = size_for(assumptions, load_costs())._replace(processes=6, engines=9)
    return answer(assumptions, size, load_costs(), reduction=reduction, seconds=8)


def test_a_part_of_a_system_gives_the_answer_of_the_whole() -> None:
    whole, part = quick(1), quick(3)
    assert part.full_rate == pytest.approx(whole.full_rate, rel=0.1)
    assert part.summary.hit == pytest.approx(whole.summary.hit, abs=0.04)
    assert part.load.shard_mean == pytest.approx(whole.load.shard_mean, rel=0.15)
    assert part.load.engine_running_mean == pytest.approx(whole.load.engine_running_mean, rel=0.15)
    assert part.summary.miss_first_mean == pytest.approx(whole.summary.miss_first_mean, rel=0.1)


def test_no_number_of_processes_serves_more_users_than_one_redis_can_notify() -> None:
    costs = load_costs()
    most = most_users(Assumptions(), costs)
    assert size_for(Assumptions(users=int(most * 0.9)), costs).processes > 1
    with pytest.raises(ValueError, match="each router process would spend"):
        size_for(Assumptions(users=int(most * 1.1)), costs)


def test_the_committed_costs_say_when_and_where_they_were_measured() -> None:
    measured = json.loads(MEASURED.read_text())
    assert measured["measured"] >= "2026-11-23"
    assert measured["machine"]
    assert min(load_costs()) >= 0
