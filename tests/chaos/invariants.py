"""What must hold once all processes are healthy again and there are no requests."""

import asyncio
import dataclasses
import itertools
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import httpx

from router.core.cache.redis_keys import AUDIT_KEY, RESERVED_TENANT_NAMES
from tests.chaos.clients import ChaosClients
from tests.chaos.entry_checks import entry_flaws, entry_generation
from tests.chaos.generation_store import LoggedGeneration
from tests.chaos.oracle import ClientResponse
from tests.chaos.testbed import Testbed
from tests.chaos.workload import CACHE_DIRECTIVES, TENANTS, UNLIMITED, ClientRequest, RequestOrigin, WorkloadQuestion
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

_FIRST_NEW_QUESTION: Final = 1_000_001  # beyond those of the clients; a chat with the model that has two engines
_STEP: Final = 420  # to the next question of the same kind
# Seconds. Hanging generations are abandoned after `first_token` and more, breakers close after 10 s.
_SETTLE_TIMEOUT: Final = 90.0


async def wait_until_healthy(testbed: Testbed) -> None:
    """Clear the engines' faults and wait until every router reports that all is well."""

    async def well() -> bool:
        for number in range(len(testbed.routers)):
            for _ in range(4):  # a router with several workers answers with one of them
                async with testbed.client(number) as http:
                    try:
                        if (await http.get("/healthz")).json()["status"] != "healthy":
                            return False
                    except httpx.TransportError:
                        return False
        return True

    await testbed.wait_for_engines()
    for engine in testbed.engines.values():
        await engine.clear_faults()
    await _expect(testbed, "the routers are not well", well)


async def check_all(testbed: Testbed, clients: ChaosClients) -> int:
    """Add violations to the testbed's defects. Returns the number of entries checked."""
    await _check_hits(testbed, clients)
    await _expect(testbed, "claims are left", lambda: _no_claims(testbed))
    entries = await _check_entries(testbed, clients)
    await _expect(testbed, "engines are still at work", lambda: _engines_idle(testbed))
    for number in range(len(testbed.routers)):
        await _expect(testbed, f"router {number} counts requests in flight", lambda: _gauges_are_zero(testbed, number))  # noqa: B023
    testbed.record_all_exits()
    await asyncio.gather(*(testbed.terminate_router(number) for number in range(len(testbed.routers))))
    testbed.defects += testbed.logged_errors()
    return entries


async def _expect(testbed: Testbed, otherwise: str, condition: Callable[[], Awaitable[bool]]) -> None:
    try:
        await eventually(condition, timeout=_SETTLE_TIMEOUT)
    except TimeoutError:
        testbed.defects.append(f"afterwards, {otherwise}")


async def _check_hits(testbed: Testbed, clients: ChaosClients) -> None:
    """A tenant sends a new question to one router; then all of them must answer it from the cache, in both forms.

    On a busy machine, a Redis timeout causes a bypass, and bypasses for a while after it.
    """
    serials = itertools.count(-1, -1)

    async def is_reused(tenant: str, question: WorkloadQuestion, router: int, stream: bool) -> bool:
        origin = RequestOrigin(tenant, question, CACHE_DIRECTIVES["none"], next(serials))
        async with testbed.client(router) as http:
            return _was_reused(await clients.ask(http, ClientRequest(origin, router, stream, True, None)))

    for index, tenant in enumerate(UNLIMITED):
        question = WorkloadQuestion(_FIRST_NEW_QUESTION + _STEP * index)
        for router in (index % len(testbed.routers), *range(len(testbed.routers))):
            for stream in (True, False):
                otherwise = f"router {router} did not answer {question} of {tenant} from the cache, {stream=}"
                await _expect(testbed, otherwise, partial(is_reused, tenant, question, router, stream))


def _was_reused(reply: ClientResponse | None) -> bool:
    return reply is not None and reply.status == 200 and reply.headers.get("x-cache") in ("HIT", "COALESCED")


async def _no_claims(testbed: Testbed) -> bool:
    return not [key async for _, key in testbed.redis.all_keys() if key.split(":")[2] == "claim"]


async def _engines_idle(testbed: Testbed) -> bool:
    return not any([(await engine.stats())["in_flight"] for engine in testbed.engines.values()])


async def _gauges_are_zero(testbed: Testbed, number: int) -> bool:
    async with testbed.client(number) as http:
        metrics = (await http.get("/metrics")).raise_for_status().text
    values = re.findall(r"^llm_requests_in_flight\{.*\} (.*)$", metrics, re.MULTILINE)
    return len(values) == len(testbed.engines) and not any(map(float, values))


async def _check_entries(testbed: Testbed, clients: ChaosClients) -> int:
    count = 0
    async for server, key in testbed.redis.all_keys():
        kind, pttl = await server.command("TYPE", key), await server.command("PTTL", key)
        if pttl == -2:
            continue  # it has expired since SCAN returned it
        name = key.split(":")[2]
        if pttl == -1 and name != "purge" and key != AUDIT_KEY:  # both are bounded in another way
            testbed.defects.append(f"{key} never expires")
        if name in TENANTS:
            fields = await server.command_bytes("HGETALL", key) if kind == "hash" else {}
            if fields or kind != "hash":
                count += 1
                flaws = entry_flaws(key, fields, pttl, testbed.generations)
                generation = entry_generation(fields, testbed.generations)
                if generation is not None and (purged := clients.purger.check_entry(generation)):
                    flaws += [] if await _is_deleted_by_a_lookup(testbed, clients, server, key, generation) else purged
                testbed.defects += [f"entry {key}: {flaw}" for flaw in flaws]
        elif name not in RESERVED_TENANT_NAMES:
            testbed.defects.append(f"nobody knows what {key} is")
    return count


async def _is_deleted_by_a_lookup(
    testbed: Testbed, clients: ChaosClients, server: RedisServer, key: str, generation: LoggedGeneration
) -> bool:
    """Whether a purged entry is a miss. A router does not delete it itself if the reply to its write was lost."""

    async def is_gone() -> bool:
        directive = CACHE_DIRECTIVES["only-if-cached"]
        origin = dataclasses.replace(generation.origin, directive=directive, serial=next(clients.serial))
        async with testbed.client(0) as http:
            await clients.ask(http, ClientRequest(origin, 0, stream=False, usage=False, leaves_after=None))
        return not await server.command("EXISTS", key)

    try:
        await eventually(is_gone, timeout=_SETTLE_TIMEOUT)
    except TimeoutError:
        return False
    return True
