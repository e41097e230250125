"""A batch whose routers, engines and Redis are killed (SIGKILL) while it runs, and the same file once more."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from lab.batches.testbed import BatchTestbed, batch_testbed, chat_body, write_requests

FAULTS: Final = ("router", "engine", "redis")
_SEQUENCE: Final = (("router", 0), ("engine", 0), ("redis", 0), ("router", 1), ("engine", 1), ("redis", 0))
_TOKENS: Final = 8


class KillPlan(NamedTuple):
    """`faults`: some of FAULTS. `down`: seconds until what was killed is started again."""

    lines: int
    faults: Sequence[str]
    down: float


async def run(plan: KillPlan) -> list[dict[str, Any]]:
    """A row for each of two runs of the file; faults are in the first."""
    async with batch_testbed(routers=2, ttft_ms=20, tokens_per_second=200, max_num_seqs=64) as testbed:
        path = testbed.folder / "requests.jsonl"
        write_requests(
            path, (chat_body([("user", f"Question number {number}?")], _TOKENS) for number in range(plan.lines))
        )
        file_id = await testbed.upload(path)
        return [
            {"run": "with faults", **await _run_batch(testbed, file_id, plan)},
            {"run": "again", **await _run_batch(testbed, file_id, plan._replace(faults=()))},
        ]


async def _run_batch(testbed: BatchTestbed, file_id: str, plan: KillPlan) -> dict[str, Any]:
    started, generations = time.perf_counter(), testbed.generations
    batch_id = await testbed.create(file_id)
    injecting = asyncio.create_task(_inject(testbed, plan))
    batch = await testbed.wait(batch_id)
    seconds = time.perf_counter() - started
    kills = await injecting
    answers = await _results(testbed, batch["output_file_id"])
    failures = await _results(testbed, batch["error_file_id"])
    results = answers + failures
    return {
        "status": batch["status"],
        "lines": plan.lines,
        "answered": len(answers),
        "failed": len(failures),
        "missing": sum(str(number) not in results for number in range(plan.lines)),
        "more than once": sum(count > 1 for count in results.values()),
        "from the cache": batch["request_counts"]["cached"],
        "generations": testbed.generations - generations,
        "kills": kills,
        "seconds": round(seconds, 1),
    }


async def _results(testbed: BatchTestbed, file_id: str | None) -> Counter[str]:
    """How often each line has a result in the file."""
    content = b"".join([piece async for piece in testbed.content(file_id)])
    return Counter(json.loads(line)["custom_id"] for line in content.splitlines())


async def _inject(testbed: BatchTestbed, plan: KillPlan) -> int:
    """Kills one process after the other, at equal shares of the lines. Returns how many."""
    sequence = [(kind, number) for kind, number in _SEQUENCE if kind in plan.faults]
    for position, (kind, number) in enumerate(sequence, 1):
        await testbed.begun(plan.lines * position / (len(sequence) + 1))
        if kind == "router":
            router = testbed.routers[number]
            router.kill()
            await asyncio.sleep(plan.down)
            router.start()
            await router.wait_until_ready()
        elif kind == "engine":
            await testbed.engines[number].kill()
            await asyncio.sleep(plan.down)
            await testbed.engines[number].start()
        else:
            testbed.redis.kill()
            await asyncio.sleep(plan.down)
            await testbed.redis.start()
    return len(sequence)


def is_right(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether each line has one result."""
    return all(row["missing"] == row["more than once"] == 0 for row in rows)
