"""A Redis that answers in a form that nobody expects is like one that is down: no request fails, and none waits."""

import asyncio
import logging
from typing import Final

import pytest

from router.api.access.auth import hash_key
from tests.support.nonsense_redis import NONSENSE, NonsenseRedis
from tests.support.router_server import router_config
from tests.support.unusable_redis import BOUND, STARTS, assert_unusable
from tests.world.scenario import World, scenario

REST: Final = f"""
[auth]
mode = "header"
admin_keys = ["{hash_key(b"admin")}"]
[[tenant]]
name = "acme"
requests_per_minute = 1000
tokens_per_minute = 1000000
concurrent_requests = 100
tokens_per_day = 1000000
gpu_seconds_per_month = 1000000
"""
ACME: Final = {"x-tenant-id": "acme"}
ADMIN: Final = {"authorization": "Bearer admin"}
PAGES: Final = ("status", "history", "requests", "cache/stats", "cache/entries", "cache/savings", "usage", "keys")


@pytest.mark.parametrize("form", NONSENSE)
@scenario
async def test_requests_are_answered_whatever_redis_answers(
    world: World, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await world.engine()
    async with NonsenseRedis(NONSENSE[form]) as redis:
        router = await world.router(router_config(redis.url, {"one": ("llama", "any", engine.url)}, rest=REST))
        for stream in (False, True):
            async with asyncio.timeout(BOUND):
                answers = await asyncio.gather(
                    *(router.chat("The sea?", headers=ACME, stream=stream, max_tokens=2) for _ in range(2))
                )
            assert [answer.status_code for answer in answers] == [200, 200]
        for page in PAGES:
            async with asyncio.timeout(BOUND):
                assert (await router.http.get(f"/admin/{page}", headers=ADMIN)).status_code in (200, 503), page
        async with asyncio.timeout(BOUND):
            purge = await router.http.post("/admin/cache/purge", json={"all": True}, headers=ADMIN)
        assert purge.status_code in (200, 503)
        await router.stop()
    assert [record.message for record in caplog.records if record.exc_info and record.levelno >= logging.ERROR] == []


COUNTS: Final = ("a number", "a negative number", "a huge number")


@pytest.mark.parametrize("form", NONSENSE)
@scenario
async def test_a_server_that_answers_nothing_sensible_at_the_start_is_like_one_that_is_down(
    world: World, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = NONSENSE[form]
    async with NonsenseRedis(reply, {"EXISTS": reply, "CLUSTER": reply, "TIME": reply}) as redis:
        for url in STARTS:
            if url.startswith("redis:") and form in COUNTS:
                continue  # EXISTS may count anything
            await assert_unusable(url.format(port=redis.port))
    assert [record.message for record in caplog.records if record.exc_info] == []
