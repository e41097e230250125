"""`max_in_flight` is the limit of a router, however many workers it has, and whatever happens to them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.redis_process import RedisServer
from tests.support.router_process import START_TIMEOUT, RouterProcess, http_client
from tests.support.router_server import chat_body, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="two", finish="stop") + DONE_FRAME)
LIMIT = 5
REQUESTS = 40


class LimitedRouter:
    """A router with three workers, whose engine ends a response when it is told to."""

    def __init__(self, router: RouterProcess, engine: ScriptedEngine, redis_url: str) -> None:
        self.router = router
        self.engine = engine
        self._redis_url = redis_url
        self._asked = 0

    def text(self, limit: int | None) -> str:
        table = {"scripted": ("llama", "any", self.engine.url)}
        text = router_config(self._redis_url, table, router="workers = 3", rest='[timeouts]\nqueue = "60s"')
        return text if limit is None else text.replace("served_model", f"max_in_flight = {limit}\nserved_model")

    async def set_limit(self, limit: int | None) -> None:
        """Reloads the configuration; returns when all workers have the new one."""
        done = self.router.log.read_text().count("the new configuration is in effect")
        self.router.write_config(self.text(limit))
        self.router.process.send_signal(signal.SIGHUP)

        def all_have_it() -> bool:
            return self.router.log.read_text().count("the new configuration is in effect") == done + 3

        await eventually(all_have_it, START_TIMEOUT)  # one that replaces a killed worker may still be starting

    def ask(self, number: int) -> list["asyncio.Task[int]"]:
        """Different requests, each over a connection of its own; each ends with the last status."""
        self._asked += number
        return [asyncio.create_task(self._ask(f"Question {self._asked - each}")) for each in range(number)]

    async def _ask(self, prompt: str) -> int:
        while True:
            async with http_client(self.router.url) as http:
                try:
                    answer = await http.post(
                        "/v1/chat/completions", json=chat_body(prompt, stream=True), timeout=httpx.Timeout(60)
                    )
                except httpx.TransportError:
                    return 0
            # A worker's queue is full if the kernel has given it most of the connections.
            if answer.status_code != 503:
                return answer.status_code

    async def running(self, number: int) -> None:
        await eventually(lambda: self.engine.running == number)

    async def finish(self, requests: list["asyncio.Task[int]"]) -> list[int]:
        """Lets the engine end one response after the other, until all requests are answered."""
        while not all(each.done() for each in requests):
            waiting = len(self.engine.bodies)
            if self.engine.running:
                self.engine.chunk_permits.release()
            await asyncio.sleep(0)
            if waiting == len(self.engine.bodies):
                await asyncio.wait(requests, timeout=0.002, return_when=asyncio.FIRST_COMPLETED)
        return [each.result() for each in requests]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def started(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LimitedRouter]:
    engine = ScriptedEngine(*ANSWER, paced=True)
    await engine.start()
    folder = tmp_path_factory.mktemp("limited")
    router = RouterProcess(folder, "[router]")
    limited = LimitedRouter(router, engine, redis_server.url)
    router.write_config(limited.text(LIMIT))
    router.start()
    try:
        await router.wait_until_ready()
        yield limited
    finally:
        router.kill()
        await engine.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def limited(started: LimitedRouter) -> LimitedRouter:
    await started.running(0)
    started.engine.chunk_permits = asyncio.Semaphore(0)
    started.engine.most = 0
    return started


async def test_three_workers_together_send_an_engine_as_many_requests_as_the_limit_and_no_more(
    limited: LimitedRouter,
) -> None:
    requests = limited.ask(REQUESTS)
    await limited.running(LIMIT)
    assert await limited.finish(requests) == [200] * REQUESTS
    assert limited.engine.most == LIMIT


async def test_one_worker_may_have_all_the_slots(limited: LimitedRouter) -> None:
    async with http_client(limited.router.url) as http:
        assert (await http.get("/healthz")).status_code == 200
    requests = limited.ask(LIMIT)  # whichever workers get them, none of them waits
    await limited.running(LIMIT)
    assert await limited.finish(requests) == [200] * LIMIT


async def test_the_slots_of_a_killed_worker_go_to_requests_that_wait_in_the_others(limited: LimitedRouter) -> None:
    requests = limited.ask(REQUESTS)
    await limited.running(LIMIT)
    workers = limited.router.worker_pids()
    killed = sorted(workers)[:2]
    for worker in killed:
        limited.router.kill_worker(worker)
    await eventually(lambda: len(limited.router.worker_pids() - workers) == 2)
    # While a process ends, its connections stay open for a moment, and its requests at the engine count.
    await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in killed))
    remaining = [each for each in requests if not each.done()]
    more = limited.ask(REQUESTS)
    await limited.running(LIMIT)
    limited.engine.most = limited.engine.running
    answers = await limited.finish([*remaining, *more])
    assert set(answers) <= {0, 200}
    assert answers[len(remaining) :] == [200] * REQUESTS
    assert limited.engine.most == LIMIT


async def test_a_new_limit_counts_the_requests_that_run_already(limited: LimitedRouter) -> None:
    requests = limited.ask(12)
    await limited.running(LIMIT)
    await limited.set_limit(8)
    requests += limited.ask(12)
    await limited.running(8)
    await limited.set_limit(3)
    requests += limited.ask(12)
    assert limited.engine.running == 8
    for _ in range(6):
        limited.engine.chunk_permits.release()
    await limited.running(3)
    limited.engine.most = limited.engine.running
    assert await limited.finish(requests) == [200] * len(requests)
    assert limited.engine.most == 3
    await limited.set_limit(LIMIT)


async def test_requests_wait_in_one_worker_for_what_another_one_frees(limited: LimitedRouter) -> None:
    await limited.set_limit(1)
    requests = limited.ask(12)
    for _ in range(12):
        await limited.running(1)
        before = len(limited.engine.bodies)
        limited.engine.chunk_permits.release()

        def another_runs(before: int = before) -> bool:
            return len(limited.engine.bodies) > before or all(each.done() for each in requests)

        await eventually(another_runs)
    assert await limited.finish(requests) == [200] * 12
    assert limited.engine.most == 1
    await limited.set_limit(LIMIT)


async def test_a_frozen_worker_does_not_keep_free_slots_from_the_others(limited: LimitedRouter) -> None:
    requests = limited.ask(REQUESTS)
    await limited.running(LIMIT)
    frozen = min(limited.router.worker_pids())
    os.kill(frozen, signal.SIGSTOP)
    try:
        served = len(limited.engine.bodies)
        for _ in range(LIMIT):  # its own requests end at the engine, too, but it does not notice
            limited.engine.chunk_permits.release()
        await eventually(lambda: limited.engine.running < LIMIT or len(limited.engine.bodies) > served)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert await limited.finish(requests) == [200] * REQUESTS
    assert limited.engine.most <= LIMIT


async def test_the_slots_of_an_engine_that_is_not_configured_any_more_are_removed(
    limited: LimitedRouter, redis: Any
) -> None:
    folders = [Path(path) for path in open_slot_files(limited.router)]
    assert len(folders) == 1
    await limited.set_limit(None)
    await eventually(lambda: not folders[0].exists())
    await limited.set_limit(LIMIT)
    assert open_slot_files(limited.router)


def open_slot_files(router: RouterProcess) -> set[str]:
    found = set()
    for pid in router.worker_pids():
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(descriptor.readlink())
            except FileNotFoundError:  # it has been closed meanwhile
                continue
            if "/slots/slots-" in target:
                found.add(target)
    return found
