"""A Redis that refuses the router's password; tests/world has one that refuses, hangs, dies or is full."""

import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, router_config

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_log_contains_no_password_of_redis(
    make_router: MakeRouter, own_redis: RedisServer, engines: EngineSet, caplog: pytest.LogCaptureFixture
) -> None:
    await own_redis.start()
    await own_redis.command("CONFIG", "SET", "requirepass", "the-right-one")
    url = f"unix://:top-secret@{own_redis.socket}"
    router = await make_router(router_config(url, engines.as_config()))
    assert (await router.chat("The sea?")).headers["x-cache-reason"] == "redis-down"
    assert "Redis is down" in caplog.text
    assert "top-secret" not in caplog.text
    pages = [(await router.http.get(page)).text for page in ("/metrics", "/healthz")]
    assert "top-secret" not in "".join(pages)
