"""The cost of hits, JSON misses and followers at Redis, per request.

Theory of operation. Redis' own counters are read before and after a number of requests. What the routers send without
any request (pings, renewals, status) is measured first, for `idle` seconds, and is subtracted in proportion to the
time. So CPU time per request is independent of what else runs on the machine, apart from the caches of the CPU. It does
include what routers send later: every two seconds, each adds to the hit counts of the entries that were hit. It does
depend on the size of batches: a router has one batch in flight, so the busier Redis is, the more commands are in a
batch, and the less system calls a command costs. Each cost therefore states the commands per read.

A follower is measured as the difference between pairs and single streams: of a pair, the second request is sent to the
other router once the first event of the first has arrived.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial, reduce
from itertools import islice
from typing import Any, Final, NamedTuple

from benchmarks.load import bodies, load
from benchmarks.processes import running_routers
from lab.redis_limits.client import ask
from lab.redis_limits.usage import RedisUsage, cores, pin, read_usages
from tests.support.redis_deployments import Deployment, tcp_server
from tests.support.redis_process import RedisServer

EVENT_INTERVAL: Final = 20.0
"""Milliseconds between two events of the streams that are followed: 50 tokens a second."""

EVENTS: Final = 66
STREAM_SECONDS: Final = (EVENTS - 1) * EVENT_INTERVAL / 1000
WARM_PROMPTS: Final = 500

Cost = dict[str, Any]


class Pace(NamedTuple):
    """Seconds for which servers are observed without requests, and after the last request.

    `settling` belongs to the measurement: every two seconds, routers add up the hits of entries.
    """

    idle: float
    settling: float


class Meter:
    """Reads the usage of servers around requests."""

    def __init__(self, servers: Sequence[RedisServer], pace: Pace) -> None:
        self.servers = servers
        self._pace = pace
        self.idle: list[RedisUsage] = []
        self._reading: list[RedisUsage] = []  # what INFO itself costs, connection included

    async def observe_idle(self) -> Cost:
        """What the routers and Redis itself use without requests, per second, over all servers."""
        first, second = await read_usages(self.servers), await read_usages(self.servers)
        self._reading = [later.minus(earlier) for earlier, later in zip(first, second, strict=True)]
        self.idle = await self._used_since(second, self._pace.idle)
        return {
            "commands_per_second": round(sum(usage.commands for usage in self.idle) / self._pace.idle, 1),
            "core_share": round(sum(usage.cpu for usage in self.idle) / self._pace.idle, 5),
        }

    async def used_by(self, work: Coroutine[Any, Any, Any]) -> list[RedisUsage]:
        """What each server has used for the work, without what it uses when idle."""
        before, started = await read_usages(self.servers), time.perf_counter()
        await work
        used = await self._used_since(before, self._pace.settling)
        share = (time.perf_counter() - started) / self._pace.idle
        return [each.minus(idle, share) for each, idle in zip(used, self.idle, strict=True)]

    async def _used_since(self, before: list[RedisUsage], seconds: float) -> list[RedisUsage]:
        """The usage from a reading until some seconds from now, without that of reading it."""
        await asyncio.sleep(seconds)
        after = await read_usages(self.servers)
        return [
            last.minus(first).minus(reading)
            for first, last, reading in zip(before, after, self._reading, strict=True)
        ]  # fmt: skip


def cost_of(used: RedisUsage, requests: int) -> Cost:
    """Per request. `per_core`: requests per second that use 100 % of one core of Redis, by CPU time."""
    return {
        "cpu_us": round(used.cpu / requests * 1e6, 2),
        "cpu_all_threads_us": round(used.cpu_all / requests * 1e6, 2),
        "per_core": round(requests / used.cpu) if used.cpu > 0 else None,
        "commands": round(used.commands / requests, 2),
        "commands_per_read": round(used.commands / used.reads, 1) if used.reads else None,
        "bytes_in": round(used.bytes_in / requests),
        "bytes_out": round(used.bytes_out / requests),
        "calls": {name: round(count / requests, 2) for name, count in used.calls.items() if count / requests >= 0.01},
    }


@asynccontextmanager
async def pinned(deployment: Deployment) -> AsyncIterator[Deployment]:
    """A started deployment, whose servers have a core that nothing else uses."""
    try:
        await deployment.start()
        redis_cores, _ = cores()
        for server in deployment.servers:
            await pin(server, redis_cores)
        yield deployment
    finally:
        deployment.remove()


@asynccontextmanager
async def one_server(routers: int, pace: Pace, **options: Any) -> AsyncIterator[tuple[list[int], Meter, Cost]]:
    """The ports of routers over one Redis, its meter, and the cost of doing nothing."""
    async with pinned(tcp_server()) as redis, running_routers(routers=routers, redis=redis, **options) as started:
        meter = Meter(redis.servers, pace)
        observed = await meter.observe_idle()
        yield [router.port for router in started], meter, observed


async def on_all(
    ports: list[int], make: Callable[[int], Iterator[bytes]], connections: int, requests: int
) -> Counter[str]:
    """Loads all routers at once; `requests` in total, `connections` for each. Returns the number by X-Cache."""
    share = requests // len(ports)
    loads = [load(port, make(at), connections=connections, requests=share) for at, port in enumerate(ports)]
    caches: Counter[str] = Counter()
    for result in await asyncio.gather(*loads):
        caches += result.caches
    return caches


async def checked(work: Coroutine[Any, Any, Counter[str]], status: str) -> None:
    caches = await work
    if set(caches) != {status}:
        raise RuntimeError(f"X-Cache was {dict(caches)}, not only {status}")


async def hits(requests: int, connections: Sequence[int], routers: int, pace: Pace) -> list[Cost]:
    """Hits whose entries come from Redis, for each number of connections per router."""
    async with one_server(routers, pace, local="0B") as (ports, meter, observed):
        return [{"idle": observed, **cost} for cost in await hit_costs(ports, meter, requests, connections)]


async def hit_costs(ports: list[int], meter: Meter, requests: int, connections: Sequence[int]) -> list[Cost]:
    prompts = min(WARM_PROMPTS, requests)
    await checked(on_all(ports[:1], lambda _: bodies(stream=False, different=prompts), 16, prompts), "MISS")
    rows = []
    for count in connections:
        total = _whole(requests if count > 1 else max(1, requests // 4), ports)
        work = on_all(ports, lambda _: bodies(stream=False, different=prompts), count, total)
        used = await meter.used_by(checked(work, "HIT"))
        rows.append({"what": "hit", "connections": count, "routers": len(ports), **_summed(used, total)})
    return rows


async def misses(requests: int, connections: Sequence[int], routers: int, pace: Pace) -> list[Cost]:
    """JSON misses: lookup, claim, write, release, and the notification of all routers."""
    async with one_server(routers, pace) as (ports, meter, observed):
        return [{"idle": observed, **cost} for cost in await miss_costs(ports, meter, requests, connections)]


async def miss_costs(ports: list[int], meter: Meter, requests: int, connections: Sequence[int]) -> list[Cost]:
    rows = []
    for count in connections:
        total = _whole(requests if count > 1 else max(1, requests // 4), ports)
        work = on_all(ports, partial(_new_prompts, count), count, total)
        used = await meter.used_by(checked(work, "MISS"))
        rows.append({"what": "miss", "connections": count, "routers": len(ports), **_summed(used, total)})
    return rows


def _new_prompts(connections: int, router: int) -> Iterator[bytes]:
    return bodies(stream=False, name=f"{connections}-{router}")


async def followers(requests: int, connections: Sequence[int], pace: Pace) -> list[Cost]:
    """Streams that a router follows through Redis while another one generates them."""
    rows = []
    async with one_server(2, pace, interval=EVENT_INTERVAL, events=EVENTS) as (ports, meter, observed):
        for count in connections:
            total = max(count, requests // (1 if count > 1 else 8))
            single = await meter.used_by(_streams(ports, total, count, f"single {count}", follow=False))
            paired = await meter.used_by(_streams(ports, total, count, f"paired {count}", follow=True))
            used = paired[0].minus(single[0])
            cost = cost_of(used, total)
            rows += [
                {"what": "stream, not followed", "connections": count, "idle": observed, **cost_of(single[0], total)},
                {
                    "what": "follower", "connections": count, "idle": observed, **cost,
                    "followed_at_once_per_core": round(total * STREAM_SECONDS / used.cpu) if used.cpu else None,
                    "commands_per_second": round(used.commands / total / STREAM_SECONDS, 1),
                    "cpu_us_per_second": round(used.cpu / total / STREAM_SECONDS * 1e6, 1),
                },
            ]  # fmt: skip
    return rows


async def _streams(ports: list[int], total: int, at_once: int, name: str, *, follow: bool) -> None:
    prompts = islice(bodies(stream=True, name=name), total)

    async def worker() -> None:
        for body in prompts:
            begun = asyncio.Event()
            leader = asyncio.create_task(ask(ports[0], body, on_first=begun.set))
            begun_or_ended = asyncio.create_task(begun.wait())
            await asyncio.wait([leader, begun_or_ended], return_when=asyncio.FIRST_COMPLETED)
            begun_or_ended.cancel()
            answers = [await ask(ports[1], body)] if follow else []
            answers.append(await leader)
            if any(answer.failed for answer in answers) or (follow and answers[0].cache != "COALESCED"):
                raise RuntimeError(f"not a leader and its follower: {answers}")

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())


def _whole(requests: int, ports: list[int]) -> int:
    """A number of requests that all routers share equally."""
    return max(1, requests // len(ports)) * len(ports)


def _summed(used: list[RedisUsage], requests: int) -> Cost:
    if len(used) == 1:
        return cost_of(used[0], requests)
    return {**cost_of(reduce(RedisUsage.plus, used), requests), "servers": [cost_of(each, requests) for each in used]}
