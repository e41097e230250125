"""One chaos test: requests and faults for so many seconds, then the checks."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos import invariants
from tests.chaos.clients import MAX_REQUEST_SECONDS, ChaosClients
from tests.chaos.faults import plan_faults, run_faults
from tests.chaos.hot_key_load import HotKeyLoad
from tests.chaos.poison_load import PoisonLoad
from tests.chaos.testbed import Testbed


class ChaosReport(msgspec.Struct, frozen=True):
    """The statistics of a chaos test; it passed if there are no `defects`.

    - `redis`: the deployment. `slowest`: seconds of the slowest request, not counting those in which its router was
      unavailable.
    - `endings` of the requests: `complete`; `left`, if the client did not wait; `broken`, an error event at the end of
      a stream, with its code; `cut` and `no connection`, if the router was killed; else an error by its status and
      code.
    - `cache`: of those with status 200, by X-Cache. `paths`: by endpoint. `faults`: by target.
    - `purges`: completed ones. `generations`: started by engines. `entries`: checked ones.
    """

    seed: int
    seconds: float
    redis: str
    requests: int
    slowest: float
    endings: dict[str, int]
    cache: dict[str, int]
    paths: dict[str, int]
    fault_counts: dict[str, int]
    purges: int
    generations: int
    entries: int
    defects: list[str]

    def lines(self) -> list[str]:
        tables = {"endings": self.endings, "cache": self.cache, "paths": self.paths, "faults": self.fault_counts}
        requests = f"{self.requests} requests, the slowest {self.slowest:.1f} s"
        rest = f"{self.purges} purges, {self.generations} generations, {self.entries} entries looked at"
        lines = [f"seed {self.seed}, {self.seconds:g} s, {self.redis}: {requests}, {rest}"]
        for name, table in tables.items():
            lines += [f"{name}:", *(f"  {count:6} {label}" for label, count in table.items())]
        return [*lines, *(f"DEFECT: {defect}" for defect in self.defects), f"{len(self.defects)} defects"]


async def run_chaos(
    seconds: float, seed: int, folder: Path, redis: str = "server", client_timeout: float = MAX_REQUEST_SECONDS
) -> ChaosReport:
    """Leaves no process behind.

    `folder` gets the configurations and the logs. `client_timeout`: seconds for which clients wait for their responses
    at the end before they disconnect.
    """
    async with Testbed(folder, redis) as testbed:
        clients = ChaosClients(testbed, seed)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            loads = [
                group.create_task(clients.run_until(stop)),
                group.create_task(HotKeyLoad(clients, seed).run_until(stop)),
                group.create_task(PoisonLoad(clients, testbed, seed).run_until(stop)),
            ]
            async with asyncio.TaskGroup() as fault_counts:
                fault_counts.create_task(run_faults(plan_faults(seed, seconds), testbed))
                fault_counts.create_task(asyncio.sleep(seconds))
            # Clients stop sending, then get time for their last requests, and are stopped if they still wait.
            stop.set()
            await asyncio.wait(loads, timeout=client_timeout)
            clients.stop_waiting.set()
        clients.stop_waiting.clear()  # the checks below send requests too
        await invariants.wait_until_healthy(testbed)
        entries = await invariants.check_all(testbed, clients)
    stats = clients.stats
    return ChaosReport(
        seed=seed, seconds=seconds, redis=redis, requests=stats.requests, slowest=stats.slowest,
        endings=_sorted(stats.endings), cache=_sorted(stats.cache), paths=_sorted(stats.paths),
        fault_counts=_sorted(testbed.fault_counts), purges=clients.purger.completed,
        generations=len(testbed.generations), entries=entries,
        defects=[*stats.defects, *testbed.defects],
    )  # fmt: skip


def _sorted(counts: "Counter[str]") -> dict[str, Any]:
    return dict(sorted(counts.items()))
