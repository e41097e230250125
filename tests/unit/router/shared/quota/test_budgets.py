"""A process' part in a budget: nothing is lost while Redis is down, and nothing is added twice."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.quota.budget import Budget, BudgetUse, use_at
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError
from router.net.redis.replies import decode_reply
from router.shared.quota.budgets import MAX_AMOUNT, BudgetCounter
from router.shared.quota.rate_limits import TenantLimits
from tests.support.waiting import TEST_TIMEOUT

NOON = 1_790_000_000.0


class Pipeline:
    """Redis with one budget. `state`: `loses_reply` applies a command and goes down, `refuses` replies an error."""

    decode = staticmethod(decode_reply)

    def __init__(self) -> None:
        self.state = "up"
        self.use = use_at(None, NOON)
        self.commands = 0

    def send(self, command: Command, *, on_reply: Any) -> None:
        if self.state == "down":
            raise RedisDownError
        self.commands += 1
        if self.state == "refuses":
            on_reply([Exception("OOM")])
            return
        self.use = self.use.plus(int(command[4]), int(command[5]))
        use = self.use
        times = [int(use.now), use.day, use.month]
        reply = [*times, use.day_tokens, use.day_gpu_ms, use.month_tokens, use.month_gpu_ms]
        on_reply([reply] if self.state == "up" else None)


def counter(pipeline: Pipeline) -> BudgetCounter:
    return BudgetCounter(pipeline, "acme", Budget(tokens_per_day=100), lambda: NOON)  # type: ignore[arg-type]


async def read(counted: BudgetCounter) -> BudgetUse:
    return await asyncio.wait_for(counted.read(), TEST_TIMEOUT)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from(["up", "down", "refuses", "loses_reply"])),
        max_size=8,
    )
)
def test_what_generations_used_is_added_once_whatever_redis_does(steps: list[tuple[int, int, str]]) -> None:
    pipeline = Pipeline()
    counted = counter(pipeline)
    for tokens, gpu_ms, state in steps:
        pipeline.state = state
        counted.spend(tokens, gpu_ms / 1000)
    pipeline.state = "up"
    counted.flush()
    assert pipeline.use.day_tokens == pipeline.use.month_tokens == sum(step[0] for step in steps)
    assert pipeline.use.day_gpu_ms == sum(step[1] for step in steps)
    commands = pipeline.commands
    counted.flush()
    assert pipeline.commands == commands, "there is nothing to send"


@pytest.mark.parametrize("state", ["down", "refuses"])
async def test_without_redis_a_process_continues_with_the_last_reply_and_its_own_use(state: str) -> None:
    pipeline = Pipeline()
    counted = counter(pipeline)
    pipeline.use = pipeline.use.plus(70, 0)  # of other processes
    assert (await read(counted)).day_tokens == 70
    pipeline.state = state
    counted.spend(20, 0.0)
    counted.spend(15, 0.0)
    assert (await read(counted)).day_tokens == 105
    pipeline.state = "up"
    assert (await read(counted)).day_tokens == 105
    assert pipeline.use.day_tokens == 105


@pytest.mark.parametrize("state", ["up", "down", "refuses"])
async def test_another_budget_continues_with_what_is_known_and_loses_nothing(state: str) -> None:
    pipeline = Pipeline()
    limits = TenantLimits()
    configure(limits, pipeline, 100)
    pipeline.use = pipeline.use.plus(70, 0)
    assert (await limits.reserve("acme")).over_budget is None
    pipeline.state = state
    limits.spend("acme", 20, 0.0)
    configure(limits, pipeline, 90)
    assert (await limits.reserve("acme")).over_budget is not None
    limits.spend("acme", 15, 0.0)  # by a generation that began before
    pipeline.state = "up"
    assert await day_tokens(limits) == pipeline.use.day_tokens == 105


async def test_another_redis_gets_what_the_former_one_did_not_take() -> None:
    former, pipeline = Pipeline(), Pipeline()
    limits = TenantLimits()
    configure(limits, former, 100)
    limits.spend("acme", 30, 0.0)
    former.state = "down"
    limits.spend("acme", 20, 0.0)
    configure(limits, pipeline, 100)
    limits.spend("acme", 5, 0.0)
    assert await day_tokens(limits) == pipeline.use.day_tokens == 25


def configure(limits: TenantLimits, pipeline: Pipeline, tokens: int) -> None:
    limits.configure(pipeline, {}, {"acme": Budget(tokens_per_day=tokens)}, clock=lambda: NOON)  # type: ignore[arg-type]


async def day_tokens(limits: TenantLimits) -> int:
    used = await limits.budget_use("acme")
    assert used is not None
    return used[1].day_tokens


async def test_a_process_that_never_reached_redis_counts_its_own_use() -> None:
    pipeline = Pipeline()
    pipeline.state = "down"
    counted = counter(pipeline)
    counted.spend(3, 0.5)
    use = await read(counted)
    assert (use.day_tokens, use.month_gpu_ms) == (3, 500)


async def test_after_a_lost_reply_the_process_counts_what_it_sent_without_sending_it_again() -> None:
    pipeline = Pipeline()
    counted = counter(pipeline)
    await read(counted)
    pipeline.state = "loses_reply"
    counted.spend(40, 0.0)
    pipeline.state = "down"
    assert (await read(counted)).day_tokens == 40
    pipeline.state = "up"
    assert (await read(counted)).day_tokens == 40


def test_an_absurd_number_of_an_engine_is_bounded() -> None:
    pipeline = Pipeline()
    counter(pipeline).spend(10**30, 1e30)
    assert (pipeline.use.day_tokens, pipeline.use.day_gpu_ms) == (MAX_AMOUNT, MAX_AMOUNT)
    counter(pipeline).spend(-5, -1.0)
    assert pipeline.use.day_tokens == MAX_AMOUNT
