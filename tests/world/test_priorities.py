"""The priority of a tenant's requests: within the tenant's bound, to engines that schedule by it, and in the queue."""

import asyncio
import json
from functools import partial
from typing import Any

from tests.support.router_server import chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.waiting import eventually
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import World, scenario

TENANTS = """
[auth]
mode = "header"
[[tenant]]
name = "batch"
highest_priority = 10
[[tenant]]
name = "urgent"
highest_priority = -10
priority = -5
[[tenant]]
name = "free"
"""


async def start(world: World) -> tuple[WorldRouter, WorldEngines]:
    """A router whose engines of llama have the priority scheduler."""
    engines = await world.engines()
    text = router_config(world.redis.url, engines.as_config(), rest=TENANTS)
    scheduling = text.replace('served_model = "meta-llama', 'scheduling = "priority"\nserved_model = "meta-llama')
    return await world.router(scheduling), engines


async def sent_priority(
    router: WorldRouter, engines: WorldEngines, tenant: str, path: str = "/v1/chat/completions", **fields: Any
) -> tuple[int | None, str | None]:
    """The field and the header as the engine got them."""
    body = {**chat_body("How is the sea?", max_tokens=16), **fields}
    headers = {"x-tenant-id": tenant, "cache-control": "no-store"}
    assert (await router.http.post(path, json=body, headers=headers)).status_code == 200
    engine = engines.mistral if fields.get("model") == "mistral" else engines.chat
    request = (await engine.stats())["requests"][-1]
    return json.loads(request["body"]).get("priority"), request["headers"].get("x-vllm-priority")


@scenario
async def test_an_engine_with_the_priority_scheduler_gets_what_the_tenant_may_have(world: World) -> None:
    router, engines = await start(world)
    for tenant, asked, sent in (
        ("batch", None, 10), ("batch", -3, 10), ("batch", 20, 20), ("urgent", None, -5), ("urgent", -100, -10),
        ("urgent", 3, 3), ("free", None, None), ("free", -1, None), ("free", 2, 2),
    ):  # fmt: skip
        fields: dict[str, Any] = {"priority": asked} if asked is not None else {}
        header = str(sent) if sent else None
        assert await sent_priority(router, engines, tenant, **fields) == (sent, header), (tenant, asked)


@scenario
async def test_the_header_has_it_for_messages_whose_requests_have_no_such_field_in_vllm(world: World) -> None:
    router, engines = await start(world)
    assert (await sent_priority(router, engines, "batch", "/v1/messages"))[1] == "10"


@scenario
async def test_other_engines_do_not_get_the_field(world: World) -> None:
    router, engines = await start(world)
    for tenant in ("batch", "urgent", "free"):
        assert await sent_priority(router, engines, tenant, model="mistral", priority=4) == (None, None)


@scenario
async def test_the_priority_is_not_part_of_the_key(world: World) -> None:
    router, _ = await start(world)
    caches = [
        (await router.chat("The sea?", headers={"x-tenant-id": "free"}, priority=priority)).headers["x-cache"]
        for priority in (1, 2)
    ]
    assert caches == ["MISS", "HIT"]


@scenario
async def test_a_wrong_priority_is_refused(world: World) -> None:
    router, _ = await start(world)
    answer = await router.chat("The sea?", headers={"x-tenant-id": "free"}, priority="high")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "priority")


@scenario
async def test_the_queue_of_the_router_serves_the_highest_priority_first(world: World) -> None:
    pieces = (ROLE_FRAME + chat_frame(content="one"), chat_frame(content="", finish="stop") + DONE_FRAME)
    # The last table is the engine's.
    engine = await world.scripted_engine(*pieces, paced=True)
    tables = {"scripted": ("llama", "any", engine.url)}
    router = await world.router(router_config(world.redis.url, tables, rest="max_in_flight = 1\n" + TENANTS))
    asked = []
    requests: list[tuple[str, dict[str, int]]] = [
        ("free", {}), ("batch", {}), ("free", {"priority": 5}), ("free", {}), ("urgent", {"priority": 1}),
        ("urgent", {}),
    ]  # fmt: skip
    for number, (tenant, fields) in enumerate(requests):
        headers = {"x-tenant-id": tenant}
        asked.append(asyncio.ensure_future(router.chat(str(number), headers=headers, stream=True, **fields)))

        async def is_queued(waiting: int = number) -> bool:
            return len(engine.bodies) == 1 and (await router.metrics())['llm_requests_queued{model="llama"}'] == waiting

        await eventually(is_queued)

    def is_sent(count: int) -> bool:
        return len(engine.bodies) == count

    for count in range(1, 7):
        await eventually(partial(is_sent, count))
        engine.chunk_permits.release()
    await asyncio.gather(*asked)
    order = [json.loads(body)["messages"][0]["content"] for body in engine.bodies]
    assert order == ["0", "5", "3", "4", "2", "1"]
