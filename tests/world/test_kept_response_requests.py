"""GET and DELETE of kept responses as requests: limits, the log, metrics, and the memory of what is read."""

import asyncio
import json
import logging

import pytest

from router.core.api_keys import hash_key
from router.core.cache.redis_keys import response_key
from tests.support.conversations import RepeatingEngine, ask, id_of
from tests.support.router_server import router_config
from tests.support.typed_answers import RESPONSES
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

KEY = {"authorization": "Bearer sk-acme"}


async def start(world: World, limits: str = "", router: str = "", log_format: str = "text") -> WorldRouter:
    engine = await world.scripted_engine(script=RepeatingEngine())
    tenant = f'[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"sk-acme")}"]\n{limits}\n'
    rest = f'[auth]\nmode = "keys"\n{tenant}'
    return await world.router(
        router_config(
            world.redis.url, {"one": ("llama", "any", engine.url)}, rest=rest,
            router=f'{router}\nlog_format = "{log_format}"',
        )
    )  # fmt: skip


def paths_of(id_: str) -> list[tuple[str, str]]:
    path = f"{RESPONSES}/{id_}"
    return [("GET", path), ("GET", f"{path}/input_items"), ("DELETE", path)]


@scenario
async def test_each_counts_for_the_limit_of_its_tenant(world: World) -> None:
    router = await start(world, "requests_per_minute = 3")
    id_ = id_of(await ask(router, "The sea?", key="sk-acme"))
    for left in ("1", "0"):
        answer = await router.http.get(f"{RESPONSES}/{id_}", headers=KEY)
        assert (answer.status_code, answer.headers["x-ratelimit-remaining-requests"]) == (200, left)
    for method, path in paths_of(id_):
        answer = await router.http.request(method, path, headers=KEY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(answer.headers["retry-after"]) <= 61
    assert (await ask(router, "The sky?", key="sk-acme")).status_code == 429
    await asyncio.sleep(61)
    for method, path in paths_of(id_):
        assert (await router.http.request(method, path, headers=KEY)).status_code == 200


@scenario
async def test_a_concurrent_request_ends_with_its_response(world: World) -> None:
    router = await start(world, "concurrent_requests = 1")
    id_ = id_of(await ask(router, "The sea?", key="sk-acme"))
    for method, path in paths_of(id_) * 2:
        assert (await router.http.request(method, path, headers=KEY)).status_code in (200, 404)


@scenario
async def test_each_has_a_line_in_the_log_and_the_id_of_its_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    router = await start(world, log_format="json")
    id_ = id_of(await ask(router, "The sea?", key="sk-acme"))
    requests = [*paths_of(id_), ("GET", f"{RESPONSES}/{id_}")]
    with caplog.at_level(logging.INFO, "roundhouse.access"):
        for number, (method, path) in enumerate(requests):
            answer = await router.http.request(method, path, headers={**KEY, "x-request-id": f"mine-{number}"})
            assert answer.headers["x-request-id"] == f"mine-{number}"
        answer = await router.http.get(f"{RESPONSES}/{id_}")
        await eventually(lambda: _are(len(caplog.messages) == 5))
    lines = [json.loads(line) for line in caplog.messages]
    facts = [(line["request"], line["tenant"], line["path"], line["status"], line["outcome"]) for line in lines]
    path = "/v1/responses/{id}"
    assert facts == [
        ("mine-0", "acme", f"GET {path}", 200, "complete"),
        ("mine-1", "acme", f"GET {path}/input_items", 200, "complete"),
        ("mine-2", "acme", f"DELETE {path}", 200, "complete"),
        ("mine-3", "acme", f"GET {path}", 404, "refused"),
        (answer.headers["x-request-id"], "default", f"GET {path}", 401, "refused"),
    ]
    assert all(line["ms"] >= 0 for line in lines)
    assert answer.headers["www-authenticate"] == "Bearer"
    counted = [(name, value) for name, value in (await router.metrics()).items() if "llm_requests_total{" in name]
    own = [value for name, value in counted if 'tenant="acme"' in name and 'model="unknown"' in name]
    assert sum(own) == 4


async def _are(value: bool) -> bool:
    return value


@scenario
async def test_what_is_read_counts_for_the_memory_of_bodies(world: World) -> None:
    router = await start(world, router='max_body = "8KiB"\nmax_bodies = "8KiB"')
    id_ = id_of(await ask(router, "x" * 2000, key="sk-acme"))
    await world.redis.client.hset(response_key("acme", id_), "size", 8193)
    answer = await router.http.get(f"{RESPONSES}/{id_}/input_items", headers=KEY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "bodies_full")
    await world.redis.client.hset(response_key("acme", id_), "size", 5000)
    for _ in range(3):
        assert (await router.http.get(f"{RESPONSES}/{id_}/input_items", headers=KEY)).status_code == 200
    await world.redis.client.hset(response_key("acme", id_), "response", "{" + " " * 8192 + "}")
    answer = await router.http.get(f"{RESPONSES}/{id_}", headers=KEY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "bodies_full")
