"""A leader that stops by a signal. tests/world/test_coalescing_lost_leader.py has the rule, and other ways to end."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.core.cache.redis_keys import KEY_PREFIX, claim_key
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.router_server import MakeRouter, RouterServer, chat_body, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, chat_text
from tests.support.streaming_client import LiveStream
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER = (
    ROLE_FRAME + chat_frame(content="one "),
    chat_frame(content="two"),
    chat_frame(content="", finish="stop") + DONE_FRAME,
)


class Setting:
    """A leader in its own process, a follower in this one, and their engine."""

    def __init__(self, leader: RouterProcess, follower: RouterServer, engine: ScriptedEngine) -> None:
        self.leader = leader
        self.follower = follower
        self.engine = engine

    async def lead(self, http: httpx.AsyncClient) -> Any:
        """Sends the leader's own request; returns once the engine works on it."""
        leading = asyncio.ensure_future(http.post("/v1/chat/completions", json=chat_body("x", stream=True)))
        await eventually(lambda: self.engine.bodies)
        return leading

    def follow(self, *, stream: bool) -> "asyncio.Future[httpx.Response]":
        return asyncio.ensure_future(self.follower.chat("x", stream=stream))

    async def wait_for_follower(self) -> None:
        """Returns once a follower has received the first words, so that every earlier subscriber is attached too."""
        body = chat_body("x", stream=True)
        async with self.follower.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.headers["x-cache"] == "COALESCED"
            await LiveStream(answer).read_until_text("one ")


@pytest_asyncio.fixture(loop_scope="session")
async def setting(
    tmp_path: Path, redis: Any, redis_server: RedisServer, make_router: MakeRouter
) -> AsyncIterator[Setting]:
    engine = ScriptedEngine(*ANSWER, paced=True)
    await engine.start()
    text = router_config(redis_server.url, {"scripted": ("llama", "any", engine.url)})
    leader = RouterProcess(tmp_path, text)
    leader.start()
    try:
        await leader.wait_until_ready()
        yield Setting(leader, await make_router(text), engine)
    finally:
        leader.kill()
        await engine.stop()


async def test_a_leader_that_stops_finishes_generations_that_only_others_follow(setting: Setting, redis: Any) -> None:
    async with httpx.AsyncClient(base_url=setting.leader.url, trust_env=False, verify=False, timeout=15) as http:
        leading = await setting.lead(http)
        following = setting.follow(stream=True)
        await setting.wait_for_follower()
        leading.cancel()
    setting.leader.send_signal(signal.SIGTERM)
    await eventually(lambda: not accepts(setting.leader))
    for _ in range(2):  # the time between two is enough to end, if it does not wait
        await renewal(redis)
    setting.engine.chunk_permits.release()
    setting.engine.chunk_permits.release()
    answer = await following
    assert answer.content.endswith(DONE_FRAME)
    assert chat_text(answer) == "one two"
    assert len(setting.engine.bodies) == 1
    await eventually(lambda: not setting.leader.is_running)


async def renewal(redis: Any) -> None:
    """Returns once the leader has renewed its claim."""
    (claim,) = await redis.keys(f"{claim_key(KEY_PREFIX)}*")
    left = await redis.pttl(claim)

    async def is_renewed() -> bool:
        nonlocal left
        before, left = left, await redis.pttl(claim)
        return bool(left > before)

    await eventually(is_renewed)


def accepts(router: RouterProcess) -> bool:
    """Whether a process listens on its port."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", router.port)) == 0
