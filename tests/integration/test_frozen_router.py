"""A router that is paused, as a virtual machine during migration, does not serve what was purged meanwhile."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from router.api.auth import hash_key
from router.net.redis.liveness import PING_TIMEOUT
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.router_server import MakeRouter, RouterServer, chat_body, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "sk-admin"


class Setting:
    def __init__(
        self, frozen: RouterProcess, other: RouterServer, engine: ScriptedEngine, http: httpx.AsyncClient
    ) -> None:
        self.frozen = frozen
        self.other = other
        self.engine = engine
        self.http = http

    async def cache_status_after_purge_while_frozen(self, prompt: str) -> str:
        """X-Cache of a request that a router finds, together with the purge, when it continues."""
        process = self.frozen.process
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PING_TIMEOUT + 0.3)  # it is paused for this long
        headers = {"authorization": f"Bearer {KEY}"}
        purged = await self.other.http.post("/admin/cache/purge", json={"all": True}, headers=headers)
        assert purged.status_code == 200
        body = chat_body(prompt, stream=True)
        # On the existing connection, so that it arrives before anything that is published later.
        request = self.http.build_request("POST", "/v1/chat/completions", json=body)
        sending = asyncio.ensure_future(self.http.send(request, stream=True))
        await asyncio.sleep(0.1)  # until the kernel has received it
        process.send_signal(signal.SIGCONT)
        answer = await sending
        await answer.aclose()
        return answer.headers["x-cache"]


@pytest_asyncio.fixture(loop_scope="session")
async def setting(tmp_path: Path, redis_server: RedisServer, make_router: MakeRouter) -> AsyncIterator[Setting]:
    engine = ScriptedEngine(
        ROLE_FRAME + chat_frame(content="one "), chat_frame(content="", finish="stop") + DONE_FRAME, paced=True
    )
    await engine.start()
    rest = f'[auth]\nadmin_keys = ["{hash_key(KEY.encode())}"]'
    text = router_config(redis_server.url, {"scripted": ("llama", "any", engine.url)}, rest=rest)
    frozen = RouterProcess(tmp_path, text)
    frozen.start()
    try:
        await frozen.wait_until_ready()
        async with httpx.AsyncClient(base_url=frozen.url, trust_env=False, verify=False, timeout=15) as http:
            yield Setting(frozen, await make_router(text), engine, http)
    finally:
        frozen.process.send_signal(signal.SIGCONT)
        frozen.kill()
        await engine.stop()


async def test_a_frozen_router_serves_nothing_from_its_local_cache_that_was_purged_meanwhile(setting: Setting) -> None:
    setting.engine.paced = False
    body = chat_body("x", stream=True)

    async def is_local() -> bool:
        answer = await setting.http.post("/v1/chat/completions", json=body)
        return answer.headers["cache-status"].endswith("detail=local")

    await eventually(is_local)
    assert await setting.cache_status_after_purge_while_frozen("x") == "MISS"


async def test_a_frozen_router_lets_no_request_join_a_generation_that_was_purged_meanwhile(setting: Setting) -> None:
    await setting.http.get("/healthz")
    async with setting.http.stream("POST", "/v1/chat/completions", json=chat_body("x", stream=True)) as before:
        assert before.headers["x-cache"] == "MISS"
        assert await setting.cache_status_after_purge_while_frozen("x") == "MISS"
