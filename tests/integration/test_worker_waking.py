"""Requests that wait in several workers for an engine to start: the limit and the order hold over all of them."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.shared.engines.announcements import AnnouncedEngine, write_command
from tests.support.on_demand import with_wake
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import LLAMA, chat_body, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="two", finish="stop") + DONE_FRAME)
REQUESTS = 12
QUEUED = 'llm_requests_queued{model="llama"}'


async def queued(url: str) -> float:
    async with http_client(url) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(QUEUED)), 0.0)


@pytest.mark.parametrize("announced", [False, True])
async def test_an_engine_that_starts_gets_one_request_after_the_other_from_all_workers(
    redis_server: RedisServer, redis: Any, tmp_path: Path, *, announced: bool
) -> None:
    engine, port = ScriptedEngine(*ANSWER, paced=True), free_port()
    url = f"http://127.0.0.1:{port}"
    text = router_config(redis_server.url, {"pod": ("llama", "any", url)}, router="workers = 2")
    text = with_wake(text.replace("served_model", "max_in_flight = 1\nserved_model"))
    router = RouterProcess(tmp_path, text[: text.index("[[engine]]")] if announced else text)
    router.start()

    async def ask(number: int) -> int:
        async with http_client(router.url) as http:  # a connection of its own, which any worker gets
            body = chat_body(f"Question {number} {announced}", stream=True)
            return (await http.post("/v1/chat/completions", json=body, timeout=httpx.Timeout(60))).status_code

    def has_asked(number: int) -> bool:
        return len(engine.bodies) == number

    async def all_wait() -> bool:
        return await queued(router.url) == REQUESTS

    try:
        await router.wait_until_ready()
        await eventually(lambda: len(router.worker_pids()) == 2)
        asked = [asyncio.create_task(ask(number)) for number in range(REQUESTS)]
        await eventually(all_wait)
        await engine.start(port)
        if announced:
            pod = AnnouncedEngine(name="pod", model="llama", task="any", url=url, served_model=LLAMA, max_in_flight=1)
            await redis.execute_command(*write_command("test", [pod]))
        for number in range(1, REQUESTS + 1):
            await eventually(partial(has_asked, number))
            engine.chunk_permits.release()
        assert await asyncio.gather(*asked) == [200] * REQUESTS
        assert engine.most == 1
        assert await queued(router.url) == 0
    finally:
        router.kill()
        await engine.stop()
