"""The clients of the chaos: what they ask, one after the other and all at once, and how they take what comes."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Final

import httpx

from tests.chaos.oracle import Reply, judge
from tests.chaos.purger import Purger
from tests.chaos.rate_limit_model import Usage
from tests.chaos.testbed import House
from tests.chaos.workload import TENANTS, WISHES, Asking, Origin, Question

LONGEST: Final = 150.0
"""Seconds in which a request must end, those not counted in which its router was away.

Two of three attempts at an engine may run out of time, each after `first_token` (30 s) and 20 s for its 200 tokens; a
request may wait 10 s for room at an engine; and who follows a leader that is lost begins anew.
"""

_CLIENTS: Final = 6
_WEIGHTS: Final = {"none": 12}  # of a wish; of each other one, 1
_BURST: Final = 7
_SULKS: Final = 0.3  # seconds after a request that came to nothing, so that not all is asked while a router is away
_LEADS: Final = 3.0  # seconds in which what was done before a request may still cost it its leader
_LEAVES_SOON: Final = 0.12  # the share of requests whose client leaves early
_LEAVES_LATE: Final = 0.25  # and of those whose client does not wait for an engine that hangs


class Tally:
    """What became of the requests: how they ended, what the cache did, and what was wrong.

    `slowest`: the most seconds that one took, without those in which its router was away.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.slowest = 0.0
        self.endings: Counter[str] = Counter()
        self.cache: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.defects: list[str] = []


class Clients:
    """Ask the routers of a house, as the seed has it.

    `serial` numbers all requests. `go_home`: once it is set, no client waits any longer.
    """

    def __init__(self, house: House, seed: int) -> None:
        self.tally = Tally()
        self.purger = Purger(house, seed)
        self.serial = count(1)
        self.go_home = asyncio.Event()
        self._usage = Usage()
        self._house = house
        self._seed = seed

    async def ask_until(self, stop: asyncio.Event) -> None:
        """Returns once it is told to stop and all requests have ended."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.purger.purge_until(stop))
            for number in range(_CLIENTS):
                group.create_task(self._client(Random(f"{self._seed}:client {number}"), stop))

    async def _client(self, dice: Random, stop: asyncio.Event) -> None:
        async with self.connections() as https:
            for asked in count():
                if stop.is_set():
                    return
                question = Question(asked // 5 + int(dice.expovariate(1 / 6)))
                if dice.random() < 0.05:
                    burst = [self._choose(dice, question, calm=True) for _ in range(_BURST)]
                    async with self.connections() as more, asyncio.TaskGroup() as group:
                        for asking in burst:
                            group.create_task(self.ask(more[asking.router], asking))
                else:
                    asking = self._choose(dice, question)
                    if await self.ask(https[asking.router], asking) is None:
                        await asyncio.sleep(_SULKS)
                await asyncio.sleep(dice.uniform(0, 0.4))

    @asynccontextmanager
    async def connections(self) -> AsyncIterator[list[httpx.AsyncClient]]:
        """A client's connections, one to each router."""
        https = [self._house.client(number) for number in range(len(self._house.routers))]
        try:
            yield https
        finally:
            for http in https:
                await http.aclose()

    def _choose(self, dice: Random, question: Question, *, calm: bool = False) -> Asking:
        """`calm`: nothing is asked of the cache, and all of the same tenant, but for the rare stranger."""
        tenants = list(TENANTS)
        weights = [12 if calm and tenant == tenants[question.number % len(tenants)] else 1 for tenant in tenants]
        (tenant,) = dice.choices(tenants, weights)
        (wish,) = dice.choices(list(WISHES.values()), [_WEIGHTS.get(name, 1) for name in WISHES])
        leaves, chance = None, dice.random()
        if chance < _LEAVES_SOON:
            leaves = dice.uniform(0.01, 0.5)
        elif chance < _LEAVES_SOON + _LEAVES_LATE:
            leaves = dice.uniform(3, 8)
        return Asking(
            origin=Origin(tenant, question, WISHES["none"] if calm else wish, next(self.serial)),
            router=dice.randrange(len(self._house.routers)),
            stream=question.streams and dice.random() < 0.5,
            usage=dice.random() < 0.5,
            leaves=leaves,
        )

    async def ask(self, http: httpx.AsyncClient, asking: Asking) -> Reply | None:
        """One request, judged; what came of it, if anything did and the client waited for it."""
        tally, outages = self.tally, self._house.outages[asking.router]
        loop = asyncio.get_running_loop()
        tally.requests += 1
        tally.paths[f"{asking.origin.question.path}{', a stream' if asking.stream else ''}"] += 1
        self.purger.asked_last = asking.origin
        began = loop.time()
        used = self._usage.begin(asking.origin.tenant, began)
        task = asyncio.ensure_future(_exchange(http, asking))
        try:
            while not task.done():
                left = LONGEST + (outages.lasted(began) or 0.0) - (loop.time() - began)
                if left <= 0:
                    tally.endings["hung"] += 1
                    tally.defects.append(f"{asking} has not ended after {loop.time() - began:.1f} s")
                    return None
                if self.go_home.is_set():
                    tally.endings["left at the end"] += 1
                    return None
                await asyncio.wait([task], timeout=min(left, 0.5))
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._usage.end(used, loop.time())
        tally.slowest = max(tally.slowest, loop.time() - began - (outages.lasted(began) or 0.0))
        return self._take(asking, task.result(), began)

    def _take(self, asking: Asking, got: "Reply | httpx.TransportError | None", began: float) -> Reply | None:
        """A router that is killed breaks off; one that is stopped refuses what is new; a frozen one does neither."""
        tally, outages = self.tally, self._house.outages[asking.router]
        killed = outages.lasted(began, "killed") is not None
        if got is None:
            tally.endings["left"] += 1
        elif isinstance(got, httpx.TransportError):
            tally.endings["no connection"] += 1
            if not killed and outages.lasted(began, "stopped") is None:
                tally.defects.append(f"{asking}: {got!r}, and its router was there")
        else:
            verdict = judge(asking, got, self._house.generations)
            tally.endings[verdict.ending] += 1
            tally.cache.update([verdict.cache] if verdict.cache is not None else [])
            now = asyncio.get_running_loop().time()
            defects = [*verdict.defects, *self._usage.flaws(asking.origin.tenant, verdict.ending, now)]
            if verdict.generation is not None:
                defects += self.purger.defects_of(asking, verdict.generation, verdict.cache, began)
            if verdict.ending == "502 lost":
                defects.append("it was not begun anew, and nothing had been said of it")
            if verdict.ending == "broken, lost" and not self._may_be_lost(began - _LEADS):
                defects.append("its leader was lost, and all routers and Redis were there")
            if verdict.ending == "cut" and not killed:
                defects.append(f"cut off, and its router was there; last came {got.body[-300:]!r}")
            tally.defects += [
                f"{_at(began)} {asking}, X-Cache {verdict.cache}, {verdict.ending}: {defect}" for defect in defects
            ]
            return got
        return None

    def _may_be_lost(self, since: float) -> bool:
        """Whether something was away since then that takes a generation from those who follow it.

        Connections that are held or cut do not, where that is for less than a lease.
        """
        house = self._house
        outages = [*(each.lasted(since) for each in house.outages)]
        outages.append(house.redis.outages.lasted(since, "killed", "frozen", "stopped", "deaf"))
        return any(emptied >= since for emptied in house.redis.emptied) or any(lasted is not None for lasted in outages)


def _at(moment: float) -> str:
    """A moment of the event loop's clock, with the time of day, which the logs have."""
    day = time.localtime(time.time() - (asyncio.get_running_loop().time() - moment))
    return time.strftime("%H:%M:%S", day)


async def _exchange(http: httpx.AsyncClient, asking: Asking) -> "Reply | httpx.TransportError | None":
    """What comes; None where the client has left before."""
    head: httpx.Response | None = None
    body = b""
    try:
        async with (
            asyncio.timeout(asking.leaves),
            http.stream(
                "POST", asking.origin.question.path, json=asking.body(), headers=asking.headers(), timeout=None
            ) as head,
        ):
            async for part in head.aiter_raw():
                body += part
            return Reply(head.status_code, head.headers, body, whole=True)
    except TimeoutError:
        return None
    except httpx.TransportError as error:
        return error if head is None else Reply(head.status_code, head.headers, body, whole=False)
