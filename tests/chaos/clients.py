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

from tests.chaos.oracle import ClientResponse, check_response
from tests.chaos.purger import Purger
from tests.chaos.rate_limit_model import RateLimitModel
from tests.chaos.testbed import Testbed
from tests.chaos.workload import CACHE_DIRECTIVES, TENANTS, ClientRequest, RequestOrigin, WorkloadQuestion

MAX_REQUEST_SECONDS: Final = 150.0
"""Seconds in which a request must end, those not counted in which its router was away.

Two of three attempts at an engine may run out of time, each after `first_token` (30 s) and 20 s for its 200 tokens; a
request may wait 10 s for room at an engine; and who follows a leader that is lost begins anew.
"""

_CLIENTS: Final = 6
_WEIGHTS: Final = {"none": 12}  # of a wish; of each other one, 1
_BURST_SIZE: Final = 7
_ERROR_PAUSE: Final = (
    0.3  # seconds after a request that came to nothing, so that not all is asked while a router is away
)
_LEADER_LOSS_WINDOW: Final = 3.0  # seconds in which what was done before a request may still cost it its leader
_LEAVES_EARLY_SHARE: Final = 0.12  # the share of requests whose client leaves early
_LEAVES_LATE_SHARE: Final = 0.25  # and of those whose client does not wait for an engine that hangs


class RequestStats:
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


class ChaosClients:
    """Ask the routers of a house, as the seed has it.

    `serial` numbers all requests. `go_home`: once it is set, no client waits any longer.
    """

    def __init__(self, testbed: Testbed, seed: int) -> None:
        self.stats = RequestStats()
        self.purger = Purger(testbed, seed)
        self.serial = count(1)
        self.stop_waiting = asyncio.Event()
        self._rate_limits = RateLimitModel()
        self._testbed = testbed
        self._seed = seed

    async def run_until(self, stop: asyncio.Event) -> None:
        """Returns once it is told to stop and all requests have ended."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.purger.run_until(stop))
            for number in range(_CLIENTS):
                group.create_task(self._client(Random(f"{self._seed}:client {number}"), stop))

    async def _client(self, rng: Random, stop: asyncio.Event) -> None:
        async with self.connections() as https:
            for asked in count():
                if stop.is_set():
                    return
                question = WorkloadQuestion(asked // 5 + int(rng.expovariate(1 / 6)))
                if rng.random() < 0.05:
                    burst = [self._choose_request(rng, question, plain=True) for _ in range(_BURST_SIZE)]
                    async with self.connections() as more, asyncio.TaskGroup() as group:
                        for asking in burst:
                            group.create_task(self.ask(more[asking.router], asking))
                else:
                    asking = self._choose_request(rng, question)
                    if await self.ask(https[asking.router], asking) is None:
                        await asyncio.sleep(_ERROR_PAUSE)
                await asyncio.sleep(rng.uniform(0, 0.4))

    @asynccontextmanager
    async def connections(self) -> AsyncIterator[list[httpx.AsyncClient]]:
        """A client's connections, one to each router."""
        https = [self._testbed.client(number) for number in range(len(self._testbed.routers))]
        try:
            yield https
        finally:
            for http in https:
                await http.aclose()

    def _choose_request(self, rng: Random, question: WorkloadQuestion, *, plain: bool = False) -> ClientRequest:
        """`calm`: nothing is asked of the cache, and all of the same tenant, but for the rare stranger."""
        tenants = list(TENANTS)
        weights = [12 if plain and tenant == tenants[question.number % len(tenants)] else 1 for tenant in tenants]
        (tenant,) = rng.choices(tenants, weights)
        (wish,) = rng.choices(list(CACHE_DIRECTIVES.values()), [_WEIGHTS.get(name, 1) for name in CACHE_DIRECTIVES])
        leaves, chance = None, rng.random()
        if chance < _LEAVES_EARLY_SHARE:
            leaves = rng.uniform(0.01, 0.5)
        elif chance < _LEAVES_EARLY_SHARE + _LEAVES_LATE_SHARE:
            leaves = rng.uniform(3, 8)
        return ClientRequest(
            origin=RequestOrigin(tenant, question, CACHE_DIRECTIVES["none"] if plain else wish, next(self.serial)),
            router=rng.randrange(len(self._testbed.routers)),
            stream=question.streams and rng.random() < 0.5,
            usage=rng.random() < 0.5,
            leaves_after=leaves,
        )

    async def ask(self, http: httpx.AsyncClient, request: ClientRequest) -> ClientResponse | None:
        """One request, judged; what came of it, if anything did and the client waited for it."""
        tally, outages = self.stats, self._testbed.outages[request.router]
        loop = asyncio.get_running_loop()
        tally.requests += 1
        tally.paths[f"{request.origin.question.path}{', a stream' if request.stream else ''}"] += 1
        self.purger.last_origin = request.origin
        began = loop.time()
        used = self._rate_limits.start_request(request.origin.tenant, began)
        task = asyncio.ensure_future(_send(http, request))
        try:
            while not task.done():
                left = MAX_REQUEST_SECONDS + (outages.duration_since(began) or 0.0) - (loop.time() - began)
                if left <= 0:
                    tally.endings["hung"] += 1
                    tally.defects.append(f"{request} has not ended after {loop.time() - began:.1f} s")
                    return None
                if self.stop_waiting.is_set():
                    tally.endings["left at the end"] += 1
                    return None
                await asyncio.wait([task], timeout=min(left, 0.5))
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._rate_limits.end_request(used, loop.time())
        tally.slowest = max(tally.slowest, loop.time() - began - (outages.duration_since(began) or 0.0))
        return self._check(request, task.result(), began)

    def _check(
        self, request: ClientRequest, got: "ClientResponse | httpx.TransportError | None", began: float
    ) -> ClientResponse | None:
        """A router that is killed breaks off; one that is stopped refuses what is new; a frozen one does neither."""
        tally, outages = self.stats, self._testbed.outages[request.router]
        killed = outages.duration_since(began, "killed") is not None
        if got is None:
            tally.endings["left"] += 1
        elif isinstance(got, httpx.TransportError):
            tally.endings["no connection"] += 1
            if not killed and outages.duration_since(began, "stopped") is None:
                tally.defects.append(f"{request}: {got!r}, and its router was there")
        else:
            verdict = check_response(request, got, self._testbed.generations)
            tally.endings[verdict.ending] += 1
            tally.cache.update([verdict.cache] if verdict.cache is not None else [])
            now = asyncio.get_running_loop().time()
            defects = [*verdict.defects, *self._rate_limits.check_rejection(request.origin.tenant, verdict.ending, now)]
            if verdict.generation is not None:
                defects += self.purger.check_answer(request, verdict.generation, verdict.cache, began)
            if verdict.ending == "502 lost":
                defects.append("it was not begun anew, and nothing had been said of it")
            if verdict.ending == "broken, lost" and not self._may_be_lost(began - _LEADER_LOSS_WINDOW):
                defects.append("its leader was lost, and all routers and Redis were there")
            if verdict.ending == "cut" and not killed:
                defects.append(f"cut off, and its router was there; last came {got.body[-300:]!r}")
            tally.defects += [
                f"{_time_of_day(began)} {request}, X-Cache {verdict.cache}, {verdict.ending}: {defect}"
                for defect in defects
            ]
            return got
        return None

    def _may_be_lost(self, since: float) -> bool:
        """Whether something was away since then that takes a generation from those who follow it.

        Connections that are held or cut do not, where that is for less than a lease.
        """
        house = self._testbed
        outages = [*(each.duration_since(since) for each in house.outages)]
        outages.append(house.redis.outages.duration_since(since, "killed", "frozen", "stopped", "deaf"))
        return any(emptied >= since for emptied in house.redis.flush_times) or any(
            lasted is not None for lasted in outages
        )


def _time_of_day(moment: float) -> str:
    """A moment of the event loop's clock, with the time of day, which the logs have."""
    day = time.localtime(time.time() - (asyncio.get_running_loop().time() - moment))
    return time.strftime("%H:%M:%S", day)


async def _send(http: httpx.AsyncClient, request: ClientRequest) -> "ClientResponse | httpx.TransportError | None":
    """What comes; None where the client has left before."""
    head: httpx.Response | None = None
    body = b""
    try:
        async with (
            asyncio.timeout(request.leaves_after),
            http.stream(
                "POST", request.origin.question.path, json=request.body(), headers=request.headers(), timeout=None
            ) as head,
        ):
            async for part in head.aiter_raw():
                body += part
            return ClientResponse(head.status_code, head.headers, body, complete=True)
    except TimeoutError:
        return None
    except httpx.TransportError as error:
        return error if head is None else ClientResponse(head.status_code, head.headers, body, complete=False)
