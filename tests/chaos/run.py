"""The whole chaos: so many seconds of it, and then what must be true."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos import invariants
from tests.chaos.clients import MAX_REQUEST_SECONDS, ChaosClients
from tests.chaos.faults import plan_faults, run_faults
from tests.chaos.hot_key_load import HotKeyLoad
from tests.chaos.testbed import Testbed


class ChaosReport(msgspec.Struct, frozen=True):
    """What was done and what came of it; it went well if there are no `defects`.

    - `redis`: how Redis was run. `slowest`: the most seconds that a request took, without those in which its router
      was away.
    - `endings`: of the requests: `complete`; `left`, where the client did not wait; `broken`, an error event at the end
      of a stream, with its code; `cut` and `no connection`, where the router was killed; else an error by its status
      and code.
    - `cache`: of those with status 200, by X-Cache. `paths`: by what was asked. `deeds`: by victim.
    - `purges`: those that were done. `generations`: those that engines began. `entries`: those that were looked at.
    """

    seed: int
    seconds: float
    redis: str
    requests: int
    slowest: float
    endings: dict[str, int]
    cache: dict[str, int]
    paths: dict[str, int]
    deeds: dict[str, int]
    purges: int
    generations: int
    entries: int
    defects: list[str]

    def lines(self) -> list[str]:
        """For a person to read."""
        tables = {"endings": self.endings, "cache": self.cache, "paths": self.paths, "deeds": self.deeds}
        requests = f"{self.requests} requests, the slowest {self.slowest:.1f} s"
        rest = f"{self.purges} purges, {self.generations} generations, {self.entries} entries looked at"
        said = [f"seed {self.seed}, {self.seconds:g} s, {self.redis}: {requests}, {rest}"]
        for name, table in tables.items():
            said += [f"{name}:", *(f"  {count:6} {what}" for what, count in table.items())]
        return [*said, *(f"DEFECT: {defect}" for defect in self.defects), f"{len(self.defects)} defects"]


async def run_chaos(
    seconds: float, seed: int, folder: Path, redis: str = "server", client_timeout: float = MAX_REQUEST_SECONDS
) -> ChaosReport:
    """Leaves no process behind.

    `folder` takes the configurations and the logs. `patience`: for how many seconds clients wait after the end for what
    they have asked for, before they leave.
    """
    async with Testbed(folder, redis) as house:
        clients = ChaosClients(house, seed)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(clients.run_until(stop)),
                group.create_task(HotKeyLoad(clients, seed).run_until(stop)),
            ]
            async with asyncio.TaskGroup() as deeds:
                deeds.create_task(run_faults(plan_faults(seed, seconds), house))
                deeds.create_task(asyncio.sleep(seconds))
            stop.set()
            await asyncio.wait(asking, timeout=client_timeout)
            clients.stop_waiting.set()
        clients.stop_waiting.clear()
        await invariants.wait_until_healthy(house)
        entries = await invariants.check_all(house, clients)
    tally = clients.stats
    return ChaosReport(
        seed=seed, seconds=seconds, redis=redis, requests=tally.requests, slowest=tally.slowest,
        endings=_sorted(tally.endings), cache=_sorted(tally.cache), paths=_sorted(tally.paths),
        deeds=_sorted(house.fault_counts), purges=clients.purger.completed,
        generations=len(house.generations), entries=entries,
        defects=[*tally.defects, *house.defects],
    )  # fmt: skip


def _sorted(counts: "Counter[str]") -> dict[str, Any]:
    return dict(sorted(counts.items()))
