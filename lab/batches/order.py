"""The share of prompt tokens that engines find in their prefix caches: requests in the order of a file, and a batch.

The lines have one of many long system prompts, in an order by chance. One router chooses between two engines in both
cases, and has as many lines in flight. The figures are the engines' own counters.
"""

import asyncio
import random
import time
from typing import Any, Final, NamedTuple

from lab.batches.testbed import BatchTestbed, batch_testbed, chat_body, write_requests

IN_FLIGHT: Final = 8
"""The default of batch.max_in_flight."""

_WORDS: Final = ("alpha", "beta", "gamma", "delta", "omega", "sigma")
_MAX_MODEL_LEN: Final = 16_384


class OrderPlan(NamedTuple):
    """`prompts`: how many system prompts, of so many `words` each. `kv_blocks`: of each engine, for 16 tokens each."""

    lines: int
    prompts: int
    words: int
    kv_blocks: int


async def run(plan: OrderPlan) -> list[dict[str, Any]]:
    """A row for each order, with new processes for each."""
    bodies = _bodies(plan)
    rows = []
    for name, send in (("requests in the order of the file", _as_requests), ("a batch", _as_batch)):
        options = {"max_num_seqs": 16, "max_model_len": _MAX_MODEL_LEN, "kv_blocks": plan.kv_blocks}
        async with batch_testbed(batch=f"max_lines = {plan.lines}", **options) as testbed:
            started = time.perf_counter()
            await send(testbed, bodies)
            seconds = time.perf_counter() - started
            found, asked = await _tokens(testbed, "hits"), await _tokens(testbed, "queries")
        rows.append(
            {
                "sent as": name,
                "lines": plan.lines,
                "prompt tokens": round(asked),
                "in prefix caches, %": round(100 * found / asked, 1),
                "seconds": round(seconds, 1),
            }
        )
    return rows


def _bodies(plan: OrderPlan) -> list[dict[str, Any]]:
    rng = random.Random(1)
    prompts = [" ".join(rng.choice(_WORDS) for _ in range(plan.words)) for _ in range(plan.prompts)]
    bodies = [
        chat_body([("system", prompts[number % plan.prompts]), ("user", f"Question {number}?")], 4)
        for number in range(plan.lines)
    ]
    rng.shuffle(bodies)
    return bodies


async def _as_requests(testbed: BatchTestbed, bodies: list[dict[str, Any]]) -> None:
    lines = iter(bodies)

    async def client() -> None:
        for body in lines:
            await testbed.ask(body)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(client())


async def _as_batch(testbed: BatchTestbed, bodies: list[dict[str, Any]]) -> None:
    path = testbed.folder / "requests.jsonl"
    write_requests(path, bodies)
    batch = await testbed.wait(await testbed.create(await testbed.upload(path)))
    assert batch["request_counts"]["completed"] == len(bodies), batch


async def _tokens(testbed: BatchTestbed, kind: str) -> float:
    """`kind`: hits or queries."""
    samples = [await engine.metrics() for engine in testbed.engines]
    name = f"vllm:prefix_cache_{kind}_total{{"
    return sum(value for each in samples for sample, value in each.items() if sample.startswith(name))
