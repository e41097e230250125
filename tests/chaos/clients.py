"""The clients of the chaos test: they send requests, single and in bursts, and check the responses."""

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
"""Seconds in which a request must end, not counting those in which its router was unavailable.

Two of three attempts at an engine may time out, each after `first_token` (30 s) and 20 s for its 200 tokens; a request
may wait 10 s in an engine's queue; and a follower that loses its leader starts again.
"""

_CLIENTS: Final = 6
_WEIGHTS: Final = {"none": 12}  # of a cache directive; 1 for the others
_BURST_SIZE: Final = 7
# Seconds after a failed request. Otherwise most requests would be sent while a router is unavailable.
_ERROR_PAUSE: Final = 0.3
_LEADER_LOSS_WINDOW: Final = 3.0  # seconds before a request in which a fault may still cost it its leader
_LEAVES_EARLY_SHARE: Final = 0.12  # of requests: the client disconnects early
_LEAVES_LATE_SHARE: Final = 0.25  # of requests: the client does not wait for an engine that hangs


class RequestStats:
    """The results of the requests: how they ended, the cache's results, and the defects.

    `slowest`: seconds of the slowest request, not counting those in which its router was unavailable.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.slowest = 0.0
        self.endings: Counter[str] = Counter()
        self.cache: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.defects: list[str] = []


class ChaosClients:
    """Send requests to a testbed's routers, chosen by the seed.

    `serial` numbers all requests. Once `stop_waiting` is set, clients abandon their requests.
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
        async with asyncio.TaskGroup() as group:
            group.create_task(self.purger.run_until(stop))
            for number in range(_CLIENTS):
                group.create_task(self._client(Random(f"{self._seed}:client {number}"), stop))

    async def _client(self, rng: Random, stop: asyncio.Event) -> None:
        async with self.connections() as https:
            for index in count():
                if stop.is_set():
                    return
                question = WorkloadQuestion(index // 5 + int(rng.expovariate(1 / 6)))
                if rng.random() < 0.05:
                    burst = [self._choose_request(rng, question, plain=True) for _ in range(_BURST_SIZE)]
                    async with self.connections() as more, asyncio.TaskGroup() as group:
                        for request in burst:
                            group.create_task(self.ask(more[request.router], request))
                else:
                    request = self._choose_request(rng, question)
                    if await self.ask(https[request.router], request) is None:
                        await asyncio.sleep(_ERROR_PAUSE)
                await asyncio.sleep(rng.uniform(0, 0.4))

    @asynccontextmanager
    async def connections(self) -> AsyncIterator[list[httpx.AsyncClient]]:
        https = [self._testbed.client(number) for number in range(len(self._testbed.routers))]
        try:
            yield https
        finally:
            for http in https:
                await http.aclose()

    def _choose_request(self, rng: Random, question: WorkloadQuestion, *, plain: bool = False) -> ClientRequest:
        """`plain`: without a cache directive, and mostly from the same tenant."""
        tenants = list(TENANTS)
        weights = [12 if plain and tenant == tenants[question.number % len(tenants)] else 1 for tenant in tenants]
        (tenant,) = rng.choices(tenants, weights)
        (directive,) = rng.choices(
            list(CACHE_DIRECTIVES.values()), [_WEIGHTS.get(name, 1) for name in CACHE_DIRECTIVES]
        )
        timeout, chance = None, rng.random()
        if chance < _LEAVES_EARLY_SHARE:
            timeout = rng.uniform(0.01, 0.5)
        elif chance < _LEAVES_EARLY_SHARE + _LEAVES_LATE_SHARE:
            timeout = rng.uniform(3, 8)
        return ClientRequest(
            origin=RequestOrigin(tenant, question, CACHE_DIRECTIVES["none"] if plain else directive, next(self.serial)),
            router=rng.randrange(len(self._testbed.routers)),
            stream=question.streams and rng.random() < 0.5,
            usage=rng.random() < 0.5,
            leaves_after=timeout,
        )

    async def ask(self, http: httpx.AsyncClient, request: ClientRequest) -> ClientResponse | None:
        """Send one request and check its response; None if there was none or the client did not wait for it."""
        stats, outages = self.stats, self._testbed.outages[request.router]
        loop = asyncio.get_running_loop()
        stats.requests += 1
        stats.paths[f"{request.origin.question.path}{', a stream' if request.stream else ''}"] += 1
        self.purger.last_origin = request.origin  # the purger prefers keys in flight
        started = loop.time()
        tracked = self._rate_limits.start_request(request.origin.tenant, started)
        task = asyncio.ensure_future(_send(http, request))
        try:
            while not task.done():
                remaining = MAX_REQUEST_SECONDS + (outages.duration_since(started) or 0.0) - (loop.time() - started)
                if remaining <= 0:
                    stats.endings["hung"] += 1
                    stats.defects.append(f"{request} has not ended after {loop.time() - started:.1f} s")
                    return None
                if self.stop_waiting.is_set():
                    stats.endings["left at the end"] += 1
                    return None
                await asyncio.wait([task], timeout=min(remaining, 0.5))
        finally:  # also if this client stops waiting: the request must end and be counted
            task.cancel()
            await asyncio.wait([task])
            self._rate_limits.end_request(tracked, loop.time())
        stats.slowest = max(stats.slowest, loop.time() - started - (outages.duration_since(started) or 0.0))
        return self._check(request, task.result(), started)

    def _check(
        self, request: ClientRequest, result: "ClientResponse | httpx.TransportError | None", started: float
    ) -> ClientResponse | None:
        """A killed router breaks connections; a stopping one refuses new requests; a frozen one does neither."""
        stats, outages = self.stats, self._testbed.outages[request.router]
        killed = outages.duration_since(started, "killed") is not None
        if result is None:
            stats.endings["left"] += 1
        elif isinstance(result, httpx.TransportError):
            stats.endings["no connection"] += 1
            if not killed and outages.duration_since(started, "stopped") is None:
                stats.defects.append(f"{request}: {result!r}, and its router was there")
        else:
            verdict = check_response(request, result, self._testbed.generations)
            stats.endings[verdict.ending] += 1
            stats.cache.update([verdict.cache] if verdict.cache is not None else [])
            now = asyncio.get_running_loop().time()
            defects = [*verdict.defects, *self._rate_limits.check_rejection(request.origin.tenant, verdict.ending, now)]
            if verdict.generation is not None:
                defects += self.purger.check_answer(request, verdict.generation, verdict.cache, started)
            if verdict.ending == "502 lost":
                defects.append("it was not started again, although no data had been sent")
            if verdict.ending == "broken, lost" and not self._may_be_lost(started - _LEADER_LOSS_WINDOW):
                defects.append("its leader was lost, and all routers and Redis were there")
            if verdict.ending == "cut" and not killed:
                defects.append(f"cut off, and its router was there; last came {result.body[-300:]!r}")
            stats.defects += [
                f"{_time_of_day(started)} {request}, X-Cache {verdict.cache}, {verdict.ending}: {defect}"
                for defect in defects
            ]
            return result
        return None

    def _may_be_lost(self, since: float) -> bool:
        """Whether a fault since then may have separated followers from their leader.

        Connections that are held or cut for less than a lease do not.
        """
        testbed = self._testbed
        outages = [*(router_outages.duration_since(since) for router_outages in testbed.outages)]
        outages.append(testbed.redis.outages.duration_since(since, "killed", "frozen", "stopped", "deaf", "full"))
        return any(flushed_at >= since for flushed_at in testbed.redis.flush_times) or any(
            duration is not None for duration in outages
        )


def _time_of_day(moment: float) -> str:
    # The routers' logs have the time of day.
    day = time.localtime(time.time() - (asyncio.get_running_loop().time() - moment))
    return time.strftime("%H:%M:%S", day)


async def _send(http: httpx.AsyncClient, request: ClientRequest) -> "ClientResponse | httpx.TransportError | None":
    """The response; None if the client disconnects before its end."""
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
