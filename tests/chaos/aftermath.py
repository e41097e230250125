"""What must be true once everything is alive and well again, and nobody asks for anything."""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import redis.asyncio as aioredis
from clients import Clients
from house import House
from judging import Reply, flaws_of_body, flaws_of_events, frames_of
from questions import STALE, TENANTS, WISHES, Asking, Origin, Question, expected_key
from waiting import eventually

from router.core.names import RESERVED

_NEVER_ASKED: Final = 1_000_000  # the number of a question that no client comes to
_FIELDS: Final = {
    "digest", "model", "engine", "task", "created", "ttl", "prompt_tokens", "completion_tokens", "generation_ms",
    "question", "params",
}  # fmt: skip
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "generation_ms")


async def settle(house: House) -> None:
    """Waits until all see that all are back."""

    async def well() -> bool:
        for number in range(len(house.routers)):
            for _ in range(4):  # a router with several workers answers with one of them
                async with house.client(number) as http:
                    if (await http.get("/healthz")).json()["status"] != "healthy":
                        return False
        return True

    for engine in house.engines.values():
        await engine.clear()
    await eventually(well)


async def look(house: House, clients: Clients) -> int:
    """Notes what is wrong in the house's defects; how many entries were looked at."""
    await _hits_again(house, clients)
    client: Any = aioredis.Redis.from_url(house.redis.url)
    try:
        await _expect(house, "claims are left", lambda: _none_of(client, "rh:1:claim:*"))
        entries = await _entries(house, clients, client)
    finally:
        await client.aclose()
    await _expect(house, "engines are still at work", lambda: _engines_idle(house))
    for number in range(len(house.routers)):
        await _expect(house, f"router {number} counts requests in flight", lambda: _gauges_down(house, number))  # noqa: B023
    house.note_all_deaths()
    for engine in house.engines.values():
        house.generations += (await engine.stats())["started"]
    for number in range(len(house.routers)):
        await house.end_router(number)
    house.defects += house.complaints()
    return entries


async def _expect(house: House, otherwise: str, condition: Callable[[], Awaitable[bool]]) -> None:
    try:
        await eventually(condition)
    except TimeoutError:
        house.defects.append(f"afterwards, {otherwise}")


async def _hits_again(house: House, clients: Clients) -> None:
    """Every tenant asks each router something new, and is then given it by all of them."""
    serial = -1
    for tenant in TENANTS:
        for first in range(len(house.routers)):
            question = Question(_NEVER_ASKED + 7 * -serial + 1)  # the model with two engines
            for stream in (True, False):
                for number in (first, *range(len(house.routers))):
                    asking = Asking(Origin(tenant, question, WISHES["none"], serial), number, stream, True, None)
                    serial -= 1
                    async with house.client(number) as http:
                        reply = await clients.ask(http, asking)
                    _check_again(house, asking, reply)


def _check_again(house: House, asking: Asking, reply: Reply | None) -> None:
    """The first of the six who ask a question misses, and only he."""
    cache = reply.headers.get("x-cache") if reply is not None else None
    first = asking.stream and asking.origin.serial % 6 == 5
    if reply is None or reply.status != 200 or (cache != "MISS" if first else cache not in ("HIT", "COALESCED")):
        house.defects.append(f"afterwards, {asking} got {cache}: {reply}")


async def _none_of(client: Any, pattern: str) -> bool:
    return not [key async for key in client.scan_iter(match=pattern, count=1000)]


async def _engines_idle(house: House) -> bool:
    return not any([(await engine.stats())["in_flight"] for engine in house.engines.values()])


async def _gauges_down(house: House, number: int) -> bool:
    async with house.client(number) as http:
        page = (await http.get("/metrics")).raise_for_status().text
    values = re.findall(r"^llm_requests_in_flight\{.*\} (.*)$", page, re.MULTILINE)
    return len(values) == len(house.engines) and not any(map(float, values))


async def _entries(house: House, clients: Clients, client: Any) -> int:
    """Looks at all that Redis holds; how many entries that were."""
    seen = 0
    for key in [key.decode() async for key in client.scan_iter(match="rh:1:*", count=1000)]:
        kind, left = await client.type(key), await client.pttl(key)
        if left == -2:
            continue  # it has expired meanwhile
        name = key.split(":")[2]
        if left == -1 and name != "purge":
            house.defects.append(f"{key} never expires")
        if name in TENANTS:
            fields = await client.hgetall(key) if kind == b"hash" else {}
            if fields or kind != b"hash":
                seen += 1
                wrong = flaws(key, fields, left) or _purged(clients, fields)
                house.defects += [f"entry {key}: {flaw}" for flaw in wrong]
        elif name not in RESERVED:
            house.defects.append(f"nobody knows what {key} is")
    return seen


def _purged(clients: Clients, fields: dict[bytes, bytes]) -> list[str]:
    (answer, *_) = _said({name.decode(): value for name, value in fields.items()})
    return clients.purger.flaws_of_entry(Origin.of(answer["id"]), answer["created"])


def _said(told: dict[str, bytes]) -> list[Any]:
    """What an entry holds: the answer as JSON, or its events. Raises KeyError where it has neither."""
    return [msgspec.json.decode(said) for said in ([told["body"]] if "body" in told else frames_of(told["frames"]))]


def flaws(key: str, fields: dict[bytes, bytes], left: int) -> list[str]:
    """What is wrong with an entry that has so many milliseconds left."""
    told = {name.decode(): value for name, value in fields.items()}
    try:
        return _flaws(key, told, left)
    except (ValueError, KeyError, IndexError, TypeError, msgspec.DecodeError) as error:
        return [f"it cannot be read: {error!r}: {told}"]


def _flaws(key: str, told: dict[str, bytes], left: int) -> list[str]:
    if missing := _FIELDS - told.keys():
        return [f"it has no {', '.join(sorted(missing))}"]
    said = _said(told)
    origin = Origin.of(said[0]["id"])
    due = expected_key(origin.tenant, origin.question)
    lives = float(told["ttl"])
    beyond = STALE if origin.lives == TENANTS[origin.tenant] else 0
    checks = {
        f"it is the answer to {origin}, whose key is {due.text}": key == due.text,
        f"its digest is {told['digest']!r}": told["digest"] == due.digest.encode(),
        f"nobody was to keep the answer to {origin}": origin.wish.name != "no-store" and origin.wish.ttl != 0,
        f"its ttl is {lives} s, for {origin}": lives == origin.lives,
        f"it stays for another {left} ms, with a ttl of {lives} s": left <= (lives + beyond) * 1000,
        f"its model is {told['model']!r}": told["model"] == origin.question.model.encode(),
        f"its engine is {told['engine']!r}": told["engine"].startswith(told["model"]),
        f"its task is {told['task']!r}": told["task"] in (b"chat", b"code"),
        "its counts are none": all(int(told[name]) >= 0 for name in _COUNTS) and float(told["created"]) > 0,
    }
    flaws = [flaw for flaw, well in checks.items() if not well]
    if "body" in told:
        flaws += flaws_of_body(origin, said[0], kept=True)
        if "frames" in told:
            flaws.append("it has two forms, of which nobody wants both")
    else:
        flaws += flaws_of_events(origin, said, usage=False, kept=True)
        if not told["frames"].endswith(b"\n\n"):
            flaws.append(f"its frames have no end: {told['frames'][-300:]!r}")
        if not msgspec.json.decode(told["usage_frame"].removeprefix(b"data: "))["usage"]:
            flaws.append(f"its usage is none: {told['usage_frame']!r}")
    return flaws
