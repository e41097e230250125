"""The memory of a router while a large file is uploaded, checked, run and fetched.

The peak is the kernel's own (VmHWM of /proc/PID/status), which is set back before each phase.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lab.batches.testbed import batch_testbed, chat_body, write_requests

_ENVELOPE = 200
"""Bytes of a line beside its words."""


class BigPlan(NamedTuple):
    megabytes: int
    lines: int


class _Phases:
    """The rows so far, of a process."""

    def __init__(self, pid: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._folder = Path(f"/proc/{pid}")

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        (self._folder / "clear_refs").write_text("5")  # sets VmHWM back
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        peak = int((self._folder / "status").read_text().partition("VmHWM:")[2].split()[0])
        self.rows.append({"phase": name, "seconds": round(seconds, 1), "peak, MB": round(peak * 1024 / 1e6)})


async def run(plan: BigPlan) -> list[dict[str, Any]]:
    """A row for each phase."""
    batch = f'max_file = "{plan.megabytes + 10}MB"\nmax_lines = {plan.lines}'
    async with batch_testbed(
        engines=1, batch=batch, max_num_seqs=32, max_model_len=1 << 20, kv_blocks=1 << 17
    ) as testbed:
        path = testbed.folder / "requests.jsonl"
        words = "word " * max(1, (plan.megabytes * 1_000_000 // plan.lines - _ENVELOPE) // 5)
        write_requests(path, (chat_body([("user", f"{number} {words}")], 2) for number in range(plan.lines)))
        phases = _Phases(testbed.routers[0].process.pid)
        async with phases.phase("idle"):
            await testbed.ask(chat_body([("user", "Is it warm?")], 2))
        async with phases.phase(f"upload of {path.stat().st_size / 1e6:,.0f} MB"):
            file_id = await testbed.upload(path)
        batch_id = await testbed.create(file_id)
        async with phases.phase("check"):
            await testbed.wait(batch_id, ("in_progress", "finalizing", "completed", "failed"))
        async with phases.phase(f"run of {plan.lines:,} lines"):
            ended = await testbed.wait(batch_id)
        async with phases.phase("download of the input"):
            size = sum([len(piece) async for piece in testbed.content(file_id)])
        assert size == path.stat().st_size
        assert ended["request_counts"]["completed"] == plan.lines, ended
        return phases.rows
