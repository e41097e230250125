"""What the workers of one router share, through real connections to each of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.router_server import chat_body, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, chat_text
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

FOREVER = httpx.Limits(keepalive_expiry=None)
KEPT = 'workers = 2\nkeep_alive = "1h"'
WORKERS = 2
PROMPTS = 100
ANSWER = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="two", finish="stop") + DONE_FRAME)
ADMIN = {"authorization": "Bearer admin"}
REST = f"""
[auth]
admin_keys = ["{hash_key(b"admin")}"]
mode = "header"
[breaker]
failures = 2
cooldown = "1h"
[[tenant]]
name = "free"
[[tenant]]
name = "slow"
concurrent_requests = 1
[[tenant]]
name = "few"
requests_per_minute = 4
"""


class Workers:
    """A router with two workers, a connection to each of them, and its engine."""

    def __init__(self, router: RouterProcess, engine: ScriptedEngine, clients: list[httpx.AsyncClient]) -> None:
        self.router = router
        self.engine = engine
        self.clients = clients

    async def chat(self, worker: int, prompt: str, *, tenant: str = "free", **headers: str) -> httpx.Response:
        body = chat_body(prompt, stream=True)
        return await self.clients[worker].post(
            "/v1/chat/completions", json=body, headers={"x-tenant-id": tenant, **headers}
        )

    async def answers(self, prompt: str, cache: str) -> bool:
        """Whether each worker answers the prompt with this X-Cache."""
        found = [await self.chat(worker, prompt) for worker in range(WORKERS)]
        return [answer.headers["x-cache"] for answer in found] == [cache] * WORKERS

    async def engine_rows(self) -> list[dict[str, Any]]:
        """The engine as each worker sees it."""
        pages = [await client.get("/admin/engines", headers=ADMIN) for client in self.clients]
        return [page.raise_for_status().json()["engines"][0] for page in pages]

    async def admin(self, worker: int, path: str, **body: Any) -> None:
        (await self.clients[worker].post(path, json=body, headers=ADMIN)).raise_for_status()


async def connections(router: RouterProcess, stack: AsyncExitStack) -> list[httpx.AsyncClient]:
    """A client to each worker. Each keeps its one connection, which belongs to one process."""
    found: dict[int, httpx.AsyncClient] = {}

    async def all_found() -> bool:
        worker, client = await connect(router, stack)
        found.setdefault(worker, client)
        return len(found) == WORKERS

    await eventually(all_found)
    return list(found.values())


async def connect(router: RouterProcess, stack: AsyncExitStack) -> tuple[int, httpx.AsyncClient]:
    """A client with a connection, and the worker that has accepted it."""
    # It keeps its connection for as long as the router does.
    client = httpx.AsyncClient(base_url=router.url, timeout=TEST_TIMEOUT, trust_env=False, verify=False, limits=FOREVER)
    stack.push_async_callback(client.aclose)
    async with client.stream("GET", "/healthz") as answer:
        await answer.aread()
        port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
    return owner_of(router, port), client


def owner_of(router: RouterProcess, client_port: int) -> int:
    """The worker that has accepted the connection from this port."""
    # Local address, remote address, and the inode of the router's end of the connection.
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()]
    ends = (f":{router.port:04X}", f":{client_port:04X}")
    (inode,) = {row[9] for row in rows if row[1].endswith(ends[0]) and row[2].endswith(ends[1])}
    return next(pid for pid in router.worker_pids() if f"socket:[{inode}]" in open_files(pid))


def open_files(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(str(descriptor.readlink()))
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def started(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Workers]:
    engine = ScriptedEngine(*ANSWER)
    async with AsyncExitStack() as stack:
        await engine.start()
        stack.push_async_callback(engine.stop)
        text = router_config(redis_server.url, {"one": ("llama", "any", engine.url)}, router=KEPT, rest=REST)
        router = RouterProcess(tmp_path_factory.mktemp("workers"), text)
        router.start()
        stack.callback(router.kill)
        await router.wait_until_ready()
        await eventually(lambda: "ready: Roundhouse serves on" in router.log.read_text())
        yield Workers(router, engine, await connections(router, stack))


@pytest_asyncio.fixture(loop_scope="session")
async def workers(started: Workers) -> AsyncIterator[Workers]:
    started.engine.requests.clear()
    yield started
    started.engine.status = 200
    started.engine.paced = False


async def test_what_one_worker_stored_is_a_hit_at_the_other(workers: Workers, redis_server: RedisServer) -> None:
    missed = await workers.chat(0, "The sea?")
    assert missed.headers["x-cache"] == "MISS"
    await eventually(lambda: redis_server.command("EXISTS", missed.headers["x-cache-key"]))
    assert (await workers.chat(1, "The sea?")).headers["x-cache"] == "HIT"


async def test_equal_requests_at_two_workers_share_one_generation(workers: Workers) -> None:
    workers.engine.paced = True
    workers.engine.chunk_permits = asyncio.Semaphore(0)
    first = asyncio.ensure_future(workers.chat(0, "Once?"))
    await eventually(lambda: len(workers.engine.bodies) == 1)
    body, headers = chat_body("Once?", stream=True), {"x-tenant-id": "free"}
    async with workers.clients[1].stream("POST", "/v1/chat/completions", json=body, headers=headers) as second:
        # It has the first event, while the engine waits for the permit to send the last one.
        assert second.headers["x-cache"] == "COALESCED"
        workers.engine.chunk_permits.release()
        await second.aread()
        assert [chat_text(answer) for answer in (await first, second)] == ["one two"] * 2
    assert len(workers.engine.bodies) == 1


async def test_a_purge_at_one_worker_reaches_the_memory_of_the_other(workers: Workers) -> None:
    await workers.chat(0, "Purged?")
    await eventually(lambda: workers.answers("Purged?", "HIT"))
    await workers.admin(1, "/admin/cache/purge", tenant="free")
    workers.engine.requests.clear()

    async def is_missed() -> bool:
        return (await workers.chat(0, "Purged?")).headers["x-cache"] == "MISS"

    await eventually(is_missed)  # within a second
    assert len(workers.engine.bodies) == 1


async def test_an_engine_that_one_worker_drains_is_drained_for_both(workers: Workers) -> None:
    for number, (path, drained) in enumerate((("drain", True), ("resume", False))):
        await workers.admin(number, f"/admin/engines/one/{path}")

        async def both_know(expected: bool = drained) -> bool:
            return all(row["drained"] is expected for row in await workers.engine_rows())

        await eventually(both_know)
    assert (await workers.chat(0, "After the drain?")).status_code == 200


async def test_a_limit_of_concurrent_requests_holds_over_both(workers: Workers) -> None:
    workers.engine.paced = True
    workers.engine.chunk_permits = asyncio.Semaphore(0)
    running = asyncio.ensure_future(workers.chat(0, "Slow?", tenant="slow"))
    await eventually(lambda: len(workers.engine.bodies) == 1)
    refused = await workers.chat(1, "Slow, too?", tenant="slow")
    assert refused.status_code == 429
    workers.engine.chunk_permits.release()
    assert (await running).status_code == 200


async def test_a_limit_of_requests_per_minute_holds_over_both(workers: Workers) -> None:
    answers = [await workers.chat(number % WORKERS, f"Few {number}?", tenant="few") for number in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2


async def test_a_breaker_that_one_worker_opens_is_open_at_both(workers: Workers) -> None:
    workers.engine.status = 500
    for number in range(2):
        await workers.chat(0, f"Fails {number}?", **{"cache-control": "no-store"})

    async def open_at_both() -> bool:
        pages = [(await client.get("/healthz")).json() for client in workers.clients]
        return all(page["engines"]["one"]["breaker"] == "open" for page in pages)

    await eventually(open_at_both)


async def test_a_worker_that_is_started_again_learns_from_the_other_what_the_engines_hold_without_redis(
    tmp_path: Path,
) -> None:
    text = "The lamp of the harbour was lit. " * 100  # 3 KiB
    async with AsyncExitStack() as stack:
        engines = [ScriptedEngine(*ANSWER), ScriptedEngine(*ANSWER)]
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        table = {name: ("llama", "any", engine.url) for name, engine in zip("ab", engines, strict=True)}
        router = RouterProcess(tmp_path, router_config("redis://127.0.0.1:1", table, router=KEPT))
        router.start()
        stack.callback(router.kill)
        await router.wait_until_ready()
        await eventually(lambda: "ready: Roundhouse serves on" in router.log.read_text())
        asked, client = await connect(router, stack)
        for number in range(PROMPTS):
            await client.post("/v1/chat/completions", json=chat_body(f"{number} {text}", stream=True))
        before = router.worker_pids()
        (other,) = before - {asked}
        router.kill_worker(other)
        await eventually(lambda: router.worker_pids() - before)
        (again,) = router.worker_pids() - before

        async def has_connection() -> httpx.AsyncClient | None:
            worker, client = await connect(router, stack)
            return client if worker == again else None

        client = await eventually(has_connection)
        numbers = iter(range(PROMPTS))

        async def knows_a_prompt() -> bool:
            """Each is asked once: the worker knows its own in any case."""
            await asyncio.sleep(TEST_TIMEOUT / PROMPTS)  # so that they last until then
            body = chat_body(f"{next(numbers)} {text}", stream=True, max_tokens=7)
            answer = await client.post("/v1/chat/completions", json=body)
            return not answer.headers["x-engine-reason"].startswith("prefix 0 ")

        await eventually(knows_a_prompt)
