"""What must be true once everything is alive and well again, and nobody asks for anything."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final

import httpx

from router.core.cache.redis_keys import RESERVED
from tests.chaos.clients import Clients
from tests.chaos.entry_checks import flaws, generation_of
from tests.chaos.oracle import Reply
from tests.chaos.testbed import House
from tests.chaos.workload import TENANTS, UNLIMITED, WISHES, Asking, Origin, Question
from tests.support.waiting import eventually

_NEVER_ASKED: Final = (
    1_000_001  # the number of a question that no client comes to; a chat with the model of two engines
)
_STEP: Final = 420  # to the next of the same kind
_TRIES: Final = 8  # within which a router gives what is stored: on a busy machine Redis may be late, which is a bypass
_SETTLES: Final = 90.0  # seconds: generations that hang are given up after `first_token` and more, breakers after 10 s


async def settle(house: House) -> None:
    """Waits until all see that all are back."""

    async def well() -> bool:
        for number in range(len(house.routers)):
            for _ in range(4):  # a router with several workers answers with one of them
                async with house.client(number) as http:
                    try:
                        if (await http.get("/healthz")).json()["status"] != "healthy":
                            return False
                    except httpx.TransportError:
                        return False
        return True

    for engine in house.engines.values():
        await engine.clear()
    await _expect(house, "the routers are not well", well)


async def look(house: House, clients: Clients) -> int:
    """Notes what is wrong in the house's defects; how many entries were looked at."""
    await _hits_again(house, clients)
    await _expect(house, "claims are left", lambda: _no_claims(house))
    entries = await _entries(house, clients)
    await _expect(house, "engines are still at work", lambda: _engines_idle(house))
    for number in range(len(house.routers)):
        await _expect(house, f"router {number} counts requests in flight", lambda: _gauges_down(house, number))  # noqa: B023
    house.note_all_deaths()
    await asyncio.gather(*(house.end_router(number) for number in range(len(house.routers))))
    house.defects += house.complaints()
    return entries


async def _expect(house: House, otherwise: str, condition: Callable[[], Awaitable[bool]]) -> None:
    try:
        await eventually(condition, within=_SETTLES)
    except TimeoutError:
        house.defects.append(f"afterwards, {otherwise}")


async def _hits_again(house: House, clients: Clients) -> None:
    """A tenant asks one router something new, and is then given it by all of them, whatever the form."""
    serial = -1
    for turn, tenant in enumerate(UNLIMITED):
        question = Question(_NEVER_ASKED + _STEP * turn)
        for number in (turn % len(house.routers), *range(len(house.routers))):
            for stream in (True, False):
                async with house.client(number) as http:
                    for _ in range(_TRIES):
                        asking = Asking(Origin(tenant, question, WISHES["none"], serial), number, stream, True, None)
                        serial -= 1
                        reply = await clients.ask(http, asking)
                        if _was_given_again(reply):
                            break
                    else:
                        house.defects.append(f"afterwards, {asking} got no hit in {_TRIES} tries: {reply}")


def _was_given_again(reply: Reply | None) -> bool:
    return reply is not None and reply.status == 200 and reply.headers.get("x-cache") in ("HIT", "COALESCED")


async def _no_claims(house: House) -> bool:
    return not [key async for _, key in house.redis.all_keys() if key.split(":")[2] == "claim"]


async def _engines_idle(house: House) -> bool:
    return not any([(await engine.stats())["in_flight"] for engine in house.engines.values()])


async def _gauges_down(house: House, number: int) -> bool:
    async with house.client(number) as http:
        page = (await http.get("/metrics")).raise_for_status().text
    values = re.findall(r"^llm_requests_in_flight\{.*\} (.*)$", page, re.MULTILINE)
    return len(values) == len(house.engines) and not any(map(float, values))


async def _entries(house: House, clients: Clients) -> int:
    """Looks at all that Redis holds; how many entries that were."""
    seen = 0
    async for server, key in house.redis.all_keys():
        kind, left = await server.command("TYPE", key), await server.command("PTTL", key)
        if left == -2:
            continue  # it has expired meanwhile
        name = key.split(":")[2]
        if left == -1 and name != "purge":
            house.defects.append(f"{key} never expires")
        if name in TENANTS:
            fields = await server.raw("HGETALL", key) if kind == "hash" else {}
            if fields or kind != "hash":
                seen += 1
                wrong = flaws(key, fields, left, house.generations)
                generation = generation_of(fields, house.generations)
                wrong += clients.purger.flaws_of_entry(generation) if generation is not None else []
                house.defects += [f"entry {key}: {flaw}" for flaw in wrong]
        elif name not in RESERVED:
            house.defects.append(f"nobody knows what {key} is")
    return seen
