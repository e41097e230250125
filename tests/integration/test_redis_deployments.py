"""A real router with every Redis deployment: entries are found, invalidated, and survive a failover."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from router.api.access.auth import hash_key
from router.checks.check import check_all
from router.settings import parse
from tests.support.conversations import PREVIOUS_NOT_FOUND, ask, id_of, texts_of
from tests.support.redis_deployments import Cluster, Deployment, SentinelGroup, StartDeployment
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, RouterServer, router_config
from tests.support.waiting import eventually

MAX_SECONDS = 10.0
"""Of a request: none hangs until a timeout of the engine. On a busy machine, each process may pause for seconds."""

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
PROMPTS = [f"What of the sea, number {number}?" for number in range(12)]


async def cached(router: RouterServer, prompt: str) -> str:
    answer = await router.chat(prompt)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-cache"])


async def are_all(router: RouterServer, wanted: str, prompts: list[str] = PROMPTS) -> bool:
    return {await cached(router, prompt) for prompt in prompts} == {wanted}


async def admin(router: RouterServer, method: str, page: str, **fields: Any) -> Any:
    sent: dict[str, Any] = {"params": fields} if method == "GET" else {"json": fields}
    headers = {"authorization": "Bearer admin-key"}
    answer = await router.http.request(method, f"/admin/cache/{page}", headers=headers, **sent)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def key_of(router: RouterServer, prompt: str) -> str:
    return str((await router.chat(prompt)).headers["x-cache-key"])


async def test_an_entry_stored_by_one_router_is_served_by_another_until_it_is_deleted(
    deployment: Deployment, engines: EngineSet
) -> None:
    text = router_config(deployment.url, engines.as_config())
    async with RouterServer(text) as first, RouterServer(text) as second:
        prompt = f"The sea at {deployment.url}?"
        assert await cached(first, prompt) == "MISS"
        await eventually(lambda: _serves(second, prompt))
        await eventually(lambda: _gives_without_redis(second, deployment, prompt))
        key = await key_of(second, prompt)
        assert await (await deployment.primary_of_key(key)).command("DEL", key) == 1
        await eventually(lambda: _is_missed(second, prompt))


async def test_an_administrator_sees_and_purges_entries_and_every_router_drops_them(
    deployment: Deployment, engines: EngineSet
) -> None:
    text = router_config(deployment.url, engines.as_config(), rest=ADMIN)
    async with RouterServer(text) as first, RouterServer(text) as second:
        await eventually(lambda: are_all(first, "HIT"))
        await eventually(lambda: are_all(second, "HIT"))
        listed = await admin(first, "GET", "entries", limit=100)
        keys = {await key_of(first, prompt) for prompt in PROMPTS}
        assert keys <= {entry["key"] for entry in listed["entries"]}
        assert (await admin(first, "GET", "stats"))["total"]["entries"] >= len(keys)
        assert (await admin(first, "POST", "purge", tenant="default"))["entries"] >= len(keys)
        assert await cached(first, PROMPTS[0]) == "MISS"
        await eventually(lambda: _is_missed(second, PROMPTS[1]))


async def test_a_conversation_goes_on_at_another_router_until_it_is_purged(
    deployment: Deployment, engines: EngineSet
) -> None:
    text = router_config(deployment.url, engines.as_config(), rest=f"{ADMIN}[responses]\nmax_per_tenant = 6\n")
    async with RouterServer(text) as first, RouterServer(text) as second:
        ids: list[str] = []
        for number in range(6):
            router = (first, second)[number % 2]
            ids.append(id_of(await ask(router, f"{number}?", ids[-1] if ids else None, stream=number % 3 == 0)))
        listed = await first.http.get(f"/v1/responses/{ids[-1]}/input_items?order=asc")
        assert texts_of(listed.json()["data"])[::2] == [f"{number}?" for number in range(6)]
        references: Any = [{"type": "item_reference", "id": item["id"]} for item in listed.json()["data"][1::2]]
        assert (await ask(second, references, store=False)).status_code == 200
        await ask(second, "More?")
        await eventually(lambda: _has_left(first, ids))
        # How many there are depends on the tests before it.
        assert (await admin(first, "POST", "purge", tenant="default"))["responses"] >= 1
        answer = await ask(second, "And?", ids[-1])
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, PREVIOUS_NOT_FOUND)
        answer = await ask(second, references)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "item_not_found")


async def _has_left(router: RouterServer, ids: list[str]) -> bool:
    """One of those that were used last before the last one; they were used at once."""
    found = [(await router.http.get(f"/v1/responses/{id_}")).status_code for id_ in ids]
    return sorted(found) == [200] * (len(ids) - 1) + [404]


async def test_the_status_has_both_routers_their_traffic_and_the_latest_requests(
    deployment: Deployment, engines: EngineSet
) -> None:
    text = router_config(deployment.url, engines.as_config(), rest=ADMIN)
    async with RouterServer(text) as first:
        async with RouterServer(text) as second:

            async def status_of_both() -> Any:
                status = await admin(first, "GET", "../status")
                return status if len(status["routers"]) == 2 else None

            # The router waits for the other one a little longer than a second, in which a busy machine may pause.
            status = await eventually(status_of_both)
            assert status["redis"]["up"]
            assert status["redis"]["keys"] >= 1
            await cached(second, PROMPTS[0])

            async def listed() -> bool:
                return bool((await admin(first, "GET", "../requests"))["requests"])

            await eventually(listed)
        # The second has ended, and sent what it had counted.
        rows = (await admin(first, "GET", "../history", minutes=2))["minutes"]
        assert sum(row["requests"] for row in rows) >= 1


async def test_check_reports_that_redis_answers(deployment: Deployment, engines: EngineSet) -> None:
    finding, *others = await check_all(parse(router_config(deployment.url, engines.as_config()), {}))
    assert (finding.what, finding.level) == ("redis", "ok")
    assert finding.note.startswith("version ")
    assert finding.note.endswith(", 3 primaries") == isinstance(deployment, Cluster)
    # With the least rights, too; only that the servers have no maxmemory is a finding.
    about_redis = [other for other in others if other.what.startswith("redis") and other.level != "ok"]
    assert all("maxmemory" in other.note for other in about_redis), about_redis


async def test_no_request_fails_while_sentinel_promotes_another_server(
    start_own: StartDeployment, engines: EngineSet
) -> None:
    group: SentinelGroup = await start_own("sentinel")
    async with RouterServer(router_config(group.url, engines.as_config())) as router, Requests(router) as requests:
        await eventually(lambda: are_all(router, "HIT"))
        old = await group.primary_of_key("")
        await group.enable_failover()
        old.kill()
        await eventually(lambda: _replaced(group, old))
        await eventually(lambda: are_all(router, "HIT"))
    assert requests.failures == []
    assert requests.slowest < MAX_SECONDS


async def test_no_request_fails_while_a_cluster_moves_slots_and_loses_a_primary(
    start_own: StartDeployment, engines: EngineSet
) -> None:
    cluster: Cluster = await start_own("cluster")
    async with RouterServer(router_config(cluster.url, engines.as_config())) as router, Requests(router) as requests:
        await eventually(lambda: are_all(router, "HIT"))
        keys = [await key_of(router, prompt) for prompt in PROMPTS]
        source = await cluster.primary_of_key(keys[0])
        target = next(server for server in [await cluster.primary_of_key(key) for key in keys] if server is not source)
        for slot in {cluster.slot(key) for key in keys if await cluster.primary_of_key(key) is source}:
            await cluster.move_slot(slot, source, target)
        assert await are_all(router, "HIT"), "a moved key is found at its new server"
        assert requests.failures == []
        await cluster.enable_failover()
        target.kill()
        await eventually(lambda: _is_held_by_another(cluster, keys[0], target))
        await eventually(lambda: are_all(router, "HIT"))
    assert requests.failures == []
    assert requests.slowest < MAX_SECONDS


class Requests:
    """Repeats a few questions continuously, with new ones among them."""

    def __init__(self, router: RouterServer) -> None:
        self._router = router
        self._stack = AsyncExitStack()
        self._going = True
        self.failures: list[str] = []
        self.slowest = 0.0

    async def __aenter__(self) -> "Requests":
        self._task = asyncio.ensure_future(self._ask())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._going = False
        await self._task

    async def _ask(self) -> None:
        clock = asyncio.get_running_loop().time
        number = 0
        while self._going:
            number += 1
            started = clock()
            answers = await asyncio.gather(
                *(self._router.chat(prompt) for prompt in PROMPTS), self._router.chat(f"And number {number} of all?")
            )
            self.slowest = max(self.slowest, clock() - started)
            self.failures += [answer.text for answer in answers if answer.status_code != 200]


async def _serves(router: RouterServer, prompt: str) -> bool:
    return await cached(router, prompt) == "HIT"


async def _gives_without_redis(router: RouterServer, deployment: Deployment, prompt: str) -> bool:
    """Whether the router has it in its local cache, so that it does not need Redis for it."""
    key = await key_of(router, prompt)
    holder = await deployment.primary_of_key(key)
    before = await _hits(holder)
    return await cached(router, prompt) == "HIT" and await _hits(holder) == before


async def _hits(server: RedisServer) -> int:
    stats: dict[str, Any] = await server.command("INFO", "commandstats")
    return int(stats.get("cmdstat_hmget", {}).get("calls", 0))


async def _is_missed(router: RouterServer, prompt: str) -> bool:
    return await cached(router, prompt) == "MISS"


async def _replaced(group: SentinelGroup, old: RedisServer) -> bool:
    return await group.primary_of_key("") is not old


async def _is_held_by_another(cluster: Cluster, key: str, old: RedisServer) -> bool:
    return await cluster.primary_of_key(key) is not old
