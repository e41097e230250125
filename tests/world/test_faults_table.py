"""Every fault of an engine, and what the client receives: the table of docs/resilience.md, row by row."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.fault_timeouts import timeouts_for
from tests.support.paths import ROOT
from tests.support.router_server import router_config
from tests.support.sse_answers import DONE_FRAME, chat_text, parse_events
from tests.support.streaming_client import open_stream
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

PAGE = ROOT / "docs" / "resilience.md"

Fault = dict[str, Any]

FAULTS: dict[str, Fault | None] = {
    "connection refused": None,
    "reset before the headers": {"fault": "drop"},
    "reset before the first token": {"fault": "drop", "after": 0},
    "reset after the first token": {"fault": "drop", "after": 3},
    "closed after the first token": {"fault": "drop", "after": 3, "how": "close"},
    "status 400": {"fault": "status", "code": 400},
    "status 400 with 100 kB": {"fault": "status", "code": 400, "bytes": 100_000},
    "status 404": {"fault": "status", "code": 404},
    "status 501": {"fault": "status", "code": 501},
    "status 429": {"fault": "status", "code": 429},
    "status 429 with Retry-After: 7": {"fault": "status", "code": 429, "retry_after": "7"},
    "status 500": {"fault": "status", "code": 500},
    "status 503": {"fault": "status", "code": 503},
    "error frame before any text": {"fault": "error", "after": 0},
    "error frame after the first token": {"fault": "error", "after": 3},
    "error frame with code 400 before any text": {"fault": "error", "after": 0, "code": 400},
    "error frame with code 400 after the first token": {"fault": "error", "after": 3, "code": 400},
    "event over 8 MiB before any text": {"fault": "event", "bytes": 9 << 20},
    "event over 8 MiB after the first token": {"fault": "event", "bytes": 9 << 20, "after": 3},
    "broken JSON": {"fault": "malformed"},
    "stall before the first token": {"fault": "stall", "after": 0},
    "stall after the first token": {"fault": "stall", "after": 3},
    "first token too late": {"fault": "ttft", "ms": 60_000},
    "process ends before the first token": {"fault": "exit", "after": 0},
    "process ends after the first token": {"fault": "exit", "after": 3},
    "KV cache full": {"fault": "kv", "usage": 0.95},
}
"""The simulator's faults by the table's words; None stands for an engine that is down."""


def table() -> Iterator[tuple[str, str, bool, str]]:
    """The cells of the table: the fault, its place, whether it is a stream, and what the client receives."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| fault |"))
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return
        fault, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for number, cell in enumerate(cells):
            yield fault, "one" if number < 2 else "all", number % 2 == 1, cell


def seen(answer: httpx.Response, *, continued: bool = False) -> str:
    """What the client received, in the table's words. `continued`: a second engine went on with its stream."""
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "engine-" not in error["message"], "addresses of the internal network are not revealed"
        assert ("retry-after" in answer.headers) is (answer.status_code == 503)
        return f"{answer.status_code} `{error['code']}`" if isinstance(error["code"], str) else f"{answer.status_code}"
    if answer.headers["content-type"] != "application/json" and not answer.content.endswith(DONE_FRAME):
        *well, last = parse_events(answer.content)
        assert "error" in last
        assert not any("error" in event for event in well)
        assert b"[DONE]" not in answer.content
        return "an error event"
    assert chat_text(answer)
    if continued:
        return "another engine goes on"
    return "another engine" if answer.headers["x-engine"] == "second" else "the engine itself"


async def two_engines(world: World, fault: Fault | None, where: str) -> dict[str, tuple[str, str, str]]:
    """Two engines of llama, of which one or both have the fault, as `router_config` takes them."""
    urls = []
    for has_it in (True, where == "all"):
        engine = await world.engine()
        if has_it and fault is not None:
            await engine.set_faults(fault)
        elif has_it:
            engine.kill()
        urls.append(engine.url)
    return {"first": ("llama", "chat", urls[0]), "second": ("llama", "any", urls[1])}


def test_the_table_lists_every_fault_once() -> None:
    assert [fault for fault, where, stream, _ in table() if where == "one" and stream] == list(FAULTS)


@pytest.mark.parametrize("where", ["one", "all"])
@pytest.mark.parametrize("fault", FAULTS)
@scenario
async def test_the_client_sees_what_the_table_says(world: World, fault: str, where: str) -> None:
    expected = {stream: cell for name, place, stream, cell in table() if (name, place) == (fault, where)}
    collected = {}
    for stream in (False, True):
        engines = await two_engines(world, FAULTS[fault], where)
        timeouts = timeouts_for(FAULTS[fault], total=not stream)
        router = await world.router(router_config(world.redis.url, engines, rest=timeouts))
        answer = await router.chat("The sea?", stream=stream, headers={"cache-control": "no-store"})
        metrics = await router.metrics()
        continued = any(
            name.startswith("llm_continuations_total{") and 'result="continued"' in name for name in metrics
        )
        collected[stream] = seen(answer, continued=continued)
        await router.stop()
    assert collected == expected


@scenario
async def test_another_engine_goes_on_with_the_stream_of_an_engine_that_ends(world: World) -> None:
    dying_engine, other = await world.engine(), await world.engine()
    both = {"first": ("llama", "chat", dying_engine.url), "second": ("llama", "any", other.url)}
    router = await world.router(router_config(world.redis.url, both))
    await dying_engine.set_faults({"fault": "stall", "after": 3})
    complete = asyncio.create_task(router.chat("The land?"))
    async with open_stream(router, "The sea?") as answer:
        await answer.read_until_text(" ")
        await dying_engine.stats(in_flight=2)
        dying_engine.kill()
        assert not any("error" in event for event in parse_events(await answer.read_to_end()))
        assert answer.received.endswith(DONE_FRAME)
    assert seen(await complete) == "another engine"
    after = await router.chat("The sea?", stream=True)
    assert (seen(after), after.headers["x-cache"]) == ("another engine", "MISS")
    assert await is_idle(router)


async def is_idle(router: WorldRouter) -> bool:
    page = (await router.http.get("/healthz")).json()
    return not any(engine["in_flight"] for engine in page["engines"].values())
