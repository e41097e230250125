"""A Redis that answers in a form that nobody expects is like one that is down: no request fails, and none waits."""

import asyncio
import logging
from typing import Final

import pytest

from router.api.auth import hash_key
from router.net.redis.pipeline import RedisDownError
from router.net.tasks import cancel_and_wait
from router.shared.redis import ask_server, open_backend, open_pipeline
from tests.support.nonsense_redis import NONSENSE, NonsenseRedis
from tests.support.router_server import EngineSet, RouterServer, router_config

pytestmark = pytest.mark.asyncio(loop_scope="session")

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
BOUND: Final = 5.0  # seconds; the time of a busy machine, not that of Redis


@pytest.mark.parametrize("form", NONSENSE)
async def test_requests_are_answered_whatever_redis_answers(
    engines: EngineSet, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with NonsenseRedis(NONSENSE[form]) as redis, asyncio.timeout(4 * BOUND):
        config = router_config(redis.url, engines.as_config(), rest=REST)
        async with RouterServer(config) as router:
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
    assert [record.message for record in caplog.records if record.exc_info and record.levelno >= logging.ERROR] == []


SLOTS: Final = {
    "slots that do not exist": b"*1\r\n*3\r\n:0\r\n:20000\r\n*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n",
    "100 million slots": b"*1\r\n*3\r\n:0\r\n:100000000\r\n*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n",
    "a port that does not exist": b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:70000\r\n",
    "a host that is no name": b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$70\r\n" + 70 * b"a" + b"\r\n:7000\r\n",
    "a master at a port that does not exist": (
        b"*1\r\n%4\r\n$4\r\nname\r\n$1\r\nm\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n"
        b"$4\r\nport\r\n$5\r\n70000\r\n$5\r\nflags\r\n$6\r\nmaster\r\n"
    ),
}
STARTS: Final = ("redis+cluster://127.0.0.1:{port}", "redis+sentinel://127.0.0.1:{port}/m", "redis://127.0.0.1:{port}")


@pytest.mark.parametrize("form", [*SLOTS, *NONSENSE])
async def test_a_server_that_answers_nothing_sensible_at_the_start_is_like_one_that_is_down(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = {**NONSENSE, **SLOTS}[form]
    async with NonsenseRedis(reply, {"EXISTS": reply, "CLUSTER": reply, "TIME": reply}) as redis:
        for url in STARTS:
            if url.startswith("redis:") and form in COUNTS:
                continue  # EXISTS may count anything
            pipeline = open_pipeline(open_backend(url.format(port=redis.port), timeout=0.1), timeout=0.1, retry=0.02)
            async with asyncio.timeout(BOUND):
                await asyncio.wait([starting := asyncio.ensure_future(pipeline.start())], timeout=0.1)
                assert not pipeline.up
                with pytest.raises(RedisDownError):
                    pipeline.execute(("GET", "x"))
                await cancel_and_wait(starting)
                await pipeline.aclose()
            assert (await ask_server(url.format(port=redis.port), timeout=0.1)).problem or url.startswith("redis:")
    assert [record.message for record in caplog.records if record.exc_info] == []


COUNTS: Final = ("a number", "a negative number", "a huge number")
