"""The whole chaos: so many seconds of it, and then what must be true."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos import invariants
from tests.chaos.clients import LONGEST, Clients
from tests.chaos.faults import carry_out, plan
from tests.chaos.hot_key_load import Storms
from tests.chaos.testbed import House


class Report(msgspec.Struct, frozen=True):
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


async def run(seconds: float, seed: int, folder: Path, redis: str = "server", patience: float = LONGEST) -> Report:
    """Leaves no process behind.

    `folder` takes the configurations and the logs. `patience`: for how many seconds clients wait after the end for what
    they have asked for, before they leave.
    """
    async with House(folder, redis) as house:
        clients = Clients(house, seed)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(clients.ask_until(stop)),
                group.create_task(Storms(clients, seed).rage_until(stop)),
            ]
            async with asyncio.TaskGroup() as deeds:
                deeds.create_task(carry_out(plan(seed, seconds), house))
                deeds.create_task(asyncio.sleep(seconds))
            stop.set()
            await asyncio.wait(asking, timeout=patience)
            clients.go_home.set()
        clients.go_home.clear()
        await invariants.settle(house)
        entries = await invariants.look(house, clients)
    tally = clients.tally
    return Report(
        seed=seed, seconds=seconds, redis=redis, requests=tally.requests, slowest=tally.slowest,
        endings=_sorted(tally.endings), cache=_sorted(tally.cache), paths=_sorted(tally.paths),
        deeds=_sorted(house.deeds), purges=clients.purger.done,
        generations=len(house.generations), entries=entries,
        defects=[*tally.defects, *house.defects],
    )  # fmt: skip


def _sorted(counts: "Counter[str]") -> dict[str, Any]:
    return dict(sorted(counts.items()))
