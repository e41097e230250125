"""Claims of processes of which nothing more is heard."""

from typing import Any

import pytest
from serving import Engines, RouterServer, chat_body
from sse_answers import said

from router.core.names import claim_of

pytestmark = pytest.mark.asyncio(loop_scope="session")
pytest_plugins = ["router_fixtures"]


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
async def test_whoever_waited_for_a_process_that_is_gone_is_answered_all_the_same(
    router: RouterServer, redis: Any, engines: Engines, *, stream: bool
) -> None:
    before = await router.chat("The sea?")
    key = before.headers["x-cache-key"]
    claim = f"0123456789ab:1:{await redis.hget(key, 'digest')}"
    await redis.delete(key)
    await redis.set(claim_of(key), claim, px=200)
    answer = await router.http.post("/v1/chat/completions", json=chat_body("The sea?", stream=stream))
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
    assert said(answer) == said(before)
