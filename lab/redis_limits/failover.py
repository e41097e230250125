"""What clients notice while a primary of Redis is lost and replaced.

Requests start at fixed times (open loop), alternately at two routers with default settings; half of them repeat stored
prompts, half are new. The engine answers at once, so a duration is that of the router and of Redis. `seconds` are
counted from the moment of the fault:

- `cache_back_s`: until the first hit after the last moment without any, for a request that started after the fault;
  None if hits never stopped. `last_bypass_s`: the start of the last request with `X-Cache: BYPASS`, without the cache.
- `failed`: no complete response with status 200. `over_100_ms`: complete, but slower than that.
- `generated_again`: requests for stored prompts that an engine had to answer.
- `lost_entries`: of `stored_before` the fault, those that are not there at the end.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.load import bodies
from benchmarks.processes import bare_engine
from lab.redis_limits.client import Answer, ask
from tests.support.redis_deployments import SERVICE, Cluster, Deployment, SentinelGroup
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.waiting import eventually

DETECTION_MS: Final = 2000
"""As docs/deploying.md recommends, for `down-after-milliseconds` and `cluster-node-timeout`."""

PROMPTS: Final = 100
SLOW: Final = 0.1
"""Seconds; slower requests are counted."""

_CONFIGURATION: Final = """
[router]
[cache]
url = "{redis}"
[[model]]
name = "bare"
[[engine]]
name = "bare"
model = "bare"
url = "http://127.0.0.1:{engine}"
"""


class Plan(NamedTuple):
    """`rate` in requests a second, `before` and `after` the fault in seconds, `detection` in milliseconds."""

    rate: float
    before: float
    after: float
    detection: int


class Request(NamedTuple):
    """`at`: seconds after the fault at which it was to start. `stored`: whether its prompt had been stored before."""

    at: float
    stored: bool
    body: bytes
    answer: Answer


def _sentinel(detection: int) -> Deployment:
    return SentinelGroup(down_after=detection)


def _cluster(detection: int) -> Deployment:
    return Cluster("--cluster-node-timeout", str(detection), "--cluster-require-full-coverage", "no")


async def _kill(deployment: Deployment, primary: RedisServer) -> None:
    primary.kill()


async def _freeze(deployment: Deployment, primary: RedisServer) -> None:
    primary.freeze()


async def _replace(deployment: Deployment, primary: RedisServer) -> None:
    """A planned failover, as an operator orders it."""
    if isinstance(deployment, SentinelGroup):
        await deployment.sentinels[0].command("SENTINEL", "FAILOVER", SERVICE)
        return
    assert isinstance(deployment, Cluster)
    await (await _replica_of(deployment, primary)).command("CLUSTER", "FAILOVER")


async def _replica_of(cluster: Cluster, primary: RedisServer) -> RedisServer:
    for server in cluster.servers:
        replication = await server.command("INFO", "replication")
        if replication["role"] == "slave" and replication["master_port"] == primary.port:
            return server
    raise RuntimeError(f"no replica of {primary.port}")


DEPLOYMENTS: Final[Mapping[str, Callable[[int], Deployment]]] = {"sentinel": _sentinel, "cluster": _cluster}
FAULTS: Final[Mapping[str, Callable[[Deployment, RedisServer], Awaitable[None]]]] = {
    "kill": _kill, "freeze": _freeze, "planned": _replace,
}  # fmt: skip


def _data_servers(deployment: Deployment) -> Sequence[RedisServer]:
    return deployment.data if isinstance(deployment, SentinelGroup) else deployment.servers


async def _is_master(server: RedisServer) -> bool:
    return bool((await server.command("INFO", "replication"))["role"] == "master")


async def run(deployment: str, fault: str, plan: Plan) -> dict[str, Any]:
    async with _started(DEPLOYMENTS[deployment](plan.detection)) as (redis, ports):
        stored = list(islice(bodies(stream=False, different=PROMPTS), PROMPTS))
        for number, body in enumerate(stored):
            await ask(ports[number % 2], body)
        primary = (await redis.primaries())[0]
        replicas = [server for server in _data_servers(redis) if not await _is_master(server)]
        begun = time.monotonic() + plan.before
        faulting = asyncio.create_task(_later(begun, FAULTS[fault], redis, primary))
        requests = await _load(ports, stored, plan, begun)
        await faulting
        kept = [request for request in requests if request.at < 0 and request.answer.cache == "MISS"]
        present = [*stored, *(request.body for request in kept if not request.answer.failed)]
        lost = [(await ask(ports[0], body, directive="only-if-cached")).status != 200 for body in present]
        failed_over = any([await _is_master(server) for server in replicas])
        if fault == "freeze":
            primary.thaw()
    return {
        "redis": deployment, "fault": fault, "detection_ms": plan.detection, "failed_over": failed_over,
        **summary(requests, plan), "stored_before": len(present), "lost_entries": sum(lost),
        "timeline": timeline(requests),
    }  # fmt: skip


def summary(requests: list[Request], plan: Plan) -> dict[str, Any]:
    after = [request for request in requests if request.at >= 0]
    # A request that started just before the fault may have been hit by it.
    affected = [request for request in requests if request.at >= -1]
    bypassed = [request for request in after if request.answer.cache == "BYPASS"]
    hits = [request.at + request.answer.seconds for request in after if request.answer.cache == "HIT"]
    gaps = list(zip([0.0, *hits], [*hits, plan.after], strict=True))
    longest = max(gaps, key=lambda gap: gap[1] - gap[0])
    slowest = max((request.answer.seconds for request in affected), default=0.0)
    return {
        "requests": len(affected),
        # The longest time without a hit, if it is longer than the requests' own distances explain.
        "cache_back_s": round(longest[1], 2) if longest[1] - longest[0] > 0.5 else None,
        "without_hits_s": round(longest[1] - longest[0], 2),
        "first_bypass_s": round(bypassed[0].at, 2) if bypassed else None,
        "last_bypass_s": round(bypassed[-1].at, 2) if bypassed else None,
        "failed": sum(request.answer.failed for request in affected),
        "bypassed": len(bypassed),
        "over_100_ms": sum(request.answer.seconds > SLOW for request in affected if not request.answer.failed),
        "slowest_ms": round(slowest * 1000),
        "generated_again": sum(request.stored and request.answer.cache != "HIT" for request in after),
    }


def timeline(requests: list[Request]) -> list[dict[str, Any]]:
    """One row for each second before and after the fault."""
    seconds: dict[int, list[Request]] = {}
    for request in requests:
        seconds.setdefault(int(request.at // 1), []).append(request)
    rows = []
    for second, started in sorted(seconds.items()):
        durations = sorted(request.answer.seconds * 1000 for request in started)
        rows.append({
            "second": second, "requests": len(started), **Counter(request.answer.cache for request in started),
            "failed": sum(request.answer.failed for request in started),
            "p50_ms": round(durations[len(durations) // 2], 1), "max_ms": round(durations[-1], 1),
        })  # fmt: skip
    return rows


async def _load(ports: list[int], stored: list[bytes], plan: Plan, begun: float) -> list[Request]:
    new = bodies(stream=False, name="new")
    asking = []
    for number in range(round(plan.rate * (plan.before + plan.after))):
        at = number / plan.rate - plan.before
        # Of four requests in a row, each router gets one for a stored prompt and a new one.
        is_stored = number // 2 % 2 == 0
        body = stored[number // 4 % len(stored)] if is_stored else next(new)
        await asyncio.sleep(begun + at - time.monotonic())
        asking.append(asyncio.create_task(_one(ports[number % 2], body, at, stored=is_stored)))
    return [await each for each in asking]


async def _one(port: int, body: bytes, at: float, *, stored: bool) -> Request:
    return Request(at, stored, body, await ask(port, body))


async def _later(
    moment: float,
    fault: Callable[[Deployment, RedisServer], Awaitable[None]],
    deployment: Deployment,
    primary: RedisServer,
) -> None:
    await asyncio.sleep(moment - time.monotonic())
    await fault(deployment, primary)


@asynccontextmanager
async def _started(deployment: Deployment) -> AsyncIterator[tuple[Deployment, list[int]]]:
    """A deployment, and the ports of two routers over it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            async with bare_engine(0.0) as engine:
                await deployment.start()
                await eventually(deployment.is_healthy)
                text = _CONFIGURATION.format(redis=deployment.url, engine=engine)
                routers = [RouterProcess(Path(folder), text, name=f"router-{number}") for number in range(2)]
                try:
                    for router in routers:
                        router.start()
                    for router in routers:
                        await router.wait_until_ready()
                    yield deployment, [router.port for router in routers]
                finally:
                    for router in routers:
                        router.kill()
        finally:
            deployment.remove()
