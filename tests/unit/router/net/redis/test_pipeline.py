"""The promises of RedisPipeline, with a real Redis."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
import redis.exceptions

from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies
from router.net.server.eager import EagerRunner
from router.shared.redis import open_backend
from router.shared.redis import open_pipeline as new_pipeline
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

OpenPipeline = Callable[..., Awaitable[RedisPipeline]]
BATCH = 1 << 20
"""Bytes that are sent in one batch."""


@pytest_asyncio.fixture(loop_scope="session")
async def open_pipeline() -> AsyncIterator[OpenPipeline]:
    async with AsyncExitStack() as stack:

        async def make(server: RedisServer, timeout: float = 0.5) -> RedisPipeline:
            line = new_pipeline(open_backend(server.url, timeout=timeout), timeout=timeout, retry=0.02)
            stack.push_async_callback(line.aclose)
            await line.start()
            return line

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def line(redis_server: RedisServer, redis: Any, open_pipeline: OpenPipeline) -> RedisPipeline:
    return await open_pipeline(redis_server)


# -- commands in, replies out -----------------------------------------------------------------------------------------


async def test_each_caller_gets_the_replies_to_its_own_commands(line: RedisPipeline) -> None:
    requests = [line.execute(("SET", f"k{n}", n), ("GET", f"k{n}")) for n in range(200)]
    assert await asyncio.gather(*requests) == [[b"OK", b"%d" % n] for n in range(200)]


@pytest.mark.parametrize("size", [0, BATCH // 3, BATCH])
async def test_commands_reach_redis_in_the_order_in_which_they_were_issued(
    line: RedisPipeline, redis: Any, size: int
) -> None:
    for n in range(100):
        replies = line.execute(("RPUSH", "list", n), size=size)
    await replies
    assert await redis.lrange("list", 0, -1) == [str(n) for n in range(100)]


@pytest.mark.parametrize("size", [0, BATCH // 3, BATCH])
async def test_commands_issued_together_stay_together(line: RedisPipeline, redis: Any, size: int) -> None:
    for n in range(50):
        replies = line.execute(*(("RPUSH", "list", f"{n}.{part}") for part in range(3)), size=size)
    await replies
    assert await redis.lrange("list", 0, -1) == [f"{n}.{part}" for n in range(50) for part in range(3)]


async def test_an_error_reply_is_an_exception_in_its_place_and_affects_nothing_else(line: RedisPipeline) -> None:
    before = line.execute(("SET", "k", "v"))
    odd = line.execute(("LPUSH", "k", "x"), ("GET", "k"), ("NO-SUCH-COMMAND", "k"))
    after = line.execute(("GET", "k"))
    assert await before == [b"OK"]
    refused, between, unknown = await odd
    assert isinstance(refused, redis.exceptions.ResponseError)
    assert isinstance(unknown, redis.exceptions.ResponseError)
    assert between == b"v"
    assert await after == [b"v"]
    assert line.up, "it answers, so it is not down"


async def test_a_lookup_keeps_its_position_among_other_commands(line: RedisPipeline) -> None:
    line.execute(("SET", "k", "before"))
    reply = line.execute_eager(("GET", "k"))
    line.execute(("SET", "k", "after"))
    assert await reply == [b"before"]
    assert await line.execute_eager(("GET", "k")) == [b"after"]


async def test_a_command_without_a_waiting_caller_keeps_its_position_and_its_callback_gets_the_reply(
    line: RedisPipeline,
) -> None:
    events: list[Replies | None] = []
    line.send(("SET", "k", "1"))
    line.send(("INCR", "k"), ("INCR", "k"), on_reply=events.append)
    assert await line.execute(("GET", "k")) == [b"3"]
    assert events == [[2, 3]]


async def test_an_exception_in_a_callback_does_not_affect_the_others(
    line: RedisPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    line.send(("GET", "k"), on_reply=lambda _: 1 // 0)
    assert await line.execute(("SET", "k", "v")) == [b"OK"]
    assert "ZeroDivisionError" in caplog.text


async def test_a_caller_that_resumes_without_a_task_may_send_again_at_once(line: RedisPipeline) -> None:
    over: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await line.execute_eager(("SET", "k", "v"))
        over.set_result([asyncio.current_task(), *await line.execute_eager(("GET", "k"))])

    loop = asyncio.get_running_loop()
    runner = EagerRunner(loop)
    loop.call_soon(runner.start, work(), lambda task: over.set_exception(AssertionError(task)), lambda _: None)
    assert await over == [None, b"v"]


async def test_a_cancelled_caller_takes_nothing_from_the_others(line: RedisPipeline) -> None:
    first, left, last = (line.execute(("INCR", "n")) for _ in range(3))
    left.cancel()
    assert [await first, await last] == [[1], [3]], "what was given is done all the same"


async def test_closing_sends_queued_commands(
    redis_server: RedisServer, redis: Any, open_pipeline: OpenPipeline
) -> None:
    line = await open_pipeline(redis_server)
    for n in range(20):
        line.execute(("RPUSH", "list", n), size=BATCH)
    await line.aclose()
    assert await redis.llen("list") == 20


# -- when Redis does not answer ---------------------------------------------------------------------------------------


async def test_a_frozen_redis_costs_one_timeout_however_many_wait_and_then_nothing(
    own_redis: RedisServer, open_pipeline: OpenPipeline
) -> None:
    await own_redis.start()
    line = await open_pipeline(own_redis, timeout=0.2)
    own_redis.freeze()
    began = time.perf_counter()
    waiting = [line.execute(("INCR", "n"), size=BATCH // 10) for _ in range(500)]
    failed = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(error) for error in failed} == {RedisDownError}
    assert 0.15 < time.perf_counter() - began < 2, "once, and not once for each of the batches"
    began = time.perf_counter()
    for _ in range(100):
        with pytest.raises(RedisDownError):
            line.execute(("INCR", "n"))
    assert time.perf_counter() - began < 0.15, "nobody waits any more"


async def test_nothing_is_retried(own_redis: RedisServer, open_pipeline: OpenPipeline) -> None:
    await own_redis.start()
    line = await open_pipeline(own_redis, timeout=0.1)
    own_redis.freeze()
    with pytest.raises(RedisDownError):
        await line.execute(("INCR", "n"))
    own_redis.thaw()
    await asyncio.wait_for(line.wait_until_up(), 10)
    (count,) = await line.execute(("GET", "n"))
    assert count in (None, b"1"), "Redis may have had it before it froze; it is not sent again"


async def test_a_killed_redis_is_detected_at_once_and_used_again_when_it_is_back(
    own_redis: RedisServer, open_pipeline: OpenPipeline
) -> None:
    await own_redis.start()
    line = await open_pipeline(own_redis)
    own_redis.kill()
    events: list[Replies | None] = []
    pending, looked_up = line.execute(("GET", "k")), line.execute_eager(("GET", "k"))
    line.send(("GET", "k"), on_reply=events.append)
    with pytest.raises(RedisDownError):
        await pending
    with pytest.raises(RedisDownError):
        await looked_up
    assert events == [None]
    assert not line.up
    with pytest.raises(RedisDownError):
        line.send(("GET", "k"))
    await own_redis.start()
    await asyncio.wait_for(line.wait_until_up(), 10)
    assert await line.execute(("SET", "k", "v")) == [b"OK"]


async def test_a_redis_that_requires_a_password_is_down_until_it_requires_none(
    own_redis: RedisServer, open_pipeline: OpenPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    await own_redis.start()
    await own_redis.command("CONFIG", "SET", "requirepass", "secret")
    opening = asyncio.ensure_future(open_pipeline(own_redis))
    await eventually(lambda: "Redis is down" in caplog.text)
    await own_redis_without_password(own_redis)
    assert (await opening).up


async def own_redis_without_password(server: RedisServer) -> None:
    server.kill()
    await server.start()


async def test_a_pipeline_starts_without_redis(own_redis: RedisServer, open_pipeline: OpenPipeline) -> None:
    line = await open_pipeline(own_redis)
    assert not line.up
    with pytest.raises(RedisDownError):
        line.execute(("GET", "k"))
