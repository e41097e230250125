"""X-Max-TTFT: a request is refused at once if no engine is expected to begin in time."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable
from typing import Any, NamedTuple

import pytest

from tests.support.router_server import LLAMA, MISTRAL, chat_body, router_config, with_fallback
from tests.support.waiting import eventually
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario

SPEED = 1000.0  # prompt tokens per second
SLOW: dict[str, Any] = {"prefill_tokens_per_second": SPEED, "max_model_len": 65536, "kv_blocks": 16384}
LIMITED = '[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\nmax_ttft = "1ms"\n[[tenant]]\nname = "free"\n'


def text(name: str, words: int = 200) -> str:
    """A prompt that shares no piece with another one: about a second."""
    return " ".join(f"{name}{number}" for number in range(words))


class Answer(NamedTuple):
    status: int
    headers: Any
    ttft: float
    error: Any = None


async def ask(router: WorldRouter, prompt: str, max_ttft: str | None = None, **headers: str) -> Answer:
    """A stream; `ttft`: seconds to its first bytes."""
    started = time.perf_counter()
    limit = {"x-max-ttft": max_ttft} if max_ttft is not None else {}
    body = chat_body(prompt, stream=True, max_tokens=4)
    renamed = {name.replace("_", "-"): value for name, value in headers.items()}
    async with router.http.stream("POST", "/v1/chat/completions", json=body, headers=limit | renamed) as response:
        ttft = None
        parts = []
        async for part in response.aiter_bytes():
            ttft = ttft or time.perf_counter() - started
            parts.append(part)
    error = None if response.status_code == 200 else json.loads(b"".join(parts))["error"]
    return Answer(response.status_code, response.headers, ttft or 0.0, error)


async def start(world: World, rest: str = "", **models: str) -> tuple[WorldRouter, dict[str, WorldEngine]]:
    """Engines whose speed the router knows. `models`: by their names; mistral is the fallback of llama."""
    served = {"llama": LLAMA, "mistral": MISTRAL}
    engines = {name: await world.engine(model=served[model], **SLOW) for name, model in models.items()}
    table = {name: (model, "any", engines[name].url) for name, model in models.items()}
    config = router_config(world.redis.url, table, rest=rest)
    return await world.router(with_fallback(config) if "mistral" in models.values() else config), engines


async def learn(router: WorldRouter, count: int, **headers: str) -> None:
    """Prompts with nothing in front of them, one for each engine: each goes where the least was stored lately."""
    for number in range(count):
        assert (await ask(router, text(f"learn{number}-"), "60s", **headers)).status == 200


@scenario
async def test_of_a_burst_those_are_refused_that_would_wait_too_long_and_served_when_they_were_told_to_come(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    router, engines = await start(world, a="llama", b="llama")
    await learn(router, 4)
    limit = 2.5

    async def client(number: int) -> list[Answer]:
        """Comes back when it is told to."""
        answers = [await ask(router, text(f"burst{number}-"), f"{limit}s")]
        while answers[-1].status != 200 and len(answers) < 4:
            await asyncio.sleep(int(answers[-1].headers["retry-after"]))
            answers.append(await ask(router, text(f"burst{number}-"), f"{limit}s"))
        return answers

    with caplog.at_level(logging.INFO, "roundhouse.access"):
        clients = await asyncio.gather(*(client(number) for number in range(10)))
        await eventually(lambda: len(caplog.messages) == sum(map(len, clients)))
    first = [answers[0].status for answers in clients]
    assert 3 <= first.count(200) <= 5
    assert first.count(429) == 10 - first.count(200)
    for answers in clients:
        assert [answer.status for answer in answers] in ([200], [429, 200])
        assert answers[-1].ttft < limit * 1.15
        for refused in answers[:-1]:
            assert refused.ttft < 0.1  # at once
            assert refused.error["code"] == "max_ttft_exceeded"
            assert refused.error["type"] == "rate_limit_error"
    told = sorted(int(answers[0].headers["retry-after"]) for answers in clients if len(answers) > 1)
    assert told[0] == 1 < told[-1]
    rejected = 'llm_requests_rejected_total{reason="max_ttft_exceeded",tenant="default"}'
    assert (await router.metrics())[rejected] == first.count(429)
    assert sum("error=max_ttft_exceeded" in line for line in caplog.messages) == first.count(429)
    assert sum([(await engine.stats())["started"] for engine in engines.values()]) == 10 + 4


@scenario
async def test_the_only_engine_of_a_model_is_judged_too(world: World) -> None:
    router, _ = await start(world, a="llama")
    await learn(router, 2)
    busy = asyncio.create_task(ask(router, text("busy", 600), "60s"))
    await asyncio.sleep(0.1)
    refused = await ask(router, text("sea"), "2s")
    assert (refused.status, refused.ttft < 0.1) == (429, True)
    assert (await ask(router, text("short", 2), "60s")).status == 200
    assert (await busy).status == 200
    assert (await ask(router, text("sea"), "2s")).status == 200


@scenario
async def test_a_prompt_that_takes_longer_than_the_limit_alone_is_refused_by_an_idle_engine(world: World) -> None:
    router, _ = await start(world, a="llama", b="llama")
    await learn(router, 4)
    refused = await ask(router, text("long", 2000), "500ms")
    assert (refused.status, refused.headers["retry-after"]) == (429, "60")
    assert "not even an idle one" in refused.error["message"]
    # What an engine holds takes no time.
    assert (await ask(router, text("long", 2000))).status == 200
    assert (await ask(router, text("long", 2000) + " And now?", "500ms")).status == 200


@scenario
async def test_engines_of_which_nothing_is_known_get_the_request(world: World) -> None:
    router, _ = await start(world, a="llama", b="llama")
    assert (await ask(router, text("long", 2000), "1ms")).status == 200


@scenario
async def test_a_fallback_that_is_in_time_answers(world: World) -> None:
    router, _ = await start(world, a="llama", c="mistral")
    await learn(router, 2)
    busy = asyncio.create_task(ask(router, text("busy", 900), "60s"))
    await asyncio.sleep(0.1)
    answer = await ask(router, text("sea"), "2s")
    assert (answer.status, answer.headers["x-fallback"], answer.headers["x-engine"]) == (200, "mistral", "c")
    assert (await busy).headers["x-engine"] == "a"
    assert "x-fallback" not in (await ask(router, text("river"), "2s")).headers


@scenario
async def test_hits_and_followers_are_served_whatever_the_limit_is(world: World) -> None:
    router, _ = await start(world, a="llama", b="llama")
    await learn(router, 4)
    assert (await ask(router, text("sea"), "1ms")).status == 429
    first, second = await asyncio.gather(ask(router, text("sea")), _soon(ask(router, text("sea"), "1ms")))
    assert (first.status, first.headers["x-cache"]) == (200, "MISS")
    assert (second.status, second.headers["x-cache"]) == (200, "COALESCED")
    hit = await ask(router, text("sea"), "1ms")
    assert (hit.status, hit.headers["x-cache"]) == (200, "HIT")


async def _soon(answer: Awaitable[Answer]) -> Answer:
    await asyncio.sleep(0.2)
    return await answer


@scenario
async def test_a_client_without_a_limit_is_not_refused_with_one_that_has_one(world: World) -> None:
    router, engines = await start(world, a="llama", b="llama")
    table = {name: ("llama", "any", engine.url) for name, engine in engines.items()}
    other = await world.router(router_config(world.redis.url, table))
    await learn(router, 4)
    limited, here, there = await asyncio.gather(
        ask(router, text("sea"), "1ms"), ask(router, text("sea")), ask(other, text("sea"))
    )
    assert (here.status, there.status) == (200, 200)
    # Which of them comes first depends on the network.
    assert limited.status == 429 or limited.headers["x-cache"] == "COALESCED"


@scenario
async def test_a_tenant_has_a_limit_of_its_own_and_the_header_wins(world: World) -> None:
    router, _ = await start(world, a="llama", b="llama", rest=LIMITED)
    await learn(router, 4, x_tenant_id="free")
    assert (await ask(router, text("sea"), x_tenant_id="acme")).status == 429
    assert (await ask(router, text("sea"), "60s", x_tenant_id="acme")).status == 200
    assert (await ask(router, text("river"), x_tenant_id="free")).status == 200


@scenario
async def test_without_an_engine_that_takes_work_the_request_fails_as_ever(world: World) -> None:
    router, engines = await start(world, a="llama", b="llama")
    await learn(router, 4)
    for engine in engines.values():
        engine.kill()

    async def both_are_down() -> bool:
        states = (await router.http.get("/healthz")).json()["engines"].values()
        return all(each["state"] == "down" for each in states)

    await eventually(both_are_down)
    assert (await ask(router, text("sea"), "1ms")).status in (502, 503)


@scenario
async def test_a_limit_that_cannot_be_read_is_an_error(world: World) -> None:
    router, _ = await start(world, a="llama")
    refused = await ask(router, "The sea?", "soon")
    assert (refused.status, refused.error["param"], refused.error["type"]) == (
        400,
        "X-Max-TTFT",
        "invalid_request_error",
    )


@scenario
async def test_an_engine_without_a_free_slot_begins_when_another_request_ends(world: World) -> None:
    engine = await world.engine(**SLOW)
    table = {"a": ("llama", "any", engine.url)}
    text_ = router_config(world.redis.url, table).replace('task = "any"', 'task = "any"\nmax_in_flight = 1')
    router = await world.router(text_)
    await learn(router, 4)  # one ends each half a second
    await engine.set_faults({"fault": "tps", "rate": 0.5, "times": 1})
    busy = asyncio.create_task(ask(router, text("busy"), "60s"))
    await asyncio.sleep(2)  # it has had its first token, so nothing is in front of the next prompt but the slot
    refused = await ask(router, text("sea"), "1s")
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert (await busy).status == 200
    assert (await ask(router, text("sea"), "1s")).status == 200


@scenario
async def test_a_pause_without_requests_says_nothing_of_when_a_slot_will_be_free(world: World) -> None:
    engine = await world.engine(**SLOW)
    table = {"a": ("llama", "any", engine.url)}
    text_ = router_config(world.redis.url, table).replace('task = "any"', 'task = "any"\nmax_in_flight = 1')
    router = await world.router(text_)
    await learn(router, 4)
    await asyncio.sleep(240)  # 60 for each of the four
    busy = asyncio.create_task(ask(router, text("busy", 1200), "60s"))  # about 6 seconds
    await asyncio.sleep(0.1)
    waiting = await ask(router, text("sea"), "30s")
    assert waiting.status == 200
    assert waiting.ttft < 30
    assert (await busy).status == 200


@scenario
async def test_an_engine_that_was_slow_once_is_tried_again_after_minutes(world: World) -> None:
    router, engines = await start(world, a="llama")
    await engines["a"].set_faults({"fault": "ttft", "ms": 8000, "times": 1})
    await learn(router, 1)
    assert (await ask(router, text("sea"), "3s")).status == 429
    await asyncio.sleep(240)
    assert (await ask(router, text("sea"), "3s")).status == 200
    assert (await ask(router, text("river"), "3s")).status == 200
