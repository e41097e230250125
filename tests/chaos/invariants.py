"""What must be true once everything is alive and well again, and nobody asks for anything."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final

import httpx

from router.core.cache.redis_keys import RESERVED_TENANT_NAMES
from tests.chaos.clients import ChaosClients
from tests.chaos.entry_checks import entry_flaws, entry_generation
from tests.chaos.oracle import ClientResponse
from tests.chaos.testbed import Testbed
from tests.chaos.workload import CACHE_DIRECTIVES, TENANTS, UNLIMITED, ClientRequest, RequestOrigin, WorkloadQuestion
from tests.support.waiting import eventually

_FIRST_NEW_QUESTION: Final = (
    1_000_001  # the number of a question that no client comes to; a chat with the model of two engines
)
_STEP: Final = 420  # to the next of the same kind
_TRIES: Final = 8  # within which a router gives what is stored: on a busy machine Redis may be late, which is a bypass
_SETTLE_TIMEOUT: Final = (
    90.0  # seconds: generations that hang are given up after `first_token` and more, breakers after 10 s
)


async def wait_until_healthy(testbed: Testbed) -> None:
    """Waits until all see that all are back."""

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

    for engine in testbed.engines.values():
        await engine.clear_faults()
    await _expect(testbed, "the routers are not well", well)


async def check_all(testbed: Testbed, clients: ChaosClients) -> int:
    """Notes what is wrong in the house's defects; how many entries were looked at."""
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
    """A tenant asks one router something new, and is then given it by all of them, whatever the form."""
    serial = -1
    for turn, tenant in enumerate(UNLIMITED):
        question = WorkloadQuestion(_FIRST_NEW_QUESTION + _STEP * turn)
        for number in (turn % len(testbed.routers), *range(len(testbed.routers))):
            for stream in (True, False):
                async with testbed.client(number) as http:
                    for _ in range(_TRIES):
                        asking = ClientRequest(
                            RequestOrigin(tenant, question, CACHE_DIRECTIVES["none"], serial),
                            number,
                            stream,
                            True,
                            None,
                        )
                        serial -= 1
                        reply = await clients.ask(http, asking)
                        if _was_reused(reply):
                            break
                    else:
                        testbed.defects.append(f"afterwards, {asking} got no hit in {_TRIES} tries: {reply}")


def _was_reused(reply: ClientResponse | None) -> bool:
    return reply is not None and reply.status == 200 and reply.headers.get("x-cache") in ("HIT", "COALESCED")


async def _no_claims(testbed: Testbed) -> bool:
    return not [key async for _, key in testbed.redis.all_keys() if key.split(":")[2] == "claim"]


async def _engines_idle(testbed: Testbed) -> bool:
    return not any([(await engine.stats())["in_flight"] for engine in testbed.engines.values()])


async def _gauges_are_zero(testbed: Testbed, number: int) -> bool:
    async with testbed.client(number) as http:
        page = (await http.get("/metrics")).raise_for_status().text
    values = re.findall(r"^llm_requests_in_flight\{.*\} (.*)$", page, re.MULTILINE)
    return len(values) == len(testbed.engines) and not any(map(float, values))


async def _check_entries(testbed: Testbed, clients: ChaosClients) -> int:
    """Looks at all that Redis holds; how many entries that were."""
    seen = 0
    async for server, key in testbed.redis.all_keys():
        kind, left = await server.command("TYPE", key), await server.command("PTTL", key)
        if left == -2:
            continue  # it has expired meanwhile
        name = key.split(":")[2]
        if left == -1 and name != "purge":
            testbed.defects.append(f"{key} never expires")
        if name in TENANTS:
            fields = await server.command_bytes("HGETALL", key) if kind == "hash" else {}
            if fields or kind != "hash":
                seen += 1
                wrong = entry_flaws(key, fields, left, testbed.generations)
                generation = entry_generation(fields, testbed.generations)
                wrong += clients.purger.check_entry(generation) if generation is not None else []
                testbed.defects += [f"entry {key}: {flaw}" for flaw in wrong]
        elif name not in RESERVED_TENANT_NAMES:
            testbed.defects.append(f"nobody knows what {key} is")
    return seen
