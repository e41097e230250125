"""The promises of RedisPipeline, with a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
import redis.exceptions

from router.net.redis.errors import UnexpectedReplyError
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies
from router.net.server.eager import EagerRunner
from router.shared.connection.redis import open_backend
from router.shared.connection.redis import open_pipeline as new_pipeline
from tests.support.redis_process import RedisServer
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

OpenPipeline = Callable[..., Awaitable[RedisPipeline]]
BATCH = 1 << 20
"""Bytes that are sent in one batch."""


@pytest_asyncio.fixture(loop_scope="session")
async def open_pipeline() -> AsyncIterator[OpenPipeline]:
    async with AsyncExitStack() as stack:

        async def make(server: RedisServer, timeout: float = 2.5) -> RedisPipeline:
            pipeline = new_pipeline(open_backend(server.url, timeout=timeout), timeout=timeout, retry=0.02)
            stack.push_async_callback(pipeline.aclose)
            await pipeline.start()
            return pipeline

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def pipeline(redis_server: RedisServer, redis: Any, open_pipeline: OpenPipeline) -> RedisPipeline:
    return await open_pipeline(redis_server)


# -- commands in, replies out -----------------------------------------------------------------------------------------


async def test_each_caller_gets_the_replies_to_its_own_commands(pipeline: RedisPipeline) -> None:
    requests = [pipeline.execute(("SET", f"k{n}", n), ("GET", f"k{n}")) for n in range(200)]
    assert await asyncio.gather(*requests) == [[b"OK", b"%d" % n] for n in range(200)]


@pytest.mark.parametrize("size", [0, BATCH // 3, BATCH])
async def test_commands_reach_redis_in_the_order_in_which_they_were_issued(
    pipeline: RedisPipeline, redis: Any, size: int
) -> None:
    for n in range(100):
        replies = pipeline.execute(("RPUSH", "list", n), size=size)
    await replies
    assert await redis.lrange("list", 0, -1) == [str(n) for n in range(100)]


@pytest.mark.parametrize("size", [0, BATCH // 3, BATCH])
async def test_commands_issued_together_stay_together(pipeline: RedisPipeline, redis: Any, size: int) -> None:
    for n in range(50):
        replies = pipeline.execute(*(("RPUSH", "list", f"{n}.{part}") for part in range(3)), size=size)
    await replies
    assert await redis.lrange("list", 0, -1) == [f"{n}.{part}" for n in range(50) for part in range(3)]


async def test_an_error_reply_is_an_exception_in_its_place_and_affects_nothing_else(pipeline: RedisPipeline) -> None:
    before = pipeline.execute(("SET", "k", "v"))
    odd = pipeline.execute(("LPUSH", "k", "x"), ("GET", "k"), ("NO-SUCH-COMMAND", "k"))
    after = pipeline.execute(("GET", "k"))
    assert await before == [b"OK"]
    refused, between, unknown = await odd
    assert isinstance(refused, redis.exceptions.ResponseError)
    assert isinstance(unknown, redis.exceptions.ResponseError)
    assert between == b"v"
    assert await after == [b"v"]
    assert pipeline.up, "it answers, so it is not down"


async def test_a_lookup_keeps_its_position_among_other_commands(pipeline: RedisPipeline) -> None:
    pipeline.execute(("SET", "k", "before"))
    reply = pipeline.execute_eager(("GET", "k"))
    pipeline.execute(("SET", "k", "after"))
    assert await reply == [b"before"]
    assert await pipeline.execute_eager(("GET", "k")) == [b"after"]


async def test_a_command_without_a_waiting_caller_keeps_its_position_and_its_callback_gets_the_reply(
    pipeline: RedisPipeline,
) -> None:
    events: list[Replies | None] = []
    pipeline.send(("SET", "k", "1"))
    pipeline.send(("INCR", "k"), ("INCR", "k"), on_reply=events.append)
    assert await pipeline.execute(("GET", "k")) == [b"3"]
    assert events == [[2, 3]]


async def test_an_exception_in_a_callback_does_not_affect_the_others(
    pipeline: RedisPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.send(("GET", "k"), on_reply=lambda _: 1 // 0)
    assert await pipeline.execute(("SET", "k", "v")) == [b"OK"]
    assert "ZeroDivisionError" in caplog.text


async def test_a_caller_that_resumes_without_a_task_may_send_again_at_once(pipeline: RedisPipeline) -> None:
    over: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await pipeline.execute_eager(("SET", "k", "v"))
        over.set_result([asyncio.current_task(), *await pipeline.execute_eager(("GET", "k"))])

    loop = asyncio.get_running_loop()
    runner = EagerRunner(loop)
    loop.call_soon(runner.start, work(), lambda task: over.set_exception(AssertionError(task)), lambda _: None)
    assert await over == [None, b"v"]


async def test_a_cancelled_caller_takes_nothing_from_the_others(pipeline: RedisPipeline) -> None:
    first, left, last = (pipeline.execute(("INCR", "n")) for _ in range(3))
    left.cancel()
    assert [await first, await last] == [[1], [3]], "the command is executed nevertheless"


async def test_closing_sends_queued_commands(
    redis_server: RedisServer, redis: Any, open_pipeline: OpenPipeline
) -> None:
    pipeline = await open_pipeline(redis_server)
    for n in range(20):
        pipeline.execute(("RPUSH", "list", n), size=BATCH)
    await pipeline.aclose()
    assert await redis.llen("list") == 20


# -- when Redis does not answer ---------------------------------------------------------------------------------------


async def test_nothing_is_retried(own_redis: RedisServer, open_pipeline: OpenPipeline) -> None:
    await own_redis.start()
    pipeline = await open_pipeline(own_redis, timeout=0.5)
    await asyncio.wait_for(pipeline.wait_until_up(), TEST_TIMEOUT)
    own_redis.freeze()
    with pytest.raises(RedisDownError):
        await pipeline.execute(("INCR", "n"))
    own_redis.thaw()
    await asyncio.wait_for(pipeline.wait_until_up(), TEST_TIMEOUT)
    assert await own_redis.command("GET", "n") in (None, "1"), (
        "Redis may have had it before it froze; it is not sent again"
    )


async def test_a_killed_redis_is_detected_at_once_and_used_again_when_it_is_back(
    own_redis: RedisServer, open_pipeline: OpenPipeline
) -> None:
    await own_redis.start()
    pipeline = await open_pipeline(own_redis)
    own_redis.kill()
    events: list[Replies | None] = []
    pending, looked_up = pipeline.execute(("GET", "k")), pipeline.execute_eager(("GET", "k"))
    pipeline.send(("GET", "k"), on_reply=events.append)
    with pytest.raises(RedisDownError):
        await pending
    with pytest.raises(RedisDownError):
        await looked_up
    assert events == [None]
    assert not pipeline.up
    with pytest.raises(RedisDownError):
        pipeline.send(("GET", "k"))
    await own_redis.start()
    await asyncio.wait_for(pipeline.wait_until_up(), TEST_TIMEOUT)
    assert await pipeline.execute(("SET", "k", "v")) == [b"OK"]


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
    pipeline = await open_pipeline(own_redis)
    assert not pipeline.up
    with pytest.raises(RedisDownError):
        pipeline.execute(("GET", "k"))


async def test_a_callback_that_raises_counts_as_one_without_a_reply(pipeline: RedisPipeline) -> None:
    for error in (UnexpectedReplyError(), ZeroDivisionError()):
        got: list[Replies | None] = []

        def on_reply(replies: Replies | None, error: Exception = error, got: list[Replies | None] = got) -> None:
            got.append(replies)
            if replies is not None:
                raise error

        pipeline.send(("GET", "no such key"), on_reply=on_reply)
        assert await pipeline.execute(("PING",)) == [b"PONG"]
        assert got == [[None], None]


async def test_a_waiter_that_raises_keeps_no_reply_from_others(pipeline: RedisPipeline) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    pipeline.execute_eager(("PING",)).then(fail)
    assert await asyncio.wait_for(pipeline.execute(("PING",)), TEST_TIMEOUT) == [b"PONG"]
