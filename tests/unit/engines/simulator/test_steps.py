"""The time model of the simulator, on a virtual clock."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from engines.simulator.control.faults import FaultPlan
from engines.simulator.engine.core import EngineCore
from engines.simulator.engine.scheduler import Scheduler, Sequence
from engines.simulator.engine.steps import Step, plan_step
from engines.simulator.kv_cache.block_pool import BlockPool
from engines.simulator.kv_cache.kv_events import BlockOrigin
from engines.simulator.settings import SimulatorSettings
from engines.simulator.validation.requests import completion_request
from tests.simulation.clock import virtual_time
from tests.simulation.loop import new_loop

Times = list[float]
Client = Callable[[EngineCore], Coroutine[Any, Any, Times]]


def prompt(length: int, first: int = 0) -> list[int]:
    """Token ids; those with another first one share no block."""
    return [first, *range(1, length)]


def client(tokens: list[int], answer: int = 1, *, at: float = 0.0, leaves: int | None = None, **plan: Any) -> Client:
    """A client that asks at this time; it gets the times of its tokens. `leaves`: after so many of them."""

    async def run(engine: EngineCore) -> Times:
        await asyncio.sleep(at)
        body = {"prompt": tokens, "max_tokens": answer, "ignore_eos": True}
        times: Times = []
        async with aclosing(engine.generate(completion_request(body, engine.settings), FaultPlan(**plan))) as deltas:
            async for _ in deltas:
                times.append(engine.clock())
                if len(times) == leaves:
                    break
        return times

    return run


def watch(what: Callable[[EngineCore], float], *instants: float) -> Client:
    """What it sees at these instants."""

    async def run(engine: EngineCore) -> Times:
        seen = []
        for instant in instants:
            await asyncio.sleep(instant - engine.clock())
            seen.append(what(engine))
        return seen

    return run


def play(*clients: Client, **settings: Any) -> list[Times]:
    """What each client got, to a millionth of a second. The default speed: 1,000 tokens of prompts a second."""
    with virtual_time(0):
        loop = new_loop(Random(0))
        options: dict[str, Any] = {"prefill_tokens_per_second": 1000, **settings}
        engine = EngineCore(SimulatorSettings(model="m", **options), loop.time)
        tasks = [loop.spawn(loop.world, run(engine)) for run in clients]
        loop.run(1000.0)
        assert not loop.defects
        assert (engine.scheduler.running, engine.scheduler.waiting, engine.scheduler.kv_usage) == (0, 0, 0)
        return [[round(time, 6) for time in task.result()] for task in tasks]


def test_the_first_token_comes_when_the_prompt_is_computed() -> None:
    assert play(client(prompt(500))) == [[0.5]]


def test_a_prefix_that_is_cached_is_not_computed_again() -> None:
    # 496 of the 500 tokens are full blocks.
    assert play(client(prompt(500)), client([*prompt(500), *range(100)], at=10)) == [[0.5], [10.104]]


def test_prompts_are_computed_in_the_order_of_their_arrival() -> None:
    assert play(client(prompt(500)), client(prompt(300, 7), at=0.1)) == [[0.5], [0.8]]


def test_a_prefix_that_an_earlier_prompt_will_have_computed_is_not_computed_again() -> None:
    assert play(client(prompt(500)), client([*prompt(496), *range(50)], at=0.1)) == [[0.5], [0.55]]


def test_the_time_between_tokens_grows_with_the_sequences() -> None:
    speed = {"decode": 0.001, "tokens_per_second": 100}
    assert play(client(prompt(10), 4), **speed) == [[0.02, 0.031, 0.042, 0.053]]
    # The second step decodes the first sequence and computes the second prompt; the next ones decode two.
    first, second = play(client(prompt(10), 4), client(prompt(10, 1), 4), **speed)
    assert first == [0.02, 0.041, 0.053, 0.065]
    assert second == [0.041, 0.053, 0.065, 0.076]


def test_a_prompt_delays_the_tokens_of_others_by_the_budget_of_a_step_at_most() -> None:
    speaking = client(prompt(10), 4)
    reading = client(prompt(500, 1), at=0.001)
    assert play(speaking, reading) == [[0.01, 0.51, 0.51, 0.51], [0.51]]
    # One token of each step is that of the sequence that decodes.
    chunked = play(speaking, reading, max_num_batched_tokens=101, max_num_seqs=8)
    assert chunked == [[0.01, 0.11, 0.21, 0.31], [0.51]]


def test_a_prompt_that_has_to_wait_for_a_step_is_waiting_and_then_running() -> None:
    counts = watch(lambda engine: 10 * engine.scheduler.running + engine.scheduler.waiting, 0.2, 0.6, 0.9)
    assert play(client(prompt(500)), client(prompt(300, 7), at=0.1), counts)[2] == [11, 10, 0]


def test_the_kv_usage_grows_with_each_chunk_of_a_prompt() -> None:
    usage = watch(lambda engine: round(engine.scheduler.kv_usage * 100), 0.05, 0.15, 0.2, 0.4)
    settings = {"kv_blocks": 101, "max_num_batched_tokens": 160, "max_num_seqs": 8}
    assert play(client(prompt(480), 200), usage, **settings)[1] == [10, 10, 20, 30]


def test_the_metrics_have_the_times_of_the_model() -> None:
    def total(name: str) -> Client:
        return watch(lambda engine: round(engine.counters.histograms[name].sum, 6), 20.0)

    names = ("time_to_first_token_seconds", "request_queue_time_seconds", "request_prefill_time_seconds")
    clients = client(prompt(500), at=1), client(prompt(300, 7), at=1.1), client(prompt(500), at=10)
    # 0.5, 0.7 and the 4 tokens that are not cached; the second waited for 0.4.
    assert play(*clients, *map(total, names))[3:] == [[1.204], [0.4], [0.804]]
    hits = watch(lambda engine: engine.scheduler.counts.prefix_hits, 20.0)
    assert play(*clients, hits)[3] == [496]


def test_a_request_that_does_not_take_its_tokens_delays_nobody() -> None:
    async def stalls(engine: EngineCore) -> Times:
        request = completion_request({"prompt": prompt(10, 5), "ignore_eos": True}, engine.settings)
        async with aclosing(engine.generate(request, FaultPlan())) as deltas:
            await anext(deltas)
            await asyncio.sleep(500)
            await anext(deltas)
            return [engine.clock()]

    other = client(prompt(10), 3, at=1)
    assert play(stalls, other, decode=0.001) == [[500.011], [1.01, 1.011, 1.012]]


def test_a_client_that_leaves_makes_room_for_the_next_one() -> None:
    leaving, next_one = client(prompt(100), 50, leaves=2), client(prompt(100, 1), at=0.001)
    assert play(leaving, next_one, decode=0.01, max_num_seqs=1) == [[0.1, 0.11], [0.22]]


def test_a_client_that_leaves_while_its_prompt_is_computed_costs_no_further_step() -> None:
    async def leaves(engine: EngineCore) -> Times:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client(prompt(500), 5)(engine), 0.15)
        return []

    settings = {"max_num_batched_tokens": 100, "max_num_seqs": 8}
    assert play(leaves, client(prompt(100, 1), at=0.1), **settings)[1] == [0.3]


def test_a_preempted_sequence_is_computed_again() -> None:
    # 7 blocks: both prompts take 3, and the first one to grow by two blocks preempts the other.
    first, second = play(
        client(prompt(47), 20), client(prompt(47, 1), 20), decode=0.001, kv_blocks=8, max_model_len=100
    )
    assert len(first) == len(second) == 20
    assert max(_gaps(first)[1:]) < 0.01
    assert second[-1] > first[-1]


def test_faults_delay_one_request_and_not_the_engine() -> None:
    late, slow, other = play(
        client(prompt(10), ttft=2.0),
        client(prompt(10, 1), 3, rate=1.0),
        client(prompt(10, 2), 3, at=0.1),
    )
    assert late == [2.01]
    assert slow == [0.01, 1.0, 2.01]
    assert other == [0.11] * 3


def test_choices_share_the_prompt_and_the_steps() -> None:
    async def two(engine: EngineCore) -> Times:
        body = {"prompt": prompt(500), "max_tokens": 3, "n": 2, "ignore_eos": True}
        async with aclosing(engine.generate(completion_request(body, engine.settings), FaultPlan())) as deltas:
            return [engine.clock() + delta.index / 1000 async for delta in deltas]

    assert play(two, decode=0.01) == [[0.504, 0.505, 0.524, 0.525, 0.544, 0.545]]
    # They take part in each step beside another request.
    both, _ = play(two, client(prompt(10, 1), 50, at=0.001), decode=0.01)
    assert both == [0.504, 0.505, 0.534, 0.535, 0.564, 0.565]


def test_jitter_is_the_same_in_every_run() -> None:
    clients = client(prompt(10), 10), client(prompt(10, 1), 10, at=0.005)
    speed = {"decode": 0.01, "tokens_per_second": 100, "jitter": 0.5}
    varied = play(*clients, **speed)
    assert varied == play(*clients, **speed)
    assert varied != play(*clients, **{**speed, "seed": 1})
    assert len(set(_gaps(varied[0]))) > 5


def test_without_a_speed_requests_do_not_wait_for_each_other() -> None:
    clients = [client(prompt(500, first), 3) for first in range(50)]
    assert play(*clients, prefill_tokens_per_second=0, ttft=0.2, tokens_per_second=10) == [[0.2, 0.3, 0.4]] * 50


def test_a_step_has_no_more_tokens_than_its_budget() -> None:
    scheduler = Scheduler(BlockPool(100), 8)
    for first in range(3):
        scheduler.submit(Sequence(tuple(prompt(100, first)), BlockOrigin(), lambda: None))
    steps = [plan_step(scheduler, 150, lambda _: True) for _ in range(3)]
    assert [(step.decoding, step.prompt_tokens, len(step.yielding)) for step in steps] == [
        (0, 150, 1),
        (1, 149, 2),
        (2, 1, 3),
    ]


def test_a_step_takes_what_its_parts_take() -> None:
    settings = SimulatorSettings(model="m", tokens_per_second=100, decode=0.001, prefill_tokens_per_second=1000)
    assert Step(decoding=3, prompt_tokens=20).seconds(settings) == pytest.approx(0.033)


def _gaps(times: Times) -> Times:
    return [round(later - earlier, 6) for earlier, later in pairwise(times)]
